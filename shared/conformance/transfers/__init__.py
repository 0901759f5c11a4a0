"""The kit of transfer and archives: sessions that move, and records that age."""

from shared.conformance.transfers.checks import TransferSubject, transfers_conformance

__all__ = ["TransferSubject", "transfers_conformance"]

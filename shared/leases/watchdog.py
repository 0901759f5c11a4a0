"""How long a holder may trust its lease by its own monotonic clock (core 2, rule 4)."""

from __future__ import annotations


def margin_s(lease_s: float) -> float:
    """Return the seconds kept back before a lease's end: max(10 %, min(1 s, a quarter of the lease))."""
    return max(lease_s * 0.1, min(1.0, lease_s / 4))


def watchdog_deadline(sent_at: float, lease_s: float) -> float:
    """Return the monotonic moment at which the holder cancels its work.

    ``sent_at`` is when its last *successful* claim or renewal was sent, not when the answer came.
    """
    return sent_at + lease_s - margin_s(lease_s)


def lease_trusted_for(work_s: float) -> float:
    """Return the length of a lease whose holder may trust it for at least ``work_s`` seconds without a renewal."""
    return max(work_s / 0.9, work_s + 1.0)

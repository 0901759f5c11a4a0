"""What a failed turn stores of its error."""

from __future__ import annotations

from shared.domain.errors.families import TurnkeeperError


def code_of(error: BaseException) -> str:
    """Return the stable code a turn that fails with ``error`` stores (TRN-49 to TRN-54).

    A typed error keeps its own code; any other ``Exception`` is ``turn.failed``.
    """
    return error.code if isinstance(error, TurnkeeperError) else "turn.failed"


MESSAGE_MAX_CHARS = 500


def describe_error(error: BaseException) -> str:
    """Return the stored failure message, cut to ``MESSAGE_MAX_CHARS`` code points (TRN-51, 53, 59)."""
    text = str(error)
    if not isinstance(error, TurnkeeperError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text[:MESSAGE_MAX_CHARS]

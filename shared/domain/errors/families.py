"""The families: who must act."""

from __future__ import annotations

from typing import Any, ClassVar


class TurnkeeperError(Exception):
    """Base of every typed error of ours.

    ``code`` is stable; ``fields`` names what the error is about and is safe to show to the caller (no secrets, no
    SQL, nothing of another owner).
    """

    code: ClassVar[str] = "internal"
    title: ClassVar[str] = "Internal error"

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields


class SessionLogError(Exception):
    """The store's own failure, whatever its family: unreachable, busy, or data that does not decode (SES-66).

    Every error of this class is a ``TurnkeeperError`` too and keeps its own code; what failed underneath is its cause.
    """


class Refused(TurnkeeperError):
    """The request cannot be taken as it is."""

    code = "request.refused"
    title = "Request refused"


class Conflict(TurnkeeperError):
    """Something that was there first stands against the request."""

    code = "request.conflict"
    title = "Conflict"


class Unavailable(TurnkeeperError):
    """A part outside this process is in trouble; trying again may work. ``retry_after_s`` is a hint in seconds."""

    code = "unavailable"
    title = "Temporarily unavailable"

    def __init__(self, message: str, *, retry_after_s: float = 1.0, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.retry_after_s = retry_after_s


class Exhausted(TurnkeeperError):
    """A budget, a number of tries or a time is spent. ``retry_after_s`` is a hint in seconds."""

    code = "exhausted"
    title = "Limit reached"

    def __init__(self, message: str, *, retry_after_s: float = 1.0, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.retry_after_s = retry_after_s


class Broken(TurnkeeperError):
    """An invariant of ours does not hold. Never retried blindly."""

    code = "defect"
    title = "Defect"


class TurnBeginError(Exception):
    """What keeps a turn from beginning: raised itself, before anything is opened, run or counted (TRN-28 to TRN-30).

    A second base of the errors that it names, beside their family: ``except TurnBeginError`` catches them all.
    """

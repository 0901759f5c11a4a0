"""Errors of session histories: one class to catch, a reason to decide by, and each in the family of who must act (THR-74)."""

from __future__ import annotations

from typing import ClassVar, Literal

from shared.domain.errors.families import Broken, Conflict, Exhausted, Refused, TurnBeginError, Unavailable

HistoryReason = Literal["limit", "conflict", "fenced", "incompatible", "not-found", "encoding", "storage"]


class SessionHistoryError(Exception):
    """What a history of sessions refuses or cannot do; ``reason`` says which, the same over every adapter.

    A second base of the errors below, beside their family: ``except SessionHistoryError`` catches them all, and each is a
    ``TurnkeeperError`` with a code of its own. An adapter's own error is the ``__cause__``.
    """

    reason: ClassVar[HistoryReason]


class HistoryFull(Exhausted, SessionHistoryError):
    """The update goes over a bound; none of it is kept, and nothing else is given up for it (THR-21, THR-88)."""

    code = "history.limit"
    title = "History is full"
    reason = "limit"


class HistoryConflict(Conflict, SessionHistoryError):
    """Another update or another owner was first; nothing is overwritten (THR-22, THR-29, THR-71)."""

    code = "history.conflict"
    title = "History belongs to another update or owner"
    reason = "conflict"


class SessionHistoryDiverged(HistoryConflict):
    """The update's prefix is out of date, or rewrites what is recorded (THR-87)."""

    code = "history.diverged"
    title = "History diverged"


class HistoryFenced(Conflict, SessionHistoryError):
    """The owner or the history that it was asked through has closed (THR-30)."""

    code = "history.fenced"
    title = "History is closed"
    reason = "fenced"


class HistoryIncompatible(Broken, SessionHistoryError):
    """What is stored was written in a form that this code does not read."""

    code = "history.incompatible"
    title = "History was written by another version"
    reason = "incompatible"


class HistoryModeConflict(Conflict, TurnBeginError, SessionHistoryError):
    """The session is of the other kind: it keeps whole turns, or it has turns of the queue; none takes both (THR-76)."""

    code = "history.mode"
    title = "Session is of the other kind"
    reason = "incompatible"


class HistoryMissing(Refused, SessionHistoryError):
    """No session of this id, for whoever asks."""

    code = "history.not-found"
    title = "History not found"
    reason = "not-found"


class HistoryEncoding(Refused, SessionHistoryError):
    """A message cannot be stored as it is: no clean text, no JSON, or no whole message; ``field`` says where."""

    code = "history.encoding"
    title = "History cannot hold this message"
    reason = "encoding"


class HistoryStorage(Unavailable, SessionHistoryError):
    """The store beneath is away or failed; its own error is the cause (THR-75)."""

    code = "history.storage"
    title = "History store failed"
    reason = "storage"


class InMemoryScopeError(Refused):
    """``scoped`` was asked of a history that is not the in-memory one with its own store (THR-37)."""

    code = "history.scope"
    title = "History cannot be scoped"

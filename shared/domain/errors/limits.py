"""Spent budgets, tries and times; broken invariants."""

from __future__ import annotations

from shared.domain.errors.families import Broken, Exhausted, SessionLogError


class QueueFull(Exhausted):
    """A bound on queued turns is reached; nothing was stored (DST-16)."""

    code = "turn.queue-full"
    title = "Too many queued turns"


class InboxFull(Exhausted):
    """As many items wait in the session's inbox as may; nothing was stored (INB-03)."""

    code = "inbox.full"
    title = "Inbox is full"


class CommandsFull(Exhausted):
    """A queue of steering and follow-ups holds as many as it may; nothing was added."""

    code = "turn.commands-full"
    title = "Too many commands wait"


class RateLimited(Exhausted):
    """The owner writes faster than its rate; nothing was read or stored (API-17, DST-16)."""

    code = "rate.limited"
    title = "Too many writes"


class CallAbandoned(Exhausted):
    """A blocking call of the host did not return in time; what it did is unknown, its thread is lost (DST-31)."""

    code = "call.abandoned"
    title = "Blocking call took too long"


class TurnTimeout(Exhausted):
    """The turn used up its ``max_duration_s``."""

    code = "turn.timeout"
    title = "Turn took too long"


class Defect(Broken):
    """What nobody declared escaped from our own code; its ``__cause__`` is what was raised (TRN-54, TRN-56)."""

    code = "turn.defect"
    title = "Turn met a defect"


class SchemaOutOfRange(Broken):
    """The database's schema and this code do not fit; both versions are named (OPS-05)."""

    code = "schema.range"
    title = "Schema version out of range"


class CorruptRecord(Broken, SessionLogError):
    """A stored row does not decode; session and seq are named, nothing is skipped (SES-160)."""

    code = "session.decode"
    title = "Stored record does not decode"


class SessionDefect(Broken):
    """A write of a turn died of something that is no failure of the store; what it was is logged (SES-58)."""

    code = "session.defect"
    title = "Session defect"


class StoreDefect(Broken):
    """The database answered something the contract rules out."""

    code = "store.defect"
    title = "Store defect"

"""Another was first, or a fence no longer holds."""

from __future__ import annotations

from shared.domain.errors.families import Conflict, TurnBeginError


class SessionBusy(Conflict, TurnBeginError):
    """A turn of the session is unfinished and the caller asked not to queue (SES-38)."""

    code = "session.busy"
    title = "Session is busy"


class TurnDuplicate(Conflict, TurnBeginError):
    """The key already names a turn with the same content (SES-40); ``turn_id``, ``number`` and ``open`` say which.

    ``number`` is None for a turn that has not opened, ``open`` says whether it is unfinished. At HTTP the first receipt
    answers instead.
    """

    code = "turn.duplicate"
    title = "Turn was begun before"


class KeyConflict(Conflict, TurnBeginError):
    """The key was used with other content (SES-41). HTTP 422 (decision 12)."""

    code = "turn.key-conflict"
    title = "Idempotency key was used with other content"


class SessionExists(Conflict):
    """The creation key was used with other content."""

    code = "session.exists"
    title = "Session exists"


class RevisionConflict(Conflict):
    """A compare-and-swap commit found another revision; ``expected`` and ``actual`` say which (SES-13)."""

    code = "session.revision"
    title = "Revision conflict"


class CommitTooLate(Conflict):
    """The store's clock had passed the commit's ``not_after``; nothing was stored (SES-14)."""

    code = "session.late"
    title = "Commit came too late"


class RunIdReused(Conflict, TurnBeginError):
    code = "turn.run-reused"
    title = "Run id was used before"


class FenceLost(Conflict):
    """The writer's fence is no longer the row's: nothing of the write is stored (law 3)."""

    code = "turn.fence-lost"
    title = "Ownership was lost"


class TurnClosed(FenceLost):
    """Someone else closed the turn. ``reason``: cancelled, interrupted, removed or ended (SES-75)."""

    code = "turn.closed"
    title = "Turn is closed"


class RunOpen(Conflict):
    """A run of the turn's step loop is under way: another, or a context entry, has to wait for its end."""

    code = "turn.run-open"
    title = "A run of the turn is under way"


class RunCut(Conflict):
    """The turn's body cancelled this run itself; bound a run by its policy to be told ``turn.timeout`` instead."""

    code = "turn.run-cut"
    title = "The run was cut by the turn's body"


class TurnUnstarted(Conflict):
    """Memory records nothing of a turn before the turn's message (TRN-130)."""

    code = "turn.unstarted"
    title = "The turn's message is not recorded yet"


class HomeInUse(Conflict):
    """Another process runs on the same home folder; ``pid`` names it (OPS-01)."""

    code = "home.in-use"
    title = "Home folder is in use"


class NothingPending(Conflict, TurnBeginError):
    """No item waits that an inbox turn could claim; the turn did not open (INB-10)."""

    code = "inbox.empty"
    title = "Inbox is empty"


class InboxMoved(Conflict, TurnBeginError):
    """The opening turn names other items than the oldest that wait: read them again, and repeat (INB-07)."""

    code = "inbox.moved"
    title = "Inbox moved on"


class LeaseHeld(Conflict):
    """The lease is another holder's; ``expires_in_s`` says for how long at most."""

    code = "lease.held"
    title = "Lease is held"

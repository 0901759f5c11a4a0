"""The port of a session's inbox and its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from shared.domain.ids import OwnerId, SessionId, TurnId
from shared.inbox.backlog import InboxBacklog
from shared.turns.queue import OnWorkerLoss

#: How many items may wait in one session, and how often one may be claimed by turns that fail, unless settings say otherwise.
MAX_PENDING: Final = 20
ATTEMPTS_MAX: Final = 2


@dataclass(frozen=True, slots=True)
class Delivery:
    """An item to put into a session's inbox. ``id`` makes it one, however often it is delivered.

    ``agent``, ``agent_revision``, ``on_worker_loss`` and ``meta`` are those of the turn that answers it, when it is the oldest
    that waits then; without them that turn is as the session's last one.
    """

    session_id: SessionId
    owner: OwnerId
    id: str
    source: str
    content: str
    meta: Mapping[str, Any] | None = None
    agent: str | None = None
    agent_revision: str | None = None
    on_worker_loss: OnWorkerLoss | None = None


@dataclass(frozen=True, slots=True)
class InboxItem:
    """An item that waits. ``seq`` is its ``inbox.queued`` record's, ``attempts`` the claims that failed it so far."""

    id: str
    source: str
    content: str
    seq: int
    attempts: int
    meta: Mapping[str, Any] | None
    agent: str | None
    agent_revision: str | None


@dataclass(frozen=True, slots=True)
class Delivered:
    """The answer of ``deliver``: the item's record, whether it was there before, and how many items wait now.

    ``turn_id`` is the session's inbox turn, if it is ready: ring for it.
    """

    seq: int
    duplicate: bool
    pending: int
    turn_id: TurnId | None


@dataclass(frozen=True, slots=True)
class Recovered:
    """The answer of ``recover``: the turns to ring for, and whether there may be more that is due than was looked at."""

    ready: Sequence[TurnId]
    may_be_more: bool


class Inbox(Protocol):
    """Stores items and says which wait; each call is one transaction (docs/core.md 4).

    All may raise ``StoreBusy`` (nothing stored) and ``StoreUnavailable`` (a write's outcome is unknown: repeat it).
    """

    async def deliver(self, delivery: Delivery, *, max_pending: int = MAX_PENDING) -> Delivered:
        """Put an item into the inbox and write ``inbox.queued``; the next inbox turn is inserted unless one is unfinished.

        The same id adds nothing and answers the first record; with other source or content it is a ``KeyConflict``. Raises
        ``SessionMissing``, and ``InboxFull`` while ``max_pending`` items wait. A dead turn of the session is reaped first.
        """
        ...

    async def waiting(self, session_id: SessionId, owner: OwnerId) -> Sequence[InboxItem]:
        """Read the items that no turn has claimed, oldest first; raises ``SessionMissing``. Takes no lock."""
        ...

    async def recover(self, *, limit: int = 50) -> Recovered:
        """Insert the inbox turn of sessions whose items are due to be looked at, if none is unfinished.

        The repair of what nothing else inserts: a turn that the host's admission refused is tried again so, after the
        queue's ``inbox_retry_s``. Any other item is looked at once an hour. Looks at ``limit`` due items at most, the
        longest due first, and skips sessions that are busy just now. Fewer turns are ready than sessions were looked at:
        one may have a turn that is not over.
        """
        ...

    async def backlog(self) -> InboxBacklog:
        """Read what waits in all, for an operator; its cost follows what waits, up to a bound."""
        ...

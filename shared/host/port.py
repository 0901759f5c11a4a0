"""The values and protocols of the host's door to sessions (SES-02, SES-34 to 131)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol, TypeVar

from shared.domain.ids import OwnerId, RunId, SessionId, TurnId
from shared.inbox.port import Delivered
from shared.sessions.records import Draft, Record
from shared.turns.queue import Ended, Ending

T = TypeVar("T")

Origin = Literal["user", "inbox", "task"]
CloseReason = Literal["cancelled", "interrupted", "removed", "ended"]


@dataclass(frozen=True, slots=True)
class SessionAddress:
    """A session and whose it is; with another owner it finds nothing (SES-35)."""

    id: SessionId
    owner: OwnerId


@dataclass(frozen=True, slots=True)
class OpenTurnView:
    """The turn that is open now. ``recovering``: nobody holds it, and another attempt may come (SES-121)."""

    turn: int
    turn_id: TurnId
    recovering: bool


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session as one read saw it. ``turns`` is the highest number begun, ``pending`` counts waiting inbox items."""

    address: SessionAddress
    turns: int
    title: str | None
    open: OpenTurnView | None
    pending: int
    seq: int
    meta: Mapping[str, Any]
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class NewTurn:
    """A turn to begin (TRN-03). ``run_id`` is minted when none is given; ``resumes`` is the number of a turn to go on with."""

    message: Mapping[str, Any]
    run_id: RunId | None = None
    key: str | None = None
    command: Mapping[str, Any] | None = None
    meta: Mapping[str, Any] | None = None
    resumes: int | None = None
    agent: str = ""
    agent_revision: str = "1"


@dataclass(frozen=True, slots=True)
class InboxTurn:
    """A turn that takes the oldest waiting items of the session's inbox, as many as fit (INB-07). ``run_id`` is minted when none is given.

    ``agent`` and ``agent_revision`` say who goes on with it where a worker may; None: whom its oldest item names.
    """

    run_id: RunId | None = None
    meta: Mapping[str, Any] | None = None
    agent: str | None = None
    agent_revision: str | None = None


@dataclass(frozen=True, slots=True)
class AdmittedTurn:
    """A turn as the session admitted it (TRN-39, TRN-40). ``meta`` is empty when none was given."""

    turn_id: TurnId
    number: int
    run_id: RunId
    origin: Origin
    message: Mapping[str, Any]
    key: str | None = None
    command: Mapping[str, Any] | None = None
    claimed: Sequence[str] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    resumes: int | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What a ``transact`` decided: records to append (none: nothing is written) and the caller's answer."""

    drafts: Sequence[Draft] = ()
    answer: Any = None


@dataclass(frozen=True, slots=True)
class Drained:
    """What a drain came to: how many turns it ran, how many items wait after it, and why it stopped.

    ``empty``: nothing waits. ``max_turns``: it ran as many as it may. ``busy``: another turn of the session is unfinished.
    ``refused``: the host's admission took no turn. ``closed``: someone else closed its last turn.
    """

    turns: int
    pending: int
    stopped: Literal["empty", "max_turns", "busy", "refused", "closed"]


#: Decides from the records that the session holds after a seq the caller named; called again when another was first.
Decide = Callable[[Sequence[Record]], Decision | Awaitable[Decision]]


class TurnWriter(Protocol):
    """The one way to write an open turn: an ordered write-behind queue over fenced commits (SES-47 to 61, EVT-48 to 62).

    Everything is stored strictly in the order it was queued. The first failed write is latched: every later call raises
    it. Once someone else closed the turn every call raises ``TurnClosed`` with its reason.
    """

    @property
    def session(self) -> SessionAddress: ...
    @property
    def admitted(self) -> AdmittedTurn: ...

    async def append(self, drafts: Sequence[Draft], *, framework: bool = False) -> None:
        """Queue records and go on; waits only while the queue is full. Consecutive appends share a commit.

        Raises ``ReservedKind`` for a framework kind unless ``framework``; nothing of that call is stored (SES-59, 60).
        """
        ...

    async def write(self, op: Callable[[], Awaitable[T]]) -> T:
        """Run a host's own write at its place in the queue and return its result (SES-48)."""
        ...

    async def transact(self, decide: Decide, *, after: int = 0, kinds: Sequence[str] | None = None) -> Any:
        """Read, decide, append; decided again with what others wrote when someone else was first (SES-49)."""
        ...

    async def flush(self) -> int:
        """Return the log's seq once everything queued before is committed (SES-50)."""
        ...

    async def end(self, ending: Ending, drafts: Sequence[Draft] = ()) -> Ended:
        """Flush and write the closing commit, exactly once; after a failure of the store a later call tries again."""
        ...

    async def closed(self) -> CloseReason:
        """Complete when the turn takes no more writes, with the reason (SES-53)."""
        ...


#: Answers one inbox turn, whose items' contents are ``writer.admitted.message``; whoever called ends the turn.
RunInbox = Callable[[TurnWriter], Awaitable[object]]


class Sessions(Protocol):
    """The sessions of a host: what everyone reads and writes them through (SES-02, SES-03)."""

    async def create(
        self,
        owner: OwnerId,
        *,
        key: str | None = None,
        title: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> SessionView: ...

    async def view(self, address: SessionAddress) -> SessionView: ...

    async def list(
        self, owner: OwnerId, *, limit: int = 50, before: tuple[datetime, SessionId] | None = None
    ) -> Sequence[SessionView]: ...

    async def read(
        self,
        address: SessionAddress,
        *,
        after: int = 0,
        limit: int = 1_000,
        kinds: Sequence[str] | None = None,
    ) -> Sequence[Record]: ...

    def begin(
        self, address: SessionAddress, turn: NewTurn | InboxTurn
    ) -> AbstractAsyncContextManager[TurnWriter]:
        """Open a turn for the block, with its ``turn.started`` in one commit; an inbox turn claims its items in it.

        Raises, before anything is opened or counted, ``TurnDuplicate``, ``KeyConflict``, ``RunIdReused``,
        ``SessionBusy``, ``NothingPending`` (of an inbox turn), ``NotResumable``, ``TurnRefused``, ``SessionMissing``, ``SessionContended`` or a store error. A
        block that leaves without :meth:`TurnWriter.end` ends the turn failed (``turn.unended``), a cancelled one
        interrupted (``turn.interrupted``).
        """
        ...

    async def deliver(
        self,
        address: SessionAddress,
        *,
        id: str,
        source: str,
        content: str,
        meta: Mapping[str, Any] | None = None,
        agent: str | None = None,
        agent_revision: str | None = None,
    ) -> Delivered:
        """Put an item into the session's inbox, once per id (INB-01 to 04).

        It is answered by the next inbox turn: a worker's that serves the agent's revision, or a :meth:`drain`. A turn that
        nobody holds any more is closed first. Raises ``InvalidInput`` naming the field, ``SessionMissing``, ``InboxFull`` or a
        store error; of a lost answer the repeat tells what became of it.
        """
        ...

    async def drain(
        self,
        address: SessionAddress,
        run: RunInbox,
        *,
        max_turns: int = 3,
        meta: Mapping[str, Any] | None = None,
    ) -> Drained:
        """Run inbox turns while items wait, the session is free and the host admits them, at most ``max_turns`` (1 to 1,000).

        ``run`` answers the turn of a writer, which is ended here: completed, or as :func:`turn_ending_of` says of what
        ``run`` raised, which is logged and not raised. A ``run`` that interrupts itself counts an attempt of its items; a
        drain that is cancelled ends its turn as interrupted, and counts one only if the turn wrote something. Raises what a
        begin raises but ``NothingPending``, ``SessionBusy`` and ``TurnRefused``, and what kept a turn's end from being stored.
        """
        ...

    async def cancel(self, address: SessionAddress, turn: int) -> bool:
        """End exactly that turn as cancelled, durably; False when it had ended or nobody held it (SES-125 to 129)."""
        ...

    async def transact(
        self, address: SessionAddress, decide: Decide, *, after: int = 0, kinds: Sequence[str] | None = None
    ) -> Any:
        """Check, then append, outside a turn (SES-62 to 65)."""
        ...

    async def lookup(self, address: SessionAddress, key: str) -> TurnId | None:
        """Find the turn of a key; None when the session has none (SES-70)."""
        ...

    async def history(
        self, address: SessionAddress, *, kinds: Sequence[str] | None = None
    ) -> Sequence[Record]:
        """Read all that the session's turns remember: what a fork inherits, oldest ancestor first, then its own."""
        ...

    async def fork(self, parent: SessionAddress, *, inherit: bool) -> SessionView:
        """Make a child session; with ``inherit`` its history is the parent's up to its last closed turn (SES-71, 72)."""
        ...

    async def remove(self, address: SessionAddress) -> Sequence[SessionId]:
        """Remove a session with its children; an open turn of it closes with reason ``removed``."""
        ...

    def changes(self, address: SessionAddress) -> AsyncIterator[int]:
        """Yield the log's seq at each commit that this instance makes; others' commits are found by polling (SES-68)."""
        ...

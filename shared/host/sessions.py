"""The sessions of a host, over a session log and a turn queue: what everyone reads and writes them through."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final

from shared.domain.errors import (
    ConfigError,
    InboxMoved,
    SessionBusy,
    SessionMissing,
    TurnMissing,
)
from shared.domain.ids import OwnerId, SessionId, TurnId, new_session_id
from shared.host.activity import CountedTurns, TurnActivity
from shared.host.beginning import Beginning
from shared.host.commits import RETRIES_DEFAULT, RETRIES_MAX, WriterEars, WriterRules
from shared.host.holding import HeldLeases
from shared.host.inboxes import MAX_TURNS_DEFAULT, HostInbox, drain_inbox
from shared.host.news import News
from shared.host.ownership import (
    LeaseOwnership,
    Liveness,
    Ownership,
    ProcessLiveness,
    holder_id,
    is_held,
)
from shared.host.port import (
    CloseReason,
    Decide,
    Drained,
    InboxTurn,
    NewTurn,
    OpenTurnView,
    RunInbox,
    SessionAddress,
    SessionView,
)
from shared.host.tasks.claimed import ClaimedTurns
from shared.host.transacting import Transaction, read_through
from shared.host.writer import QueuedTurnWriter
from shared.inbox.port import MAX_PENDING, Delivered, Delivery, Inbox
from shared.leases.fence import Fence
from shared.sessions.log import NewSession, SessionLog
from shared.sessions.records import Draft, Head, Record
from shared.turns.admission import TurnAdmission
from shared.turns.queue import Begun, TurnQueue, TurnView

_logger: Final = logging.getLogger(__name__)

#: How long a commit of a turn that no lease bounds is repeated while the store is away.
PATIENCE_S: Final = 30.0
#: The code of a turn that nobody held any more.
REAPED_CODE: Final = "turn.lease"


class HostSessions(ClaimedTurns):
    """Implements :class:`shared.host.port.Sessions` for one instance of a host's process. Belongs to one event loop.

    Several instances, of one process or of many, share a store. Nothing here is to be closed: a turn's writer lives in
    its own scope, and the keep-alive ends with the last open turn (SHD-30, 31). Without ``inbox`` nothing is delivered or
    drained: that raises ``ConfigError``. ``retries``: how often a commit that lost
    to another is planned again, 0 to 1,000. Raises ``ConfigError`` for a bound of the ownership, or ``retries``.
    """

    def __init__(
        self,
        log: SessionLog,
        queue: TurnQueue,
        *,
        ownership: Ownership | None = None,
        liveness: Liveness | None = None,
        admission: TurnAdmission | None = None,
        inbox: Inbox | None = None,
        max_pending: int = MAX_PENDING,
        retries: int = RETRIES_DEFAULT,
        rules: WriterRules | None = None,
    ) -> None:
        if not 0 <= retries <= RETRIES_MAX:
            raise ConfigError("retries is out of bounds", field="retries", bound=f"0..{RETRIES_MAX}")
        ownership = ownership if ownership is not None else LeaseOwnership()
        self._log = log
        self._queue = queue
        self._liveness = liveness if liveness is not None else ProcessLiveness()
        self._holder = holder_id(self._liveness.me())
        self._retries = retries
        self._rules = rules if rules is not None else _rules_of(ownership, retries)
        self._leases = (
            HeldLeases(queue, self._holder, ownership) if isinstance(ownership, LeaseOwnership) else None
        )
        self._inbox = HostInbox(inbox, max_pending)
        self._lease_s = ownership.lease_s if isinstance(ownership, LeaseOwnership) else None
        self._door = Beginning(queue, self._holder, self._lease_s, admission)
        self._turns = CountedTurns()
        self._writers: dict[TurnId, QueuedTurnWriter] = {}
        self._news = News()

    @property
    def activity(self) -> TurnActivity:
        """What this instance has in flight (SHD-01)."""
        return self._turns

    # --- sessions ----------------------------------------------------------------------------------------------

    async def create(
        self,
        owner: OwnerId,
        *,
        key: str | None = None,
        title: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> SessionView:
        """See the port."""
        created = await self._log.create(NewSession(new_session_id(), owner, key=key, title=title, meta=meta))
        return await self.view(SessionAddress(created.session_id, owner))

    async def view(self, address: SessionAddress) -> SessionView:
        """See the port."""
        return await self._view(await self._log.head(address.id, address.owner))

    async def list(
        self, owner: OwnerId, *, limit: int = 50, before: tuple[datetime, SessionId] | None = None
    ) -> Sequence[SessionView]:
        """See the port."""
        return [await self._view(head) for head in await self._log.list(owner, limit=limit, before=before)]

    async def read(
        self,
        address: SessionAddress,
        *,
        after: int = 0,
        limit: int = 1_000,
        kinds: Sequence[str] | None = None,
    ) -> Sequence[Record]:
        """See the port."""
        await self._log.head(address.id, address.owner)
        return await self._log.read(address.id, after=after, limit=limit, kinds=kinds)

    async def history(
        self, address: SessionAddress, *, kinds: Sequence[str] | None = None
    ) -> Sequence[Record]:
        """See the port."""
        head = await self._log.head(address.id, address.owner)
        parts = [(head.id, head.seq)]
        while head.parent is not None and head.inherited is not None:
            parts.insert(0, (head.parent, head.inherited))
            head = await self._log.head(head.parent, address.owner)
        records: list[Record] = []
        for session, through in parts:
            records += await read_through(_reader(self._log, session, kinds), after=0, through=through)
        return records

    async def fork(self, parent: SessionAddress, *, inherit: bool) -> SessionView:
        """See the port."""
        child = NewSession(new_session_id(), parent.owner)
        await self._log.fork(child, parent.id, inherit=inherit)
        return await self.view(SessionAddress(child.id, parent.owner))

    async def remove(self, address: SessionAddress) -> Sequence[SessionId]:
        """See the port."""
        removed = await self._log.remove(address.id, address.owner)
        for writer in list(self._writers.values()):
            if writer.session.id in removed:
                writer.lose("removed")
        for session in removed:
            self._door.forget(session)
            self._news.close(session)
        return removed

    async def lookup(self, address: SessionAddress, key: str) -> TurnId | None:
        """See the port."""
        return await self._log.find_turn(address.id, address.owner, key)

    async def transact(
        self, address: SessionAddress, decide: Decide, *, after: int = 0, kinds: Sequence[str] | None = None
    ) -> Any:
        """See the port."""

        async def append(drafts: Sequence[Draft], revision: int) -> None:
            committed = await self._log.commit(address.id, address.owner, drafts, expect=revision)
            self._news.tell(address.id, committed.seq)

        transaction = Transaction(
            head=lambda: self._log.head(address.id, address.owner),
            read=_reader(self._log, address.id, kinds),
            append=append,
        )
        return await transaction.run(decide, after=after, retries=self._retries)

    async def changes(self, address: SessionAddress) -> AsyncIterator[int]:
        """See the port."""
        await self._log.head(address.id, address.owner)
        with self._news.listen(address.id) as ear:
            async for seq in ear:
                yield seq

    # --- the inbox ---------------------------------------------------------------------------------------------

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
        """See the port."""
        item = Delivery(address.id, address.owner, id, source, content, meta, agent, agent_revision)
        self._inbox.check(item)
        await self._reap(await self._log.head(address.id, address.owner))
        delivered = await self._inbox.deliver(item)
        self._news.tell(address.id, delivered.seq)
        return delivered

    async def drain(
        self,
        address: SessionAddress,
        run: RunInbox,
        *,
        max_turns: int = MAX_TURNS_DEFAULT,
        meta: Mapping[str, Any] | None = None,
    ) -> Drained:
        """See the port."""
        return await drain_inbox(self, address, run, max_turns=max_turns, meta=meta)

    # --- turns -------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def begin(
        self, address: SessionAddress, turn: NewTurn | InboxTurn
    ) -> AsyncIterator[QueuedTurnWriter]:
        """See the port."""
        with self._turns.beginning():
            begun, sent_at, claimed = await self._begin(address, turn)
            writer = self._hold(begun, sent_at, claimed)
        async with self._scope(begun, writer):
            yield writer

    async def cancel(self, address: SessionAddress, turn: int) -> bool:
        """See the port."""
        head = await self._log.head(address.id, address.owner)
        if head.open is None:
            return False
        open_turn = TurnId(head.open.turn_id)
        view = await self._turn(head, open_turn)
        if view.number != turn:
            return False
        if await self._reap(head):
            return False
        cancelled = await self._queue.cancel(open_turn, address.owner)
        self._news.tell(address.id, cancelled.after)
        writer = self._writers.get(open_turn)
        if writer is not None and cancelled.took_effect:
            writer.lose("cancelled")
        return cancelled.took_effect

    async def _begin(
        self, address: SessionAddress, turn: NewTurn | InboxTurn
    ) -> tuple[Begun, float, Sequence[str]]:
        has_reaped = False
        while True:
            admission, started = await self._inbox.admission(address, turn)
            try:
                begun, sent_at = await self._door.begin(admission, [started])
                return begun, sent_at, admission.claims
            except InboxMoved:  # another turn took or gave back items meanwhile
                continue
            except SessionBusy:
                head = await self._log.head(address.id, address.owner)
                if has_reaped or not await self._reap(head):
                    raise
                has_reaped = True

    def _hold(self, begun: Begun, sent_at: float, claimed: Sequence[str]) -> QueuedTurnWriter:
        claim, session = begun.claim, begun.claim.session_id

        def note_commit(seq: int, sent_at: float) -> None:
            self._news.tell(session, seq)
            if self._leases is not None:
                self._leases.note_commit(claim, sent_at)

        def note_close(reason: CloseReason) -> None:
            if self._leases is not None:
                self._leases.drop(claim)

        writer = QueuedTurnWriter(
            self._queue,
            self._log,
            claim,
            rules=self._rules,
            ears=WriterEars(on_commit=note_commit, on_close=note_close),
            opened=begun.opened,
            claimed=claimed,
        )
        self._writers[claim.turn_id] = writer
        if self._leases is not None:
            self._leases.hold(claim, sent_at, writer)
        self._news.tell(session, begun.opened.seq)
        return writer

    async def _leave(self, begun: Begun, writer: QueuedTurnWriter, error: BaseException | None) -> None:
        try:
            if not await writer.close_scope(error):
                self._door.let_go(begun.claim)
        finally:
            self._writers.pop(begun.claim.turn_id, None)

    # --- what is held ------------------------------------------------------------------------------------------

    async def _view(self, head: Head) -> SessionView:
        return SessionView(
            address=SessionAddress(head.id, head.owner),
            turns=head.turns,
            title=head.title,
            open=await self._open_view(head),
            pending=head.inbox_waiting,
            seq=head.seq,
            meta=head.meta,
            created_at=head.created_at,
            updated_at=head.updated_at,
        )

    async def _open_view(self, head: Head) -> OpenTurnView | None:
        """The open turn, if someone holds it or another attempt may come; asking changes nothing (SES-122, 124)."""
        if head.open is None:
            return None
        turn_id = TurnId(head.open.turn_id)
        view = await self._turn(head, turn_id)
        if view.number is None or not view.is_open or self._door.has_let_go(head.id, turn_id):
            return None
        if not view.recovering and not is_held(view, self._liveness):
            return None
        return OpenTurnView(view.number, turn_id, view.recovering)

    async def _turn(self, head: Head, turn_id: TurnId) -> TurnView:
        try:
            return await self._queue.get(turn_id, head.owner)
        except TurnMissing as error:  # the session was removed since its head was read
            raise SessionMissing("no such session", session=head.id) from error

    async def _reap(self, head: Head) -> bool:
        """Close the open turn as interrupted if nobody holds it and the store cannot know; True when it was closed."""
        if head.open is None:
            return False
        turn_id, fence = TurnId(head.open.turn_id), Fence(head.open.epoch, head.open.token)
        if self._door.has_let_go(head.id, turn_id):
            await self._door.end_let_go(head.id)
            return True
        view = await self._turn(head, turn_id)
        if view.leased or is_held(view, self._liveness):
            return False
        return await self._queue.abandon(turn_id, fence)


def _reader(
    log: SessionLog, session: SessionId, kinds: Sequence[str] | None
) -> Callable[[int], Awaitable[Sequence[Record]]]:
    return lambda after: log.read(session, after=after, kinds=kinds)


def _rules_of(ownership: Ownership, retries: int) -> WriterRules:
    if not isinstance(ownership, LeaseOwnership):
        return WriterRules(retries=retries, patience_s=PATIENCE_S)
    return WriterRules(
        retries=retries, extend_s=ownership.lease_s if ownership.renew == "on-commit" else None
    )

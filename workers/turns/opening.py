"""Opens a claimed turn, or takes over what an earlier attempt opened, and makes the turn that its body gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from shared.domain.errors import CorruptRecord, InboxMoved
from shared.domain.failpoints import Failpoints
from shared.domain.ids import SessionId
from shared.host.port import AdmittedTurn
from shared.host.writer import QueuedTurnWriter, origin_of
from shared.inbox.message import message_of, oldest_that_fit
from shared.inbox.port import Inbox, InboxItem
from shared.sessions.log import READ_MAX_RECORDS, TITLE_CHARS, SessionLog
from shared.sessions.records import Record
from shared.sessions.vocabulary import MEMORY_KINDS, Payload, TurnStarted, UserMessage, draft_of
from shared.turns.admission import TurnAdmission
from shared.turns.queue import CallEntry, Claim, Opened, TurnQueue
from workers.context.history import HISTORY_PAGE_RECORDS, History, read_turns, room_for_history
from workers.context.history_cache import HistoryCache
from workers.context.lineage import LineageReader
from workers.context.transcript import Transcript, fold
from workers.turns.body.memory import TurnMemory
from workers.turns.body.turn import HostTurn
from workers.turns.journal import WholeTurnJournal, until_known
from workers.turns.loop import LoopParts, StepLoop
from workers.turns.next_action import AskModel, NextAction, TurnLog, next_action, read_turn
from workers.turns.progress import Progress


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """An open turn that is ours: what its body gets, and what the log says is to be done next.

    ``history`` are the turns before one that this process opened itself, for whoever keeps them.
    """

    turn: HostTurn
    action: NextAction
    taken_over: bool = False
    history: History | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Opener:
    """Opens the turns of one process."""

    queue: TurnQueue
    log: SessionLog
    inbox: Inbox
    failpoints: Failpoints
    histories: HistoryCache
    admission: TurnAdmission | None = None

    async def open(self, claim: Claim, parts: LoopParts, writer: QueuedTurnWriter) -> OpenTurn:
        """Open the turn, with the first request's header in the same commit when no host's code comes first.

        An inbox turn claims the oldest items that wait, as many as fit, as it opens. Raises ``NothingPending`` when none does, and
        ``TurnRefused`` of the host's admission: the row is finished then, and nothing of it is in the log.
        """
        if claim.number is not None:
            return await self._stand(claim, parts, writer, await writer.open([], title=None))
        while True:
            started = await self._first_record(claim)
            try:
                return await self._open(claim, parts, writer, started)
            except InboxMoved:  # another turn took or gave back items meanwhile
                continue

    async def open_bare(self, claim: Claim, writer: QueuedTurnWriter, *, whole: bool) -> None:
        """Open the turn for its end alone, or take it over; ``whole`` says that it would have been kept as a whole."""
        while True:
            started = None if claim.number is not None else await self._first_record(claim)
            try:
                await self._send(claim, writer, _as_whole(started) if whole and started else started)
            except InboxMoved:
                continue
            return

    async def _first_record(self, claim: Claim) -> TurnStarted:
        if claim.origin != "inbox":
            return started_of(claim)
        items = await until_known(partial(self.inbox.waiting, claim.session_id, claim.owner))
        await self.failpoints.hit("inbox.read")
        return started_of(claim, oldest_that_fit(items))

    async def _send(
        self,
        claim: Claim,
        writer: QueuedTurnWriter,
        started: TurnStarted | None,
        header: Sequence[Payload] = (),
    ) -> Opened:
        if started is None:
            return await writer.open([], title=None)
        return await writer.open(
            [draft_of(p) for p in (started, *header)],
            title=title_of(started),
            claims=started.claimed,
            admit=None if claim.origin == "user" else self.admission,
        )

    async def _open(
        self, claim: Claim, parts: LoopParts, writer: QueuedTurnWriter, started: TurnStarted
    ) -> OpenTurn:
        whole = isinstance(parts.journal, WholeTurnJournal)
        started = _as_whole(started) if whole else started
        history, shown = await self._history(claim, parts, started)
        # The number is given by the database as it opens; nothing in the first header depends on it.
        progress = Progress(shown.with_user(started.entry, started.user_message.text), number=0)
        prepared = parts.agent.use is None and not whole
        header = StepLoop(parts, parts.agent.policy, progress).step_header() if prepared else []
        opened = await self._send(claim, writer, started, header)
        if opened.result != "opened":
            return await self._stand(claim, parts, writer, opened)
        action = AskModel(0, prepared=prepared)
        progress = replace(progress, number=opened.number)
        return OpenTurn(self._turn(claim, parts, started, progress, action), action, history=history)

    async def _stand(
        self, claim: Claim, parts: LoopParts, writer: QueuedTurnWriter, opened: Opened
    ) -> OpenTurn:
        """Read where an open turn stands: after the takeover, so that nothing of the old holder can follow."""
        own = await self._read_turn(claim.session_id, opened)
        log = read_turn(own)
        if log.started is None:
            raise CorruptRecord("an open turn has no turn.started", session=claim.session_id)
        _, shown = await self._history(claim, parts, log.started, before=opened.started_seq)
        calls = await until_known(lambda: self.queue.calls(claim.session_id, claim.turn_id))
        parts.ledger.update((c.invocation_id, c) for c in calls)
        progress = Progress(
            fold(own, shown),
            number=opened.number,
            run=log.run,
            step=log.steps,
            run_calls=log.run_calls,
            calls=log.calls,
            entries=log.entries,
            usages=tuple(u.usage for u in log.usages),
        )
        action = next_action(log)
        turn = self._turn(claim, parts, log.started, progress, action, log)
        return OpenTurn(turn, action, taken_over=opened.result == "took-over")

    def _turn(
        self,
        claim: Claim,
        parts: LoopParts,
        started: TurnStarted,
        progress: Progress,
        action: NextAction,
        log: TurnLog | None = None,
    ) -> HostTurn:
        stored = log or TurnLog()
        memory = TurnMemory(
            parts.turn, started, progress, parts.journal, results=stored.results, contexts=stored.contexts
        )
        return HostTurn(
            parts,
            memory,
            admitted_of(claim, started, progress.number),
            stands=action,
            open_calls=partial(self.open_calls, claim),
        )

    async def open_calls(self, claim: Claim) -> Sequence[CallEntry]:
        """Read the turn's calls that never settled, as ``unknown``."""
        calls = await until_known(lambda: self.queue.calls(claim.session_id, claim.turn_id))
        return [replace(c, state="unknown") for c in calls if c.state in ("planned", "started")]

    async def _history(
        self, claim: Claim, parts: LoopParts, started: TurnStarted, *, before: int | None = None
    ) -> tuple[History, Transcript]:
        """Return the earlier turns and what of them, inherited ones too, this one shows: the same on every attempt."""
        room = room_for_history(parts.agent, started.user_message.text)
        # Only a log's end is remembered, and only of a log that stands by itself.
        if before is None and claim.inherits is False and claim.tail is not None:
            known = self.histories.take(claim.session_id, claim.tail)
            if known is not None and (shown := known.shown(room)) is not None:
                return known, shown
        reader = LineageReader(
            claim.session_id,
            lambda session, seq: until_known(
                partial(
                    self.log.read_back, session, before=seq, limit=HISTORY_PAGE_RECORDS, kinds=MEMORY_KINDS
                )
            ),
            lambda session: until_known(partial(self.log.head, session, claim.owner)),
            may_inherit=claim.inherits is not False,
        )
        history = await read_turns(reader, room_tokens=room, before=before)
        return history, history.shown(room) or Transcript()

    async def _read_turn(self, session_id: SessionId, opened: Opened) -> list[Record]:
        """Read all records of an open turn, page by page, from its first on."""
        records: list[Record] = []
        full = True
        while full:
            after = records[-1].seq if records else opened.started_seq - 1
            page = await until_known(partial(self.log.read, session_id, after=after, turn=opened.number))
            records.extend(page)
            full = len(page) == READ_MAX_RECORDS
        return records


def started_of(claim: Claim, items: Sequence[InboxItem] = ()) -> TurnStarted:
    """Return the record that opens a claimed turn; an inbox turn's message is made of ``items`` (INB-08)."""
    message = {"text": message_of(items)} if claim.origin == "inbox" else claim.message or {"text": ""}
    return TurnStarted(
        turn_id=str(claim.turn_id),
        run_id=claim.run_id,
        entry=f"{claim.run_id}:0",
        origin=origin_of(claim.origin),
        key=claim.key,
        user_message=UserMessage.model_validate(message),
        claimed=[item.id for item in items],
        command=None if claim.command is None else dict(claim.command),
        meta=None if claim.meta is None else dict(claim.meta),
        resumes=claim.resumes,
    )


def _as_whole(started: TurnStarted) -> TurnStarted:
    return started.model_copy(update={"history": "whole-turn"})


def title_of(started: TurnStarted) -> str | None:
    """Return the title that a session without one gets from its user's first message; what others wrote gives none."""
    return None if started.origin != "user" else started.user_message.text[:TITLE_CHARS] or None


def admitted_of(claim: Claim, started: TurnStarted, number: int) -> AdmittedTurn:
    """Return the turn as its body sees it admitted (TRN-40, TRN-41)."""
    return AdmittedTurn(
        turn_id=claim.turn_id,
        number=number,
        run_id=claim.run_id,
        origin=started.origin,
        message=started.user_message.model_dump(exclude_none=True),
        key=started.key,
        command=started.command,
        claimed=tuple(started.claimed),
        meta=started.meta or {},
        resumes=started.resumes,
    )

"""Opens a claimed turn, or takes over what an earlier attempt opened, and makes the turn that its body gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from shared.domain.errors import CorruptRecord
from shared.domain.ids import SessionId
from shared.host.port import AdmittedTurn
from shared.host.writer import QueuedTurnWriter
from shared.sessions.log import READ_MAX_RECORDS, TITLE_CHARS, SessionLog
from shared.sessions.records import Record
from shared.sessions.vocabulary import MEMORY_KINDS, TurnStarted, UserMessage, draft_of
from shared.turns.queue import CallEntry, Claim, Opened, TurnQueue
from workers.context.history import HISTORY_PAGE_RECORDS, read_history, room_for_history
from workers.context.transcript import Transcript, fold
from workers.turns.body.memory import TurnMemory
from workers.turns.body.turn import HostTurn
from workers.turns.journal import until_known
from workers.turns.loop import LoopParts, StepLoop
from workers.turns.next_action import AskModel, NextAction, TurnLog, next_action, read_turn
from workers.turns.progress import Progress


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """An open turn that is ours: what its body gets, and what the log says is to be done next."""

    turn: HostTurn
    action: NextAction
    taken_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Opener:
    """Opens the turns of one process."""

    queue: TurnQueue
    log: SessionLog

    async def open(self, claim: Claim, parts: LoopParts, writer: QueuedTurnWriter) -> OpenTurn:
        """Open the turn, with the first request's header in the same commit when no host's code comes first."""
        if claim.number is not None:
            return await self._stand(claim, parts, writer, await writer.open([], title=None))
        started = started_of(claim)
        history = await self._history(claim, parts, started)
        # The number is given by the database as it opens; nothing in the first header depends on it.
        progress = Progress(history.with_user(started.entry, started.user_message.text), number=0)
        prepared = parts.agent.use is None
        header = StepLoop(parts, parts.agent.policy, progress).step_header() if prepared else []
        opened = await writer.open([draft_of(p) for p in (started, *header)], title=title_of(started))
        if opened.result != "opened":
            return await self._stand(claim, parts, writer, opened)
        action = AskModel(0, prepared=prepared)
        progress = replace(progress, number=opened.number)
        return OpenTurn(self._turn(claim, parts, started, progress, action), action)

    async def _stand(
        self, claim: Claim, parts: LoopParts, writer: QueuedTurnWriter, opened: Opened
    ) -> OpenTurn:
        """Read where an open turn stands: after the takeover, so that nothing of the old holder can follow."""
        own = await self._read_turn(claim.session_id, opened)
        log = read_turn(own)
        if log.started is None:
            raise CorruptRecord("an open turn has no turn.started", session=claim.session_id)
        history = await self._history(claim, parts, log.started, before=opened.started_seq)
        calls = await until_known(lambda: self.queue.calls(claim.session_id, claim.turn_id))
        parts.ledger.update((c.invocation_id, c) for c in calls)
        progress = Progress(
            fold(own, history),
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
    ) -> Transcript:
        """Read what of the earlier turns this one shows: the same on every attempt, the log before it does not change."""
        return await read_history(
            lambda seq: until_known(
                partial(
                    self.log.read_back,
                    claim.session_id,
                    before=seq,
                    limit=HISTORY_PAGE_RECORDS,
                    kinds=MEMORY_KINDS,
                )
            ),
            room_tokens=room_for_history(parts.agent, started.user_message.text),
            before=before,
        )

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


def started_of(claim: Claim) -> TurnStarted:
    """Return the record that opens a claimed turn."""
    return TurnStarted(
        turn_id=str(claim.turn_id),
        run_id=claim.run_id,
        entry=f"{claim.run_id}:0",
        origin="user",
        key=claim.key,
        user_message=UserMessage.model_validate(claim.message or {"text": ""}),
        command=None if claim.command is None else dict(claim.command),
        meta=None if claim.meta is None else dict(claim.meta),
    )


def title_of(started: TurnStarted) -> str | None:
    """Return the title that a session without one gets from its first message."""
    return started.user_message.text[:TITLE_CHARS] or None


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

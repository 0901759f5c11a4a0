"""A reference model of the turn queue in plain values: it foretells every answer and everything that is stored.

It shares no code with the stores but the pure rule of resumes. What it leaves open is only the share of each owner in
a claim; it judges whether what a claim took could be had, and whether something was left that had to be taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from shared.domain.ids import OwnerId, RunId, SessionId, TurnId, WorkerId
from shared.sessions.records import draft
from shared.turns.resume import PastTurn, resume_refusal
from tests.stateful.turn_rows import ALIVE_LOSSES_FREE, LIVE, SETTLED, Session, Turn, head_state, row_state
from tests.stateful.values import (
    ATTEMPTS_MAX,
    QUEUED_PER_OWNER,
    QUEUED_PER_SESSION,
    RUNNING_PER_OWNER,
    Answer,
    Asked,
    Hold,
    Stored,
    Taken,
    Write,
    refused,
)


class TurnModel:
    """What the store must hold, and what it must answer."""

    def __init__(self) -> None:
        self.sessions: dict[SessionId, Session] = {}
        self.turns: dict[TurnId, Turn] = {}
        self.keys: dict[tuple[SessionId, str], Turn] = {}
        self.runs: set[tuple[SessionId, RunId]] = set()
        self.heard: set[WorkerId] = set()
        self._moments = 0

    def moment(self) -> int:
        """Return the next moment of the store's time."""
        self._moments += 1
        return self._moments

    def of_session(self, session: Session) -> Iterator[Turn]:
        return (turn for turn in self.turns.values() if turn.session is session)

    def unfinished(self, session: Session) -> list[Turn]:
        return sorted((t for t in self.of_session(session) if not t.finished), key=lambda t: t.position)

    def live(self, session: Session) -> Turn | None:
        return next((turn for turn in self.of_session(session) if turn.status in LIVE), None)

    def may_write(self, hold: Hold) -> bool:
        """Whether this claim owns its turn now."""
        turn = self.turns.get(hold.turn)
        return (
            turn is not None
            and turn.status == "running"
            and turn.passed is None
            and turn.epoch == hold.epoch
            and not hold.forged
        )

    # Doors

    def create(self, session: SessionId, owner: OwnerId) -> Answer:
        self.sessions[session] = Session(session, owner)
        return ("created", session)

    def admit(self, asked: Asked) -> Answer:
        session = self.sessions.get(asked.session)
        if session is None or session.owner != asked.owner:
            return refused("session.missing")
        key = (asked.session, asked.key or str(asked.turn))
        if (first := self.keys.get(key)) is not None:
            if (first.asked.text, first.asked.resumes) != (asked.text, asked.resumes):
                return refused("turn.key-conflict")
            return self._receipt(first, asked)
        if (asked.session, asked.run) in self.runs:
            return refused("turn.run-reused")
        self._reap_dead(session)
        waiting = self.unfinished(session)
        if waiting and asked.on_busy == "reject":
            return refused("session.busy")
        interrupts = asked.on_busy == "interrupt"
        if no := self._unresumable(session, asked.resumes, interrupts=interrupts):
            return no
        # What an interruption ends waits no more: it makes room.
        counted = [] if interrupts else waiting
        owed = [t for t in self.turns.values() if t.session.owner == asked.owner and t.is_owed]
        if len(counted) >= QUEUED_PER_SESSION:
            return refused("turn.queue-full")
        if len(owed) - (sum(t.is_owed for t in waiting) if interrupts else 0) >= QUEUED_PER_OWNER:
            return refused("turn.queue-full")
        superseded = self._supersede(waiting) if interrupts else []
        waiting = counted
        turn = self._insert(session, asked, "queued" if waiting else "ready")
        for other in waiting:
            other.priority = min(other.priority, asked.priority)
        return self._receipt(turn, asked, superseded)

    def begin(self, asked: Asked, write: Write, *, leased: bool) -> Answer:
        """Open a turn at once in the process that ``write.hold`` names."""
        session, hold = self.sessions.get(asked.session), write.hold
        if session is None or session.owner != asked.owner:
            return refused("session.missing")
        key = (asked.session, asked.key or str(asked.turn))
        if (first := self.keys.get(key)) is not None:
            if (first.asked.text, first.asked.resumes) != (asked.text, asked.resumes):
                return refused("turn.key-conflict")
            if first.id != asked.turn:
                return refused("turn.duplicate")
            if session.open == hold and self.may_write(hold):
                return ("begun", "adopted", first.number, len(session.log))
            return self._refusal(hold)
        if (asked.session, asked.run) in self.runs:
            return refused("turn.run-reused")
        self._reap_dead(session)
        if self.unfinished(session):
            return refused("session.busy")
        if no := self._unresumable(session, asked.resumes):
            return no
        turn = self._insert(session, asked, "running")
        turn.epoch, turn.holder, turn.unleased = 1, hold.worker, not leased
        return ("begun", "opened", *self._open_log(turn, write))

    def _reap_dead(self, session: Session) -> None:
        live = self.live(session)
        if live is not None and live.dead:
            self._reap(live)

    def _unresumable(self, session: Session, n: int | None, *, interrupts: bool = False) -> Answer | None:
        """Judge a resume by the pure rule over all turns that opened, as an interruption would leave them."""
        if n is None:
            return None
        opened = [t for t in self.turns.values() if t.session is session and t.number is not None]
        past = [
            PastTurn(t.number or 0, "user", cast(Any, outcome_of(t, interrupts)), t.asked.resumes)
            for t in opened
        ]
        if (reason := resume_refusal(n, past)) is not None:
            return refused("turn.not-resumable", reason)
        unfinished = any(t.number == n and t.outcome is None for t in past)
        return refused("session.busy") if unfinished else None

    def _insert(self, session: Session, asked: Asked, status: str) -> Turn:
        position, after = session.next_position, len(session.log)
        turn = Turn(asked, session, position, after, status, due=self.moment(), priority=asked.priority)
        session.next_position += 1
        self.turns[turn.id] = self.keys[asked.session, asked.key or str(asked.turn)] = turn
        self.runs.add((asked.session, asked.run))
        return turn

    def _open_log(self, turn: Turn, write: Write) -> tuple[int, int]:
        session = turn.session
        turn.number, session.next_number = session.next_number, session.next_number + 1
        session.open = write.hold
        seq = session.append(turn.number, records_of(write))
        session.last_commit = (write.commit_id, seq)
        return turn.number, seq

    def abandon(self, hold: Hold) -> Answer:
        """Close a turn held without a lease: its process is known to be gone."""
        turn = self.turns.get(hold.turn)
        if turn is None or not turn.unleased or not self.may_write(hold) or turn.session.open != hold:
            return ("abandoned", False)
        self._close(turn, turn.replied or "interrupted", None if turn.replied else "turn.lease")
        return ("abandoned", True)

    def _supersede(self, unfinished: Sequence[Turn]) -> list[tuple[TurnId, WorkerId]]:
        """End every unfinished turn of a session; return who held what."""
        held = sorted((t.id, t.holder) for t in unfinished if t.status == "running" and t.holder is not None)
        for turn in unfinished:
            if not turn.is_open:
                turn.finish("cancelled", code="turn.superseded")
        for turn in unfinished:
            if turn.is_open:
                self._close(turn, turn.replied or "cancelled", None if turn.replied else "turn.superseded")
        return held

    def _receipt(
        self, turn: Turn, asked: Asked, superseded: Sequence[tuple[TurnId, WorkerId]] = ()
    ) -> Answer:
        duplicate = turn.id != asked.turn
        return (
            "receipt",
            turn.id,
            turn.asked.run,
            turn.session.id,
            turn.position,
            turn.status,
            turn.after,
            duplicate,
            list(superseded),
        )

    def cancel(self, turn_id: TurnId, owner: OwnerId) -> Answer:
        turn = self.turns.get(turn_id)
        if turn is None or turn.session.owner != owner:
            return refused("turn.missing")
        holder = turn.holder
        reason = self._cancel(turn)
        told = (turn.status, turn.outcome, turn.code, holder, turn.session.id, len(turn.session.log))
        return ("cancel", reason == "cancelled", reason, *told)

    def _cancel(self, turn: Turn) -> str:
        if turn.finished:
            return "cancelled" if "cancelled" in (turn.status, turn.outcome) else "finished"
        if not turn.is_open:
            turn.finish("cancelled")
            self._promote(turn.session)
            return "cancelled"
        if turn.replied is not None:
            self._close(turn, turn.replied, None)
            return "replied"
        if turn.dead:
            self._reap(turn)
            return "reaped"
        self._close(turn, "cancelled", None)
        return "cancelled"

    def commit(self, session: SessionId, records: Sequence[tuple[str, str]]) -> Answer:
        found = self.sessions[session]
        return ("committed", found.append(None, records), found.revision)

    def remove(self, session: SessionId) -> Answer:
        found = self.sessions.pop(session, None)
        self.turns = {i: t for i, t in self.turns.items() if t.session is not found}
        self.keys = {k: t for k, t in self.keys.items() if t.session is not found}
        self.runs = {run for run in self.runs if run[0] != session}
        return ("removed", [session] if found is not None else [])

    # Sweeps

    def reap(self) -> Answer:
        dead = [turn for turn in self.turns.values() if turn.dead]
        for turn in dead:
            self._reap(turn)
        return ("reaped", sorted((t.id, t.status, t.outcome, t.code) for t in dead))

    def _reap(self, turn: Turn) -> None:
        if turn.is_open:
            self._close(turn, turn.replied or "interrupted", None if turn.replied else "turn.lease")
        elif turn.attempts >= ATTEMPTS_MAX - 1 or turn.abandoned:
            turn.attempts += 1
            turn.finish("ended", "interrupted", "turn.lease")
            self._promote(turn.session)
        else:
            turn.attempts += int(turn.suspect)
            turn.suspect, turn.status = True, "ready"
            turn.free()

    def expire(self) -> Answer:
        late = [
            t for t in self.turns.values() if t.late and t.number is None and t.status in ("queued", "ready")
        ]
        for turn in late:
            self._expire(turn)
        return ("expired", len(late))

    def _expire(self, turn: Turn) -> None:
        turn.finish("expired", code="turn.deadline")
        self._promote(turn.session)

    def _close(self, turn: Turn, outcome: str, code: str | None) -> None:
        text = draft("turn.ended", {"v": 1, "reason": outcome} | ({"code": code} if code else {})).text
        turn.session.append(turn.number, [("turn.ended", text)])
        turn.finish("ended", outcome, code)
        turn.session.open = None
        self._promote(turn.session)

    def _promote(self, session: Session) -> TurnId | None:
        waiting = self.unfinished(session)
        if not waiting or waiting[0].status != "queued":
            return None
        waiting[0].status = "ready"
        return waiting[0].id

    # Claims

    def judge_claim(
        self, worker: WorkerId, places: int, suspects: int, revisions: Sequence[str], taken: Sequence[Taken]
    ) -> None:
        """Require that a claim took what could be had, in order, and left nothing that it had room for; then apply it."""
        lost = sorted(
            (t for t in self._served(revisions) if t.passed is not None and not t.dead),
            key=lambda t: t.passed or 0,
        )[: min(places, suspects)]
        assert [t.turn for t in taken if t.lost] == [t.id for t in lost], "lost turns, oldest first"
        left, room = places - len(lost), 0
        for owner in sorted({t.session.owner for t in self.turns.values()}):
            due = self._due(owner, revisions)
            mine = [t.turn for t in taken if not t.lost and self.turns[t.turn].session.owner == owner]
            assert mine == [t.id for t in due[: len(mine)]], "an owner's due turns in their order"
            room += min(len(due), self._room(owner))
            assert len(mine) <= self._room(owner), "no more than an owner's cap"
        assert len(taken) - len(lost) == min(left, room), "what can be had is taken, and no more"
        for turn in lost:
            self._count_loss(turn)
        for one in taken:
            turn = self.turns[one.turn]
            turn.status, turn.epoch, turn.holder = "running", turn.epoch + 1, worker
            turn.passed, turn.abandoned = None, False
            told = (one.epoch, one.number, one.attempts, one.suspect)
            assert told == (turn.epoch, turn.number, turn.attempts, turn.suspect), "the claim's own words"

    def _served(self, revisions: Sequence[str]) -> list[Turn]:
        return [t for t in self.turns.values() if t.asked.revision in revisions]

    def _due(self, owner: OwnerId, revisions: Sequence[str]) -> list[Turn]:
        due = [t for t in self._served(revisions) if t.status == "ready" and t.due is not None]
        return sorted((t for t in due if t.session.owner == owner), key=lambda t: (t.priority, t.due))

    def _room(self, owner: OwnerId) -> int:
        running = sum(t.status == "running" and t.session.owner == owner for t in self.turns.values())
        return max(0, RUNNING_PER_OWNER - running)

    def _count_loss(self, turn: Turn) -> None:
        if turn.holder in self.heard:
            turn.attempts += int(turn.alive_losses >= ALIVE_LOSSES_FREE)
            turn.alive_losses += 1
        else:
            turn.attempts += int(turn.suspect)
            turn.suspect, turn.alive_losses = True, 0

    # Holders

    def write(self, write: Write) -> Answer:
        """Foretell the answer of any fenced write."""
        match write.kind:
            case "open":
                return self._open(write)
            case "append":
                return self._append(write)
            case _:
                return self._end(write)

    def _refusal(self, hold: Hold) -> Answer:
        turn = self.turns.get(hold.turn)
        reason = "removed" if turn is None else turn.loss()
        return refused("turn.fence-lost") if reason == "lost" else refused("turn.closed", reason)

    def _open(self, write: Write) -> Answer:
        hold = write.hold
        if not self.may_write(hold):
            # A refusal whose answer was lost is told again.
            told = self.turns[hold.turn].refusal if hold.turn in self.turns else None
            return told or self._refusal(hold)
        turn = self.turns[hold.turn]
        session = turn.session
        if turn.is_open:
            result = "adopted" if session.open == hold else "took-over"
            if session.open != hold:
                session.open, session.last_commit = hold, None
            return ("opened", result, turn.number, len(session.log))
        assert session.open is None, "nobody else is open while a row of the session runs"
        if turn.late:
            self._expire(turn)
            return refused("turn.closed", "ended")
        if no := self._unresumable(session, turn.asked.resumes):
            turn.refusal = no
            turn.finish("refused", code="turn.not-resumable")
            self._promote(session)
            return no
        return ("opened", "opened", *self._open_log(turn, write))

    def _append(self, write: Write) -> Answer:
        if not self.may_write(write.hold) or self.turns[write.hold.turn].session.open != write.hold:
            return self._refusal(write.hold)
        turn = self.turns[write.hold.turn]
        last = turn.session.last_commit
        if last is not None and last[0] == write.commit_id:
            return ("appended", last[1])
        seq = self._store(turn, write)
        if write.stepped:
            turn.attempts, turn.suspect, turn.alive_losses = 0, False, 0
        return ("appended", seq)

    def _end(self, write: Write) -> Answer:
        turn = self.turns.get(write.hold.turn)
        if turn is None or not self.may_write(write.hold) or turn.session.open != write.hold:
            if turn is not None and turn.end is not None and turn.end[0] == write.commit_id:
                live = self.live(turn.session)
                return ("ended", turn.end[1], live.id if live and live.status == "ready" else None)
            return self._refusal(write.hold)
        seq = self._store(turn, write)
        turn.finish("ended", write.outcome)
        turn.end, turn.session.open = (write.commit_id, seq), None
        return ("ended", seq, self._promote(turn.session))

    def _store(self, turn: Turn, write: Write) -> int:
        seq = turn.session.append(turn.number, records_of(write))
        turn.session.last_commit = (write.commit_id, seq)
        if any(one.kind == "turn.reply" for one in write.drafts):
            turn.replied = write.outcome
        for call in write.calls:
            state, _ = turn.ledger.get(call.invocation_id, ("planned", None))
            if state not in SETTLED:
                turn.ledger[call.invocation_id] = (call.state, call.result)
        return seq

    def release(self, hold: Hold, *, later: bool) -> Answer:
        if not self.may_write(hold):
            return ("released", False)
        turn = self.turns[hold.turn]
        turn.status = "ready"
        turn.free()
        if later:
            turn.due = None
        return ("released", True)

    def renew(self, holds: Sequence[Hold]) -> Answer:
        renewed = sorted(hold.turn for hold in holds if self.may_write(hold))
        return ("renewed", renewed, sorted({hold.turn for hold in holds} - set(renewed)))

    def watch(self, worker: WorkerId, holds: Sequence[Hold]) -> Answer:
        known = {hold.turn for hold in holds}
        lost = []
        for hold in holds:
            turn = self.turns.get(hold.turn)
            if turn is None or turn.status != "running" or turn.epoch != hold.epoch:
                lost.append((hold.turn, "removed" if turn is None else turn.loss()))
        orphans = [
            (t.id, t.epoch)
            for t in self.turns.values()
            if t.holder == worker and t.passed is None and t.id not in known
        ]
        return ("watched", sorted(lost), sorted(orphans))

    def stored(self) -> Stored:
        """Return what every store must hold now."""
        sessions = [self.sessions[session_id] for session_id in sorted(self.sessions)]
        turns = sorted(self.turns.values(), key=lambda t: (t.session.id, t.position))
        return Stored(
            heads=[head_state(session) for session in sessions],
            rows=[row_state(turn) for turn in turns],
            records=[(s.id, n, *record) for s in sessions for n, record in enumerate(s.log, 1)],
            ledger=[(t.id, name, *t.ledger[name]) for t in _by_id(turns) for name in sorted(t.ledger)],
        )


def outcome_of(turn: Turn, interrupts: bool) -> str | None:
    """How a turn ended, or would by an interruption."""
    return turn.outcome or ((turn.replied or "cancelled") if interrupts else None)


def records_of(write: Write) -> list[tuple[str, str]]:
    """Return what a write adds to the log."""
    return [(one.kind, one.text) for one in write.drafts]


def _by_id(turns: Sequence[Turn]) -> list[Turn]:
    return sorted(turns, key=lambda turn: turn.id)

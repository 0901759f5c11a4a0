"""The turn queue's machine once more, with the few steps that let turns come far, stop and be resumed.

Among all steps there are, a turn seldom makes two calls, and a resume that was answered hardly ever comes again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from shared.domain.ids import WorkerId
from shared.turns.queue import CallState, Outcome
from shared.turns.resume import CONTINUABLE
from tests.stateful.drawing import CALL_STATES, OUTCOMES, losses, seldom, workers
from tests.stateful.queue_machine import TurnQueueMachine
from tests.stateful.searching import at, often, picks
from tests.stateful.turn_rows import Turn
from tests.stateful.values import Hold

far = st.sampled_from(("call", "call", "reply", "end", "end", "step"))
ways = st.sampled_from(("begin", "begin", "enqueue", "interrupt"))


class ResumingMachine(TurnQueueMachine):
    """Fewer steps, of which each leads on from what the others left."""

    def a_turn_is_resumed(self, pick: int, way: str, worker: WorkerId) -> None:
        """Mostly one that the last turn of its session leaves in doubt; a host begins it, or it is admitted."""
        opened = [turn for turn in self.model.turns.values() if turn.number is not None]
        if found := (self._in_doubt(opened) if pick % 6 else []) or opened:
            turn = at(found, pick)
            session = sorted(self.model.sessions).index(turn.session.id)
            if way == "begin":
                self.a_host_begins(session, leased=True, worker=worker, resumes=turn.number)
            else:
                self.admit(session, on_busy=way, resumes=turn.number)

    def _in_doubt(self, opened: Sequence[Turn]) -> list[Turn]:
        """Turns that stopped, with nothing after them or a resume of them: how that ended decides."""
        last = {turn.session.id: turn for turn in sorted(opened, key=lambda turn: turn.number or 0)}
        stopped = [turn for turn in opened if turn.outcome in CONTINUABLE]
        return [
            t for t in stopped if t.number in (last[t.session.id].number, last[t.session.id].asked.resumes)
        ]

    def an_open_turn_is_cancelled(self, pick: int) -> None:
        if opened := [turn for turn in self.model.turns.values() if turn.is_open]:
            turn = at(opened, pick)
            self.require(
                self.model.cancel(turn.id, turn.session.owner),
                lambda side: side.cancel(turn.id, turn.session.owner),
            )

    def a_call_goes_on(self, pick: int, state: CallState) -> None:
        """A turn that is open makes its first call, or says once more what became of one, settled or not."""
        if held := self._writing():
            made = [hold for hold in held if self.model.turns[hold.turn].ledger]
            hold = at(made or held, pick)
            calls = sorted(self.model.turns[hold.turn].ledger)
            self.send(self.calling(hold, at(calls, pick) if calls else "call 0", state))

    def a_resume_ends(self, pick: int, outcome: Outcome) -> None:
        if held := [hold for hold in self._writing() if self.model.turns[hold.turn].asked.resumes]:
            self.send(self.ending(at(held, pick), outcome))

    def _writing(self) -> list[Hold]:
        """Claims that own a turn which they opened."""
        return [hold for hold in self.holds() if self.model.may_write(hold) and hold in self.last]

    drawn = st.one_of(
        *often(1, TurnQueueMachine.a_turn_is_admitted, pick=picks, on_worker_loss=losses),
        *often(1, TurnQueueMachine.a_host_begins, pick=picks, leased=st.booleans(), worker=workers),
        *often(6, TurnQueueMachine.a_holder_goes_on, pick=picks, step=far),
        *often(3, a_call_goes_on, pick=picks, state=st.sampled_from(CALL_STATES)),
        *often(5, a_turn_is_resumed, pick=picks, way=ways, worker=workers),
        *often(2, a_resume_ends, pick=picks, outcome=st.sampled_from(OUTCOMES)),
        *often(1, an_open_turn_is_cancelled, pick=picks),
        *often(1, TurnQueueMachine.a_lease_passes_and_someone_else_looks, pick=picks),
        *often(1, TurnQueueMachine.a_sweep_passes, late=seldom),
        *often(
            1, TurnQueueMachine.an_answer_is_lost, pick=picks, what=st.sampled_from(("write", "end", "begin"))
        ),
    )

    @rule(step=drawn)
    def a_step_is_taken(self, step: tuple[str, Mapping[str, Any]]) -> None:
        name, given = step
        getattr(self, name)(**given)

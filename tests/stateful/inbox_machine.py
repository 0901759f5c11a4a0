"""Inbox rows, tasks and debts under a state machine: two stores must answer and hold alike, and nothing may be lost or doubled.

No model foretells the answers; what must hold whatever came before is required of each store after every step.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from shared.domain.ids import OwnerId, SessionId, WorkerId, new_run_id, new_turn_id
from shared.tasks.port import NewTask, item_id, new_task
from shared.turns.queue import OnBusy, Outcome
from tests.stateful.inbox_sides import Held, Holdings, InboxSide
from tests.stateful.searching import at, often, picks
from tests.stateful.sides import Side
from tests.stateful.values import Answer
from tests.stateful.whole import FINISHED

OWNER = OwnerId("owner")
SESSIONS = tuple(SessionId(f"session-{n}") for n in range(2))
TASKS_MAX = 5
WORKERS = (WorkerId("worker 0"), WorkerId("worker 1"))
DONE = ("completed", "partial", "cancelled")

ends = st.sampled_from(("completed", "completed", "partial", "failed", "interrupted"))
busy = st.sampled_from(("enqueue", "enqueue", "reject", "interrupt"))


class InboxMachine(RuleBasedStateMachine):
    """Two sessions and their tasks; whoever claims takes all that is ready, so that no order of owners matters."""

    def __init__(self, *sides: Side) -> None:
        super().__init__()
        self.sides = [InboxSide(side) for side in sides]
        self.held: list[Held] = []
        self.tasks: list[NewTask] = []
        self.delivered: set[tuple[SessionId, str]] = set()
        self.cancelled: set[SessionId] = set()
        self._numbers = 0
        self.held_so_far = False

    @initialize()
    def begin(self) -> None:
        for side in self.sides:
            side.run(side.begin(OWNER, SESSIONS))
        self.held_so_far = True

    def ask(self, call: Callable[[InboxSide], Coroutine[Any, Any, Answer]]) -> Answer:
        """Make the same call of every store and require one answer."""
        self.held_so_far = False
        answers = [side.run(side.answered(call(side))) for side in self.sides]
        assert answers == answers[:1] * len(answers), "the stores answer alike"
        self.held_so_far = True
        return answers[0]

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def an_item_is_delivered(self, pick: int, item: int) -> None:
        """One of a few ids, so that some come again, also after they were answered."""
        session, name = at(SESSIONS, pick), f"item {item}"
        if self.ask(lambda side: side.deliver(session, name))[0] == "delivered":
            self.delivered.add((session, name))

    def a_user_speaks(self, pick: int, on_busy: OnBusy) -> None:
        session, turn, run = at(SESSIONS, pick), new_turn_id(), new_run_id()
        self.ask(lambda side: side.admit(session, turn, run, on_busy))

    def a_task_is_started(self, pick: int, again: bool) -> None:
        if again and self.tasks:
            task = at(self.tasks, pick)
        elif len(self.tasks) < TASKS_MAX:
            name = SessionId(f"task-{self.number()}")
            task = new_task(at(SESSIONS, pick), OWNER, "dig", "spawn", task_id=name)
        else:
            return
        if self.ask(lambda side: side.start(task))[0] == "started" and task not in self.tasks:
            self.tasks.append(task)

    def a_worker_claims(self, worker: int) -> None:
        n = len(self.held)
        answer = self.ask(lambda side: side.claim(at(WORKERS, worker), n))
        self.held += [Held(n + i, *of) for i, of in enumerate(cast(Any, answer[1]))]

    def a_holder_goes_on(self, pick: int, step: str, outcome: Outcome) -> None:
        """Also one whose turn is another's by now, or over, or that was opened before."""
        if self.held:
            held, n = at(self.held[::-1], pick), self.number()
            match step:
                case "open":
                    self.ask(lambda side: side.open(held))
                case "open with the oldest":
                    self.ask(lambda side: side.open(held, most=1))
                case "open wrongly":
                    self.ask(lambda side: side.open(held, claims=["nothing"]))
                case "write":
                    self.ask(lambda side: side.append(held, n))
                case _:
                    self.ask(lambda side: side.end(held, n, outcome))

    def a_lease_passes(self, pick: int, reaped: bool) -> None:
        session = at([*SESSIONS, *(task.task_id for task in self.tasks)], pick)
        self.ask(lambda side: side.pass_lease(session))
        if reaped:
            self.ask(lambda side: side.reap())

    def a_turn_is_cancelled(self, pick: int) -> None:
        session = at([*SESSIONS, *(task.task_id for task in self.tasks)], pick)
        self.ask(lambda side: side.cancel(session))

    def a_task_is_cancelled(self, pick: int) -> None:
        if self.tasks:
            task = at(self.tasks, pick)
            [row] = [
                r for r in self.sides[0].run(self.sides[0].look()).stored.rows if r.session == task.task_id
            ]
            answer = self.ask(lambda side: side.cancel_task(task))
            # One whose turn was cancelled before is answered alike, and was owed then.
            if answer[:2] == ("task cancelled", True) and row.status not in FINISHED:
                self.cancelled.add(task.task_id)

    def what_is_owed_is_told(self, most: int) -> None:
        self.ask(lambda side: side.tell(most))

    drawn = st.one_of(
        *often(4, an_item_is_delivered, pick=picks, item=st.integers(0, 5)),
        *often(2, a_user_speaks, pick=picks, on_busy=busy),
        *often(2, a_task_is_started, pick=picks, again=st.booleans()),
        *often(4, a_worker_claims, worker=st.integers(0, 1)),
        *often(4, a_holder_goes_on, pick=st.integers(0, 3), step=st.just("open"), outcome=ends),
        *often(4, a_holder_goes_on, pick=st.integers(0, 3), step=st.just("end"), outcome=ends),
        *often(
            2,
            a_holder_goes_on,
            pick=picks,
            step=st.sampled_from(("open with the oldest", "open wrongly", "write", "write", "end")),
            outcome=ends,
        ),
        *often(1, a_lease_passes, pick=picks, reaped=st.booleans()),
        *often(1, a_turn_is_cancelled, pick=picks),
        *often(1, a_task_is_cancelled, pick=picks),
        *often(2, what_is_owed_is_told, most=st.integers(1, 3)),
    )

    @rule(step=drawn)
    def a_step_is_taken(self, step: tuple[str, Mapping[str, Any]]) -> None:
        name, given = step
        getattr(self, name)(**given)

    @invariant()
    def stores_are_whole_and_alike(self) -> None:
        self.held_so_far = False
        found = [side.run(side.look()) for side in self.sides]
        for holdings in found:
            holdings.require_whole()
            self._require_tasks(holdings)
        for holdings in found[1:]:
            assert holdings.plain() == found[0].plain(), "the stores hold alike"
        self.held_so_far = True

    def _require_tasks(self, holdings: Holdings) -> None:
        """A task that is over was told or is owed, never both and never twice; a cancelled one is neither."""
        for task in self.tasks:
            [row] = [row for row in holdings.stored.rows if row.session == task.task_id]
            is_over = row.status in FINISHED
            told = holdings.queued(task.parent).count(item_id(task.task_id))
            owed = holdings.owed.count(task.task_id)
            assert told + owed == int(is_over and task.task_id not in self.cancelled), (
                f"{row}: {told} told, {owed} owed"
            )

    def teardown(self) -> None:
        """Workers that come now finish everything, and each item and notice was answered once, or given up with a record."""
        if not self.held_so_far:
            return
        for _ in range(200):
            first = len(self.held)
            self.ask(lambda side: side.tell(100))
            for session in (*SESSIONS, *(task.task_id for task in self.tasks)):
                self._let_lease_pass(session)
            self.ask(lambda side: side.reap())
            self.a_worker_claims(0)
            for held in self.held[first:]:
                self._finish(held)
            if first == len(self.held) and not self.sides[0].run(self.sides[0].look()).is_owed:
                break
        self.stores_are_whole_and_alike()
        for side in self.sides:
            self._require_answers(side.run(side.look()))

    def _let_lease_pass(self, session: SessionId) -> None:
        self.ask(lambda side: side.pass_lease(session))

    def _finish(self, held: Held) -> None:
        n = self.number()
        self.ask(lambda side: side.open(held))
        self.ask(lambda side: side.end(held, n, "completed"))

    def _require_answers(self, holdings: Holdings) -> None:
        assert not holdings.is_owed, "nothing is left behind"
        notices = {
            (task.parent, item_id(task.task_id)) for task in self.tasks if task.task_id not in self.cancelled
        }
        for session in SESSIONS:
            answers = holdings.answered(session, DONE) + holdings.dropped(session)
            expected = sorted(item for at, item in self.delivered | notices if at == session)
            assert sorted(answers) == expected, "each item was answered or given up, once"

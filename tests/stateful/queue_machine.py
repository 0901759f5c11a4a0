"""The turn queue under a state machine: every rule is one durable step, and a crash may come between any two of them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from shared.domain.ids import OwnerId, RunId, SessionId, TurnId, WorkerId
from shared.sessions.records import Draft, draft
from shared.turns.queue import CallEntry, CallState, Outcome
from tests.stateful.drawing import (
    ALL_REVISIONS,
    CALL_STATES,
    ODDLY,
    OUTCOMES,
    OWNERS,
    PLAIN,
    SERVED,
    SESSIONS_MAX,
    WORKERS,
    kinds,
    losses,
    own_things,
    seldom,
    steps,
    workers,
)
from tests.stateful.searching import at, often, picks
from tests.stateful.sides import FAR, Side
from tests.stateful.turn_model import TurnModel
from tests.stateful.turn_rows import SETTLED, Turn
from tests.stateful.values import Answer, Asked, Hold, Taken, Write, answered
from tests.stateful.whole import require_whole_state

T = TypeVar("T")
#: A begin as it is sent: what was asked, the first write, and whether it is held by a lease.
Begun = tuple[Asked, Write, bool]


class QueueMachine(RuleBasedStateMachine):
    """What every rule is made of: one store or several that must answer alike, the model, what each process holds.

    A claim that its process forgot, lost or gave back goes to the ghosts: a paused process may still write with it.
    """

    def __init__(self, *sides: Side) -> None:
        super().__init__()
        self.sides = sides
        self.model = TurnModel()
        self.known: dict[WorkerId, dict[TurnId, Hold]] = {worker: {} for worker in WORKERS}
        self.ghosts: list[Hold] = []
        self.asked: list[Asked] = []
        self.begun: list[Begun] = []
        self.last: dict[Hold, Write] = {}
        self.ends: list[Write] = []
        self._numbers = 0
        self.held_so_far = False

    @initialize(turns=st.integers(0, 5))
    def begin(self, turns: int) -> None:
        for side in self.sides:
            side.run(side.begin())
        for owner in OWNERS:
            self.new_session(owner)
        for n in range(turns):
            self.admit(n)

    def ask(self, call: Callable[[Side], Coroutine[Any, Any, Answer]]) -> Answer:
        """Make the same call of every store and require one answer."""
        self.held_so_far = False
        answers = [side.run(answered(call(side))) for side in self.sides]
        assert answers == answers[:1] * len(answers), "the stores answer alike"
        self.held_so_far = True
        return answers[0]

    def require(self, foretold: Answer, call: Callable[[Side], Coroutine[Any, Any, Answer]]) -> Answer:
        """Make the call of every store and require the answer that the model foretold."""
        answer = self.ask(call)
        self.held_so_far = False
        assert answer == foretold, "the store answers as the model does"
        self.held_so_far = True
        return answer

    def number(self) -> int:
        """Return a number that this example has not used."""
        self._numbers += 1
        return self._numbers

    def new_session(self, owner: OwnerId) -> None:
        session = SessionId(f"session {self.number():03d}")
        self.require(self.model.create(session, owner), lambda side: side.create(session, owner))

    def session(self, pick: int) -> SessionId:
        """Pick a session."""
        return at(sorted(self.model.sessions), pick)

    def turns(self, *statuses: str) -> list[Turn]:
        """The turns that stand so."""
        return [turn for turn in self.model.turns.values() if turn.status in statuses]

    def holds(self) -> list[Hold]:
        """All that processes believe to hold."""
        return [hold for worker in WORKERS for hold in self.known[worker].values()]

    def superseded(self) -> list[Hold]:
        """All claims of turns that were claimed again since."""
        claims = [*self.ghosts, *self.holds()]
        return [c for c in claims if c.turn in self.model.turns and self.model.turns[c.turn].epoch > c.epoch]

    def let_go(self, hold: Hold) -> None:
        """Its process goes on without this claim."""
        if self.known[hold.worker].get(hold.turn) == hold:
            del self.known[hold.worker][hold.turn]
        if hold not in self.ghosts:
            self.ghosts.append(hold)

    def note(self, kind: str, **more: object) -> Draft:
        """Return a record that no other write has."""
        return draft(kind, {"v": 1, "n": self.number(), **more})

    def take(self, worker: WorkerId, places: int, suspects: int, revisions: Sequence[str]) -> list[Hold]:
        """Claim for a worker; return what it got, which it does not know of yet."""
        self.held_so_far = False
        answers: list[Sequence[Taken]] = [
            side.run(side.claim(worker, places, suspects, revisions)) for side in self.sides
        ]
        assert answers == answers[:1] * len(answers), "the stores hand out the same turns"
        self.model.judge_claim(worker, places, suspects, revisions, answers[0])
        self.held_so_far = True
        return [Hold(one.turn, one.session, one.epoch, worker) for one in answers[0]]

    def learn(self, holds: Sequence[Hold]) -> None:
        """Tell the claims' processes that they hold them."""
        for hold in holds:
            if (older := self.known[hold.worker].get(hold.turn)) is not None:
                self.let_go(older)
            self.known[hold.worker][hold.turn] = hold

    def send(self, write: Write) -> Answer:
        """Send a fenced write. A refused holder lets go, and so does one that ended its turn."""
        answer = self.require(self.model.write(write), lambda side: side.write(write))
        if answer[0] != "refused":
            self.last = {hold: last for hold, last in self.last.items() if hold != write.hold}
            self.last[write.hold] = write  # the latest one stands last
        if write.kind == "end" and answer[0] == "ended":
            self.ends.append(write)
        if write.kind == "end" or answer[0] == "refused":
            self.let_go(write.hold)
        return answer

    def asking(self, pick: int, *, same_run: bool = False, **given: Any) -> Asked:
        """Return a turn to admit to a session: with ids of its own or a used run id, plain but for what is given."""
        session = self.model.sessions[self.session(pick)]
        turn = TurnId(UUID(int=self.number()))
        used = sorted(run for owner, run in self.model.runs if owner == session.id)
        run = used[0] if same_run and used else RunId(f"run {self.number()}")
        return Asked(turn=turn, run=run, session=session.id, owner=session.owner, **{**PLAIN, **given})

    def admit(self, pick: int, **given: Any) -> None:
        """Admit a turn."""
        asked = self.asking(pick, **given)
        self.asked.append(asked)
        self.admit_again(asked)

    def admit_again(self, asked: Asked) -> None:
        """Send an admission, for the first time or once more."""
        self.require(self.model.admit(asked), lambda side: side.admit(asked))

    def end_again(self, write: Write) -> None:
        """Send an end once more that was stored."""
        self.require(self.model.write(write), lambda side: side.write(write))

    def begin_turn(self, begun: Begun) -> None:
        """Begin a turn in a process of a host, or send that again."""
        asked, write, leased = begun
        foretold = self.model.begin(asked, write, leased=leased)
        answer = self.require(foretold, lambda side: side.begin_turn(asked, write, leased=leased))
        if answer[0] == "begun":
            self.learn([write.hold])
            self.last.setdefault(write.hold, write)

    def go_on(self, worker: WorkerId, step: str, pick: int) -> None:
        """Take a worker's next durable step: claim when it holds nothing, open what it claimed, then what is drawn."""
        holds = list(self.known[worker].values())
        if not holds:
            self.learn(self.take(worker, 1, 1, SERVED))
            return
        hold = at(holds, pick)
        if hold not in self.last:
            self.send(self.opening(hold))
            return
        match step:
            case "append" | "step":
                self.send(self.appending(hold, pick % 3, stepped=step == "step"))
            case "call":
                calls = sorted(self.model.turns[hold.turn].ledger) if hold.turn in self.model.turns else []
                name = at(calls, pick) if calls and pick % 3 else f"call {len(calls)}"
                self.send(self.calling(hold, name, at(CALL_STATES, pick)))
            case "reply":
                self.send(self.replying(hold, at(OUTCOMES, pick)))
            case "end":
                self.send(self.ending(hold, at(OUTCOMES, pick)))
            case _:
                self.give_back(hold, later=pick % 2 == 1)

    def write_as(self, hold: Hold, kind: str) -> None:
        """Write with a claim, whether or not it is time for that, or still its time."""
        match kind:
            case "open":
                self.send(self.opening(hold))
            case "append":
                self.send(self.appending(hold))
            case "end":
                self.send(self.ending(hold, "failed"))
            case "release":
                self.give_back(hold, later=False)
            case "abandon":
                self.abandon(hold)
            case _:
                self.require(self.model.renew([hold]), lambda side: side.renew([hold]))

    def abandon(self, hold: Hold) -> None:
        """Say that the process of a claim is gone."""
        if self.require(self.model.abandon(hold), lambda side: side.abandon(hold))[1]:
            self.let_go(hold)

    def watch(self, worker: WorkerId) -> None:
        """Let a process let go of what it lost, and take up what it owns without knowing."""
        holds = list(self.known[worker].values())
        answer = self.require(self.model.watch(worker, holds), lambda side: side.watch(worker, holds))
        for turn, _ in answer[1]:
            self.let_go(self.known[worker][turn])
        for turn, epoch in answer[2]:
            self.learn([hold for hold in self.ghosts if (hold.turn, hold.epoch) == (turn, epoch)][:1])

    def renew(self, worker: WorkerId) -> None:
        """Let a process renew all that it believes to hold."""
        holds = list(self.known[worker].values())
        answer = self.require(self.model.renew(holds), lambda side: side.renew(holds))
        for turn in answer[2]:
            self.let_go(self.known[worker][turn])

    def give_back(self, hold: Hold, *, later: bool) -> None:
        """Release a claim."""
        foretold = self.model.release(hold, later=later)
        self.require(foretold, lambda side: side.release(hold, later=later))
        self.let_go(hold)

    def move(self, hand: Callable[[Side], Coroutine[Any, Any, None]]) -> None:
        """Move the stored times of every store."""
        for side in self.sides:
            side.run(hand(side))

    def let_come(self, turn: Turn, what: str) -> None:
        """Let one time of a turn come, if it has that."""
        match what:
            case "due" if turn.due is None:
                self.come_due(turn)
            case "deadline" if turn.asked.has_deadline:
                turn.late = True
                self.move(lambda side: side.works.pass_deadline(turn.id))
            case "lease" | "long ago" if turn.status == "running":
                self.pass_lease(turn, long_ago=what == "long ago")

    def pass_lease(self, turn: Turn, *, long_ago: bool = False) -> None:
        """Let a running row's lease have passed, just now or hours ago; one that is held without a lease stays so."""
        if turn.unleased:
            return
        turn.passed, turn.abandoned = self.model.moment(), long_ago
        ago = 2 * FAR if long_ago else FAR * 0.001
        self.move(lambda side: side.works.set_lease([turn.id], -ago))

    def come_due(self, turn: Turn) -> None:
        """Let a row be due from now on."""
        turn.due = self.model.moment()
        self.move(lambda side: side.works.set_due(turn.id))

    def opening(self, hold: Hold) -> Write:
        return Write("open", hold, self._commit_id(hold), [self.note("turn.started")])

    def appending(self, hold: Hold, records: int = 1, *, stepped: bool = False) -> Write:
        drafts = [self.note("step.started") for _ in range(records)]
        return Write("append", hold, self._commit_id(hold), drafts, stepped=stepped)

    def replying(self, hold: Hold, outcome: Outcome) -> Write:
        reply = self.note("turn.reply", outcome=outcome)
        return Write("append", hold, self._commit_id(hold), [reply], outcome=outcome)

    def calling(self, hold: Hold, name: str, state: CallState) -> Write:
        result = f"result {self.number()}" if state in SETTLED else None
        call = CallEntry(name, 1, 1, "tool", "digest", f"token of {name}", state, result)
        return replace(self.appending(hold), calls=[call])

    def ending(self, hold: Hold, outcome: Outcome) -> Write:
        ended = self.note("turn.ended", reason=outcome)
        return Write("end", hold, self._commit_id(hold), [ended], outcome=outcome)

    def _commit_id(self, hold: Hold) -> str:
        return f"{hold.turn}:{hold.epoch}:{self.number()}"

    @invariant()
    def stores_are_whole_and_as_the_model_says(self) -> None:
        self.held_so_far, foretold = False, self.model.stored()
        found = [side.run(side.works.stored()) for side in self.sides]
        for stored in found:
            require_whole_state(stored)
            assert stored == foretold, "the store holds what the model says"
        for stored in found[1:]:
            assert (stored.tails, stored.digests) == (found[0].tails, found[0].digests), "chained alike"
        self.held_so_far = True

    def teardown(self) -> None:
        """Whatever happened, workers that come now finish everything that was accepted, and every call answers as it did."""
        if not self.held_so_far:
            return
        self._free_all()
        for _ in range(3 * len(self.model.turns) + 3):
            self.require(self.model.reap(), lambda side: side.reap())
            if not (holds := self.take(WORKERS[0], 8, 8, ALL_REVISIONS)):
                break
            for hold in holds:
                if self.send(self.opening(hold))[0] == "opened":
                    self.send(self.ending(hold, "completed"))
        for asked in self.asked:
            if asked.turn in self.model.turns:
                self.admit_again(asked)
        for write in self.ends:
            self.end_again(write)
        self.stores_are_whole_and_as_the_model_says()
        left = self.turns("queued", "ready", "running", "waiting")
        assert left == [], "nothing that was accepted is left behind"

    def _free_all(self) -> None:
        """All leases pass and all times come."""
        for turn in list(self.model.turns.values()):
            if turn.unleased and turn.session.open is not None:
                self.abandon(replace(turn.session.open, forged=True))
                self.abandon(turn.session.open)
            elif turn.status == "running" and turn.passed is None:
                self.pass_lease(turn)
            elif turn.due is None and not turn.finished:
                self.come_due(turn)


class TurnQueueMachine(QueueMachine):
    """Every step there is, with how often it is drawn.

    One rule draws them all: Hypothesis would leave out some of many rules in each example, and turns would rarely come far.
    """

    def a_turn_is_admitted(self, pick: int, **given: Any) -> None:
        self.admit(pick, **given)

    def a_host_begins(self, pick: int, leased: bool, worker: WorkerId, **given: Any) -> None:
        asked = self.asking(pick, **given)
        hold = Hold(asked.turn, asked.session, 1, worker)
        begun = (asked, self.opening(hold), leased)
        self.begun.append(begun)
        self.begin_turn(begun)

    def an_answer_is_lost(self, pick: int, what: str) -> None:
        """The same call comes again with its ids, also after everything went on; or nobody knows of a claim."""
        match what:
            case "claim":
                self.ghosts += self.take(at(WORKERS, pick), 1, 1, SERVED)
            case "admission" if self.asked:
                self.admit_again(at(self.asked[::-1], pick))
            case "begin" if self.begun:
                self.begin_turn(at(self.begun[::-1], pick))
            case "end" if self.ends:
                self.end_again(at(self.ends[::-1], pick))
            case "write" if self.last:
                self.send(at(list(self.last.values())[::-1], pick))

    def a_worker_goes_on(self, pick: int, step: str, worker: WorkerId) -> None:
        self.go_on(worker, step, pick)

    def a_holder_goes_on(self, pick: int, step: str) -> None:
        holds = self.holds()
        self.go_on(at(holds, pick).worker if holds else at(WORKERS, pick), step, pick)

    def a_worker_claims(self, worker: WorkerId, places: int, suspects: int) -> None:
        self.learn(self.take(worker, places, suspects, SERVED))

    def a_lease_passes_and_someone_else_looks(self, pick: int) -> None:
        if running := self.turns("running"):
            turn = at(running, pick)
            others = [worker for worker in WORKERS if worker != turn.holder]
            self.pass_lease(turn)
            self.learn(self.take(at(others, pick), 1 + pick % 2, pick % 3, SERVED))

    def a_lease_passes_and_its_holder_goes_on(self, pick: int, kind: str) -> None:
        """It was paused for as long, and nobody took the turn yet."""
        held = [hold for hold in self.holds() if self.model.may_write(hold)]
        if held:
            hold = at(held, pick)
            self.pass_lease(self.model.turns[hold.turn])
            self.write_as(hold, kind)

    def time_passes(self, pick: int, what: str) -> None:
        if unfinished := self.turns("queued", "ready", "running"):
            self.let_come(at(unfinished, pick), what)

    def a_sweep_passes(self, late: bool) -> None:
        if late:
            self.require(self.model.expire(), lambda side: side.expire())
        else:
            self.require(self.model.reap(), lambda side: side.reap())

    def a_ghost_writes(self, pick: int, kind: str) -> None:
        """A paused process goes on with a claim whose turn someone else has now, or that ended."""
        if found := self.superseded() or self.ghosts[::-1]:
            self.write_as(at(found, pick), kind)

    def a_holder_writes_out_of_turn(self, pick: int, kind: str, forged: bool) -> None:
        """Before it opened, or once more; forged: with an epoch that a restored database handed out again, and a token
        that nobody drew."""
        if holds := self.holds():
            self.write_as(replace(at(holds, pick), forged=forged), kind)

    def a_process_does_its_own_things(self, what: str, worker: WorkerId) -> None:
        match what:
            case "watch":
                self.watch(worker)
            case "renew":
                self.renew(worker)
            case "crash":
                for hold in list(self.known[worker].values()):
                    self.let_go(hold)
            case _:
                silent = what == "silence"
                self.require(("heard",), lambda side: side.hear(worker, silent=silent))
                (self.model.heard.discard if silent else self.model.heard.add)(worker)

    def a_turn_is_cancelled(self, pick: int, foreign: bool) -> None:
        if turns := self.turns("queued", "ready", "running") or list(self.model.turns.values()):
            turn = at(turns, pick)
            owner = OwnerId("nobody") if foreign else turn.session.owner
            self.require(self.model.cancel(turn.id, owner), lambda side: side.cancel(turn.id, owner))

    def a_session_changes(self, pick: int, what: str) -> None:
        session = self.model.sessions[self.session(pick)]
        if what == "create" and len(self.model.sessions) < SESSIONS_MAX:
            self.new_session(at(OWNERS, pick))
        elif what == "remove" and len(self.model.sessions) > 1:
            self.require(self.model.remove(session.id), lambda side: side.remove(session.id, session.owner))
        else:
            record = self.note("note.added")
            foretold = self.model.commit(session.id, [(record.kind, record.text)])
            self.require(foretold, lambda side: side.commit(session.id, session.owner, [record]))

    drawn = st.one_of(
        *often(2, a_turn_is_admitted, pick=picks, on_worker_loss=losses, has_deadline=st.booleans()),
        *often(1, a_turn_is_admitted, pick=picks, on_busy=st.just("interrupt")),
        *often(2, a_turn_is_admitted, pick=picks, **ODDLY),
        *often(1, a_host_begins, pick=picks, leased=st.booleans(), worker=workers),
        *often(1, a_host_begins, pick=picks, leased=st.booleans(), worker=workers, **ODDLY),
        *often(
            3,
            an_answer_is_lost,
            pick=picks,
            what=st.sampled_from(("write", "write", "end", "admission", "begin", "claim")),
        ),
        *often(3, a_worker_goes_on, pick=picks, step=steps, worker=workers),
        *often(4, a_holder_goes_on, pick=picks, step=steps),
        *often(1, a_worker_claims, worker=workers, places=st.integers(1, 3), suspects=st.integers(0, 2)),
        *often(3, a_lease_passes_and_someone_else_looks, pick=picks),
        *often(1, a_lease_passes_and_its_holder_goes_on, pick=picks, kind=kinds),
        *often(2, time_passes, pick=picks, what=st.sampled_from(("due", "deadline", "lease", "long ago"))),
        *often(1, a_sweep_passes, late=st.booleans()),
        *often(3, a_ghost_writes, pick=picks, kind=kinds),
        *often(2, a_holder_writes_out_of_turn, pick=picks, kind=kinds, forged=st.booleans()),
        *often(2, a_process_does_its_own_things, what=own_things, worker=workers),
        *often(2, a_turn_is_cancelled, pick=picks, foreign=seldom),
        *often(1, a_session_changes, pick=picks, what=st.sampled_from(("record", "create", "remove"))),
    )

    @rule(step=drawn)
    def a_step_is_taken(self, step: tuple[str, Mapping[str, Any]]) -> None:
        name, given = step
        getattr(self, name)(**given)

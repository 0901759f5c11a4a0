"""The stores as the inbox's machine drives them: turns are named by session and position, as each store draws ids of its own."""

from __future__ import annotations

import json
from collections.abc import Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from uuid import UUID

from shared.conformance.turn_stage import TAKEOVER_LEASE_S, commit_id
from shared.domain.ids import OwnerId, RunId, SessionId, TurnId, WorkerId
from shared.inbox.port import Delivery
from shared.sessions.log import NewSession
from shared.sessions.records import draft
from shared.tasks.port import NewTask, TaskLimits
from shared.turns.queue import Admission, AdmissionLimits, Claim, ClaimRequest, Ending, OnBusy, Outcome
from tests.stateful.sides import FAR, Side
from tests.stateful.values import ATTEMPTS_MAX, Answer, Item, Stored, answered
from tests.stateful.whole import FINISHED, require_whole_state

T = TypeVar("T")
TASK_LIMITS = TaskLimits(max_running=2)
NOBODYS = TurnId(UUID(int=0))


@dataclass(frozen=True, slots=True)
class Held:
    """A claim, the ``n``-th that was made, of the turn of a session."""

    n: int
    session: SessionId
    origin: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Holdings:
    """What one store holds: turns, items, how many wait by its heads, and whose results are owed."""

    stored: Stored
    items: Sequence[Item]
    waiting: Sequence[tuple[SessionId, int]]
    owed: Sequence[SessionId]
    origins: Mapping[TurnId, str]

    @property
    def is_owed(self) -> bool:
        """Whether anything is left to do."""
        unfinished = any(row.status not in FINISHED for row in self.stored.rows)
        return unfinished or bool(self.items) or bool(self.owed)

    def require_whole(self) -> None:
        """Require what must be true of stored state after every step."""
        require_whole_state(self.stored)
        rows = {row.id: row for row in self.stored.rows}
        for session, waiting in self.waiting:
            found = [item for item in self.items if item.session == session and item.turn is None]
            assert waiting == len(found), "the head counts what waits"
            unfinished = [r.id for r in rows.values() if r.session == session and r.status not in FINISHED]
            answers = [turn for turn in unfinished if self.origins[turn] == "inbox"]
            assert len(answers) <= 1, "one inbox turn at most is unfinished"
            assert answers or not waiting, "what waits has a turn that will answer it"
        for item in self.items:
            if item.turn is not None:
                row = rows[item.turn]
                assert (row.session, self.origins[row.id]) == (item.session, "inbox"), (
                    "claimed by an inbox turn"
                )
                assert row.status not in FINISHED and row.number is not None, "which is open"

    def plain(self) -> tuple[object, ...]:
        """Return all of it without the ids that each store drew."""
        places = {row.id: (row.session, row.position) for row in self.stored.rows}
        return (
            [
                replace(head, open=None)
                if head.open is None
                else (head.id, places[head.open[0]], head.open[1])
                for head in self.stored.heads
            ],
            [(self.origins[row.id], replace(row, id=NOBODYS)) for row in self.stored.rows],
            self.stored.records,
            [replace(item, turn=None) for item in self.items],
            [None if item.turn is None else places[item.turn] for item in self.items],
            self.waiting,
            self.owed,
        )

    def queued(self, session: SessionId) -> list[str]:
        """The items that a session ever got."""
        return [data["id"] for data in self._data(session, "inbox.queued")]

    def dropped(self, session: SessionId) -> list[str]:
        """The items that were given up."""
        return [data["id"] for data in self._data(session, "inbox.dropped")]

    def answered(self, session: SessionId, outcomes: Collection[str]) -> list[str]:
        """The items of inbox turns that ended so."""
        rows = [row for row in self.stored.rows if self.origins[row.id] == "inbox"]
        done = {row.number for row in rows if row.session == session and row.outcome in outcomes}
        return [item for data in self._data(session, "turn.started", done) for item in data["claimed"]]

    def _data(
        self, session: SessionId, kind: str, turns: Collection[int | None] | None = None
    ) -> list[dict[str, Any]]:
        return [
            json.loads(text)
            for at, _, turn, what, text in self.stored.records
            if (at, what) == (session, kind) and (turns is None or turn in turns)
        ]


class InboxSide:
    """One store, with the real claims kept here."""

    def __init__(self, side: Side) -> None:
        self.works = side.works
        self._claims: list[Claim] = []
        self._owner = OwnerId("")

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call to its end."""
        return self.works.run(call)

    async def answered(self, call: Coroutine[Any, Any, Answer]) -> Answer:
        """A call's answer, or its typed error as one."""
        return await answered(call)

    async def begin(self, owner: OwnerId, sessions: Sequence[SessionId]) -> None:
        """Begin an example."""
        self._claims, self._owner = [], owner
        await self.works.begin()
        for session in sessions:
            await self.works.log.create(NewSession(session, owner))

    async def look(self) -> Holdings:
        """Read all that is stored."""
        stored, state = await self.works.stored(), await self.works.inbox_state()
        owed = sorted(debt.task_id for debt in await self.works.tasks.owed(limit=1_000))
        return Holdings(stored, state.items, state.waiting, owed, state.origins)

    async def deliver(self, session: SessionId, item: str) -> Answer:
        """Deliver an item."""
        got = await self.works.inbox.deliver(Delivery(session, self._owner, item, "test", f"about {item}"))
        return ("delivered", got.seq, got.duplicate, got.pending, got.turn_id is not None)

    async def admit(self, session: SessionId, turn: TurnId, run: RunId, on_busy: OnBusy) -> Answer:
        """Admit a user's turn."""
        wanted = Admission(turn, run, session, self._owner, {"text": "hello"}, on_busy=on_busy)
        got = await self.works.queue.admit(wanted, AdmissionLimits(attempts_max=ATTEMPTS_MAX))
        return ("admitted", got.position, got.status, got.after, len(got.superseded))

    async def start(self, task: NewTask) -> Answer:
        """Start a task."""
        got = await self.works.tasks.start(task, TASK_LIMITS)
        return ("started", got.turn_id, got.seq, got.duplicate)

    async def claim(self, worker: WorkerId, first: int) -> Answer:
        """Claim all that is ready or lost; the leases last until the machine lets them pass."""
        request = ClaimRequest(
            worker, 100, lease_s=TAKEOVER_LEASE_S, attempts_max=ATTEMPTS_MAX, suspects_left=100
        )
        claims = sorted(await self.works.queue.claim(request), key=lambda claim: claim.session_id)
        await self.works.set_lease([claim.turn_id for claim in claims], FAR)
        assert len(self._claims) == first
        self._claims += claims
        return (
            "claimed",
            [(c.session_id, c.origin, c.fence.epoch) for c in claims],
            [c.number for c in claims],
        )

    async def open(
        self, held: Held, *, claims: Sequence[str] | None = None, most: int | None = None
    ) -> Answer:
        """Open a claimed turn, an inbox turn with what waits unless told otherwise, or with the oldest ``most`` of it."""
        claim = self._claims[held.n]
        items = claims or []
        if held.origin == "inbox" and claims is None:
            items = [item.id for item in await self.works.inbox.waiting(held.session, self._owner)][:most]
        first = draft("turn.started", {"v": 1, "n": held.n, "claimed": list(items)})
        opened = await self.works.queue.open(claim, commit_id(claim, "open"), [first], claims=items)
        return ("opened", opened.result, opened.number, opened.seq)

    async def append(self, held: Held, n: int) -> Answer:
        """Write something in an open turn."""
        claim = self._claims[held.n]
        note = draft("host.note", {"n": n})
        return ("appended", await self.works.queue.append(claim, f"{commit_id(claim, 'a')}:{n}", [note]))

    async def end(self, held: Held, n: int, outcome: Outcome) -> Answer:
        """End an open turn, a task's with its result."""
        claim = self._claims[held.n]
        result = draft("task.result", {"v": 1, "task": held.session, "outcome": outcome, "text": f"done {n}"})
        ended = draft("turn.ended", {"v": 1, "reason": outcome, "n": n})
        drafts = [result, ended] if held.origin == "task" else [ended]
        got = await self.works.queue.end(claim, f"{commit_id(claim, 'end')}:{n}", drafts, Ending(outcome))
        return ("ended", got.seq, got.promoted is not None, got.pending)

    async def pass_lease(self, session: SessionId) -> Answer:
        """Let the lease of a session's running turn pass."""
        found = [
            row.id
            for row in (await self.works.stored()).rows
            if (row.session, row.status) == (session, "running")
        ]
        await self.works.set_lease(found, -FAR * 0.001)
        return ("passed", len(found))

    async def reap(self) -> Answer:
        """Sweep dead rows."""
        touched = await self.works.queue.reap(limit=1_000)
        return ("reaped", sorted((v.session_id, v.position, v.status, v.outcome) for v in touched))

    async def cancel(self, session: SessionId) -> Answer:
        """Cancel the first unfinished turn of a session, if there is one."""
        rows = [
            r for r in (await self.works.stored()).rows if r.session == session and r.status not in FINISHED
        ]
        if not rows:
            return ("nothing to cancel",)
        got = await self.works.queue.cancel(rows[0].id, self._owner)
        return ("cancelled", got.took_effect, got.reason, got.status, got.outcome, got.after)

    async def cancel_task(self, task: NewTask) -> Answer:
        """Cancel a task."""
        got = await self.works.tasks.cancel(task.parent, task.task_id, self._owner)
        return ("task cancelled", got.took_effect, got.status)

    async def tell(self, most: int) -> Answer:
        """Deliver some of what is owed."""
        told = []
        debts = sorted(await self.works.tasks.owed(limit=1_000), key=lambda debt: debt.task_id)
        for debt in debts[:most]:
            done = await self.works.tasks.deliver(debt)
            told.append((debt.task_id, None if done is None else (done.seq, done.turn_id is not None)))
        return ("told", told)

"""Random load on the durable core: producers, a deliverer, workers that stall, crash and release, a canceller, sweeps,
killed connections.

Every decision of an actor comes from one seed; how the database interleaves them does not. What an actor was told is
noted, so that it can be held against what is stored.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, ParamSpec, TypeVar

from shared.conformance.turn_stage import commit_id
from shared.domain.errors import StoreBusy, StoreUnavailable, TurnkeeperError
from shared.domain.ids import OwnerId, SessionId, TurnId, WorkerId, new_run_id, new_turn_id
from shared.inbox.port import Delivery
from shared.leases.fence import Fence
from shared.sessions.records import Draft, draft
from shared.tasks.port import TaskLimits, new_task
from shared.tasks.postgres import PostgresTaskStore
from shared.turns.queue import Admission, AdmissionLimits, Claim, ClaimRequest, Ending, OnBusy, Opened
from tests.faults.world import ATTEMPTS_MAX, World

RUNNING_MAX = 2
WORKERS = 3
PRODUCERS = 2
LIMITS = AdmissionLimits(queued_per_session=8, queued_per_owner=20, attempts_max=ATTEMPTS_MAX)
TASK_LIMITS = TaskLimits(max_running=2, queued_per_owner=20)
ITEMS_MAX = 60
ON_BUSY: Sequence[OnBusy] = ("enqueue",) * 15 + ("reject",) * 4 + ("interrupt",)
TRIES = 12
RENEW_EVERY_S = 0.1

P = ParamSpec("P")
T = TypeVar("T")


class Crashed(Exception):
    """A worker of the load dies here: it forgets what it holds."""


@dataclass(slots=True)
class Noted:
    """What the actors were told. A takeover is (session, turn number, the log's seq that it saw, its epoch).

    ``items`` that were delivered, ``tasks`` that were started and their parents; their turns are among the admitted.
    """

    admitted: dict[TurnId, SessionId] = field(default_factory=dict)
    keys: dict[tuple[SessionId, str], set[TurnId]] = field(default_factory=dict)
    cancelled: dict[TurnId, int] = field(default_factory=dict)
    items: set[tuple[SessionId, str]] = field(default_factory=set)
    tasks: dict[SessionId, SessionId] = field(default_factory=dict)
    takeovers: list[tuple[SessionId, int, int, int]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Load:
    """One run: its world, its sessions with their owners, and the switches that end it."""

    world: World
    seed: int
    sessions: Sequence[tuple[SessionId, OwnerId]]
    noted: Noted = field(default_factory=Noted)
    makes_trouble: bool = True
    is_running: bool = True
    owners: dict[SessionId, OwnerId] = field(init=False)
    tasks: PostgresTaskStore = field(init=False)

    def __post_init__(self) -> None:
        self.owners = dict(self.sessions)
        self.tasks = PostgresTaskStore(self.world.database, attempts_max=ATTEMPTS_MAX)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run every actor around the block. An actor that breaks ends the block with its error."""
        actors: list[Coroutine[Any, Any, None]] = [
            self._cancel(),
            self._sweep(),
            self._kill(),
            self._deliver(),
        ]
        actors += [self._produce(n) for n in range(PRODUCERS)]
        actors += [LoadWorker(self, n).work() for n in range(WORKERS)]
        async with asyncio.TaskGroup() as group:
            for actor in actors:
                group.create_task(actor)
            try:
                yield
            finally:
                self.makes_trouble = self.is_running = False

    async def repeat(self, call: Callable[P, Awaitable[T]], *given: P.args, **named: P.kwargs) -> T | None:
        """Call until it is answered, as clients repeat by their ids; None when it is refused or stays unanswered."""
        for _ in range(TRIES):
            try:
                return await call(*given, **named)
            except (StoreUnavailable, StoreBusy):
                self.noted.counts["repeated"] += 1
            except TurnkeeperError as refusal:
                self.noted.counts[refusal.code] += 1
                return None
        return None

    async def _produce(self, n: int) -> None:
        rng = Random(f"{self.seed} producer {n}")
        keyed: list[tuple[SessionId, OwnerId, str]] = []
        while self.makes_trouble:
            session, owner = rng.choice(self.sessions)
            key = f"key {n} {rng.random()}" if rng.random() < 0.5 else None
            if keyed and rng.random() < 0.2:
                session, owner, key = rng.choice(keyed)
            receipt = await self.repeat(
                self.world.queue.admit, random_admission(rng, session, owner, key), LIMITS
            )
            if receipt is not None:
                self.noted.admitted[receipt.turn_id] = session
                if key is not None:
                    keyed.append((session, owner, key))
                    self.noted.keys.setdefault((session, key), set()).add(receipt.turn_id)
            await asyncio.sleep(rng.random() * 0.02)

    async def _deliver(self) -> None:
        """Deliver items, some of them again, and start tasks."""
        rng = Random(f"{self.seed} deliverer")
        while self.makes_trouble:
            session, owner = rng.choice(self.sessions)
            item = f"item {rng.randrange(ITEMS_MAX)}"
            delivery = Delivery(session, owner, item, "load", f"about {item}")
            if await self.repeat(self.world.inbox.deliver, delivery) is not None:
                self.noted.items.add((session, item))
            if rng.random() < 0.3:
                task = new_task(session, owner, "dig", rng.choice(("fork", "spawn")))
                self.owners[task.task_id] = owner
                if await self.repeat(self.tasks.start, task, TASK_LIMITS) is not None:
                    self.noted.tasks[task.task_id] = session
                    self.noted.admitted[task.turn_id] = task.task_id
            await asyncio.sleep(rng.random() * 0.1)

    async def _cancel(self) -> None:
        rng = Random(f"{self.seed} canceller")
        while self.makes_trouble:
            await asyncio.sleep(rng.random() * 0.1)
            if not self.noted.admitted:
                continue
            turn, session = rng.choice(list(self.noted.admitted.items())[-20:])
            answer = await self.repeat(self.world.queue.cancel, turn, self.owners[session])
            if answer is not None and answer.took_effect:
                self.noted.cancelled[turn] = answer.after

    async def _sweep(self) -> None:
        while self.is_running:
            await self.repeat(self.world.queue.reap)
            await self.repeat(self.world.queue.expire)
            await self.repeat(self.world.inbox.recover)
            for debt in await self.repeat(self.tasks.owed) or ():
                told = await self.repeat(self.tasks.deliver, debt, wait=False)
                self.noted.counts["told"] += told is not None
            await asyncio.sleep(0.1)

    async def _kill(self) -> None:
        """End connections of the load wherever they are: answers get lost, transactions are undone."""
        rng = Random(f"{self.seed} killer")
        while self.makes_trouble:
            await asyncio.sleep(rng.random() * 0.2)
            killed = await self.world.rows(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                " AND application_name = 'turnkeeper' AND state = 'active' LIMIT 1"
            )
            self.noted.counts["killed"] += len(killed)


@dataclass(slots=True)
class LoadWorker:
    """A worker process of the load. After a crash it goes on under another identity and holds nothing."""

    load: Load
    n: int
    held: dict[TurnId, Fence] = field(default_factory=dict)
    rng: Random = field(init=False)
    lives: int = 0
    is_stalled: bool = False

    def __post_init__(self) -> None:
        self.rng = Random(f"{self.load.seed} worker {self.n}")

    @property
    def id(self) -> WorkerId:
        """Its identity in this life."""
        return WorkerId(f"worker {self.n}.{self.lives}")

    async def work(self) -> None:
        """Claim and run turns until the load ends."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._renew())
            while self.load.is_running:
                try:
                    await self._claim_and_run()
                except Crashed:
                    self.load.noted.counts["crashed"] += 1
                    self.held.clear()
                    self.lives += 1

    async def _renew(self) -> None:
        queue = self.load.world.queue
        while self.load.is_running:
            await asyncio.sleep(RENEW_EVERY_S)
            if self.held and not self.is_stalled:
                await self.load.repeat(queue.renew, dict(self.held), 0.45)

    async def _claim_and_run(self) -> None:
        queue = self.load.world.queue
        watched = await self.load.repeat(queue.watch, self.id, dict(self.held))
        for turn, fence in (watched.orphans if watched is not None else {}).items():
            self.load.noted.counts["orphans"] += 1
            await self.load.repeat(queue.release, turn, fence)
        wanted = ClaimRequest(
            worker=self.id,
            places=self.rng.randrange(1, 4),
            lease_s=self.rng.uniform(0.3, 0.6),
            cursor=self.rng.choice(["", "owner 0", "owner 1"]),
            attempts_max=ATTEMPTS_MAX,
        )
        try:
            claims = await queue.claim(wanted)
        except (StoreUnavailable, StoreBusy):
            self.load.noted.counts["claims unanswered"] += 1
            return
        if not claims:
            await asyncio.sleep(self.rng.random() * 0.03)
        self.held = {claim.turn_id: claim.fence for claim in claims}
        for claim in claims:
            await self._run(claim)
            self.held.pop(claim.turn_id, None)

    async def _run(self, claim: Claim) -> None:
        world, repeat = self.load.world, self.load.repeat
        await self._trouble()
        opened = await self._open(claim)
        if opened is None:
            return
        if opened.result == "took-over":
            self.load.noted.takeovers.append((claim.session_id, opened.number, opened.seq, claim.fence.epoch))
        stored = await repeat(world.log.read, claim.session_id, turn=opened.number)
        if stored is None:
            return
        kinds = [one.kind for one in stored]
        for n in range(kinds.count("step.started") + 1, steps_of(claim) + 1):
            await self._trouble()
            done = record("step.started", claim, step=n)
            if (
                await repeat(world.queue.append, claim, commit_id(claim, f"step {n}"), [done], stepped=True)
                is None
            ):
                return
            if self.load.makes_trouble and self.rng.random() < 0.1:
                await repeat(world.queue.release, claim.turn_id, claim.fence)
                return
        await self._close(claim, is_replied="turn.reply" in kinds)

    async def _open(self, claim: Claim) -> Opened | None:
        """Open a turn, an inbox turn with all that waits, read again when that moved on; None when it is not ours."""
        world, repeat, items = self.load.world, self.load.repeat, list[str]()
        for _ in range(TRIES):
            if claim.origin == "inbox":
                waiting = await repeat(world.inbox.waiting, claim.session_id, claim.owner)
                items = [item.id for item in waiting or ()]
            first, moved = record("turn.started", claim, claimed=items), self.load.noted.counts["inbox.moved"]
            opened = await repeat(world.queue.open, claim, commit_id(claim, "open"), [first], claims=items)
            if opened is not None or self.load.noted.counts["inbox.moved"] == moved:
                return opened
        return None

    async def _close(self, claim: Claim, *, is_replied: bool) -> None:
        queue, repeat = self.load.world.queue, self.load.repeat
        if claim.origin == "inbox" and not is_replied and self.rng.random() < 0.2:
            last = [record("turn.ended", claim, reason="failed")]
            await repeat(queue.end, claim, commit_id(claim, "end"), last, Ending("failed"))
            self.load.noted.counts["failed"] += 1
            return
        reply = record("turn.reply", claim, outcome="completed")
        if not is_replied and self.rng.random() < 0.5:
            if await repeat(queue.append, claim, commit_id(claim, "reply"), [reply]) is None:
                return
            is_replied = True
            await self._trouble()
        last = ([] if is_replied else [reply]) + [record("turn.ended", claim, reason="completed")]
        ended = await repeat(queue.end, claim, commit_id(claim, "end"), last, Ending("completed"))
        self.load.noted.counts["ended"] += ended is not None

    async def _trouble(self) -> None:
        """Mostly a short pause; sometimes a stall past the lease, without renewals; sometimes a crash."""
        chance = self.rng.random()
        if self.load.makes_trouble and chance < 0.06:
            self.load.noted.counts["stalled"] += 1
            self.is_stalled = True
            await asyncio.sleep(self.rng.uniform(0.4, 0.9))
            self.is_stalled = False
        elif self.load.makes_trouble and chance < 0.1:
            raise Crashed
        else:
            await asyncio.sleep(self.rng.random() * 0.01)


def steps_of(claim: Claim) -> int:
    """Return how many steps a turn has: the same for each of its attempts."""
    return claim.turn_id.int % 3 + 1


def record(kind: str, claim: Claim, **data: object) -> Draft:
    """Return a record that says under which epoch it was written."""
    return draft(kind, {"v": 1, "epoch": claim.fence.epoch} | data)


def random_admission(rng: Random, session: SessionId, owner: OwnerId, key: str | None) -> Admission:
    """Return an admission. The same key always comes with the same content."""
    deadline = datetime.now(UTC) + timedelta(seconds=rng.uniform(0.1, 0.6)) if rng.random() < 0.1 else None
    return Admission(
        new_turn_id(),
        new_run_id(),
        session,
        owner,
        {"text": key or "hello"},
        key=key,
        on_busy=rng.choice(ON_BUSY),
        on_worker_loss="interrupt" if rng.random() < 0.2 else "continue",
        priority=rng.randrange(3),
        deadline=deadline,
    )

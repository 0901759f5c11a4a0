"""The sweeps of upkeep: loops under a lease that repair what a lost wake, worker or broker left (DST-11, 12).

One upkeep process works at a time per kind of sweep; others stand by and take over when its lease passes. What a sweep
costs follows what is owed, not how much history there is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final, Protocol

from shared.domain.errors import LeaseHeld, StoreUnavailable, TurnkeeperError
from shared.domain.ids import SessionId
from shared.inbox.port import Inbox
from shared.jobs.queue import JobQueue
from shared.leases.port import Leases, NamedLease
from shared.tasks.port import Debt, TaskStore
from shared.transfer.retention import Policy, Pruned, Retention
from shared.turns.queue import TurnQueue
from shared.wakes.names import ACTIVITY, INDEX, REMEMBER, TURNS

_log: Final = logging.getLogger(__name__)

OVERDUE_S: Final = 1.0
BATCH: Final = 50
#: A killed process leaves its row behind; after this silence nobody asks for it any more.
FORGET_WORKERS_S: Final = 3_600.0
#: Batches of one sweep; what is left is found by the next.
BATCHES_MAX: Final = 20
#: A delivery to a parent that failed is tried again after so long, twice as long each time, up to the second.
DELIVERY_RETRY_S: Final = 2.0
DELIVERY_RETRY_MAX_S: Final = 300.0


class Bell(Protocol):
    """Rings a queue; a :class:`shared.wakes.port.WakePublisher` is one."""

    def ring(self, queue: str, ids: Sequence[str] = ()) -> None: ...


@dataclass(slots=True)
class CountingBell:
    """Rings on, and counts by queue what the sweeps had to ring: wakes that were lost or never sent (DST-17)."""

    bell: Bell
    rung: dict[str, int] = field(default_factory=dict)

    def ring(self, queue: str, ids: Sequence[str] = ()) -> None:
        _add(self.rung, queue, 1)
        self.bell.ring(queue, ids)


@dataclass(frozen=True, slots=True)
class Sweep:
    """A kind of repair: its lease's name and what one pass does; the pass answers how much it repaired."""

    name: str
    act: Callable[[], Awaitable[int]]


@dataclass(slots=True)
class SweepCounts:
    """Figures of the process since its start, by kind."""

    passes: dict[str, int] = field(default_factory=dict)
    repaired: dict[str, int] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)


class Sweeps:
    """Serves the upkeep queue: every sweep on its own beat of ``every_s``, and at once when a wake asks.

    A :class:`workers.parts.QueueServer`.
    """

    def __init__(
        self, sweeps: Sequence[Sweep], leases: Leases, holder: str, *, every_s: float, lease_s: float
    ) -> None:
        self._sweeps = tuple(sweeps)
        self._leases = leases
        self._holder = holder
        self._every_s = every_s
        self._lease_s = lease_s
        self._asked = {sweep.name: asyncio.Event() for sweep in self._sweeps}
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._held: dict[str, NamedLease] = {}
        self._active: set[str] = set()
        self.counts = SweepCounts()

    def offer(self, ids: Sequence[str]) -> None:
        """Sweep now. Ids mean nothing here."""
        for event in self._asked.values():
            event.set()

    async def serve(self) -> None:
        """Sweep until drained or stopped. What a sweep raises that is no error of ours comes out: it is a defect."""
        self._tasks = {asyncio.create_task(self._beat(s), name=f"sweep:{s.name}") for s in self._sweeps}
        stopped = asyncio.create_task(self._stop.wait(), name="sweeps:stop")
        try:
            ended, _ = await asyncio.wait({stopped, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.stop_now()
            raise
        finally:
            stopped.cancel()
        for task in ended:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def drain(self, timeout_s: float) -> None:
        """Finish the pass under way, free the leases, and end; a pass past ``timeout_s`` is cancelled."""
        self._stop.set()
        self.offer(())
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        self.stop_now()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)

    def stop_now(self) -> None:
        """Cancel every sweep."""
        self._stop.set()
        for task in self._tasks:
            task.cancel()

    def info(self) -> Mapping[str, Any]:
        """Return which sweeps this process holds now."""
        return {
            "held": 0,
            "capacity": len(self._sweeps),
            "ids": [],
            "sweeps": sorted(self._active),
            "repaired": dict(self.counts.repaired),
        }

    async def _beat(self, sweep: Sweep) -> None:
        try:
            while not self._stop.is_set():
                await self._pass(sweep)
                await self._rest(sweep)
        finally:
            self._active.discard(sweep.name)
            if (lease := self._held.pop(sweep.name, None)) is not None:
                await self._free(lease)

    async def _pass(self, sweep: Sweep) -> None:
        """One pass under the lease, if it is, or can be made, ours."""
        try:
            await self._hold(sweep.name)
            self._active.add(sweep.name)
            # The lease outlasts the pass: a pass that takes longer is cut, and the next holder goes on.
            async with asyncio.timeout(self._lease_s * 0.8):
                repaired = await sweep.act()
            _add(self.counts.passes, sweep.name, 1)
            _add(self.counts.repaired, sweep.name, repaired)
        except LeaseHeld:
            self._active.discard(sweep.name)
        except (TurnkeeperError, TimeoutError) as error:
            self._active.discard(sweep.name)
            _add(self.counts.failures, sweep.name, 1)
            _log.warning(
                "sweep %s failed: %s", sweep.name, error or "took too long", extra={"sweep": sweep.name}
            )

    async def _hold(self, name: str) -> None:
        """Renew the lease or take it anew; raises ``LeaseHeld`` when another process has it."""
        lease = self._held.get(name)
        if lease is not None and await self._leases.renew(lease):
            return
        self._held.pop(name, None)
        self._held[name] = await self._leases.acquire(name, self._holder, self._lease_s)

    async def _rest(self, sweep: Sweep) -> None:
        asked = self._asked[sweep.name]
        try:
            async with asyncio.timeout(self._every_s):
                await asked.wait()
        except TimeoutError:
            pass
        asked.clear()

    async def _free(self, lease: NamedLease) -> None:
        try:
            await self._leases.release(lease)
        except TurnkeeperError as error:
            _log.info("lease %s was not released: %s; it passes by itself", lease.name, error)


def turn_sweeps(
    queue: TurnQueue, wakes: Bell, *, on_change: Callable[[SessionId], None]
) -> tuple[Sweep, ...]:
    """Return the sweeps of the turn queue and its workers.

    They reap and free dead rows, end late ones, ring for what nobody was woken for, and forget processes that were killed.
    """

    async def reap_batch() -> int:
        touched = await queue.reap(limit=BATCH)
        for turn in touched:
            on_change(turn.session_id)
        return len(touched)

    async def ring() -> int:
        overdue = await queue.has_overdue(TURNS, OVERDUE_S)
        if overdue:
            wakes.ring(TURNS)
        return int(overdue)

    async def drain(batch: Callable[[], Awaitable[int]]) -> int:
        done = 0
        for _ in range(BATCHES_MAX):
            done += (last := await batch())
            if last < BATCH:
                break
        if done:
            wakes.ring(TURNS)
        return done

    return (
        Sweep("turns.reap", partial(drain, reap_batch)),
        Sweep("turns.expire", partial(drain, partial(queue.expire, limit=BATCH))),
        Sweep("turns.ring", ring),
        Sweep("workers.forget", partial(queue.forget_silent, FORGET_WORKERS_S)),
    )


def task_sweeps(
    tasks: TaskStore, wakes: Bell, *, on_change: Callable[[SessionId], None]
) -> tuple[Sweep, ...]:
    """Return the sweeps of background tasks: end those past their deadline, and tell parents what they are owed (TSK-43).

    A delivery that fails is put off, longer each time, with all else that its parent is owed: a parent that cannot be told
    never keeps others waiting.
    """

    async def deliver() -> int:
        done = 0
        for _ in range(BATCHES_MAX):
            debts = await tasks.owed(limit=BATCH)
            done += await _deliver_batch(tasks, wakes, debts, on_change)
            if len(debts) < BATCH:
                break
        return done

    async def end_late() -> int:
        ended = await tasks.end_late(limit=BATCH)
        for task in ended:
            on_change(task.session_id)
        return len(ended)

    return Sweep("tasks.deadline", end_late), Sweep("tasks.deliver", deliver)


async def _deliver_batch(
    tasks: TaskStore, wakes: Bell, debts: Sequence[Debt], on_change: Callable[[SessionId], None]
) -> int:
    done = 0
    failed: set[SessionId] = set()
    for debt in debts:
        try:
            told = await tasks.deliver(debt, wait=False) if debt.parent not in failed else None
        except StoreUnavailable:
            raise  # the whole database is away: the next pass begins anew
        except TurnkeeperError as error:
            failed.add(debt.parent)
            _log.warning("task %s was not delivered: %s", debt.task_id, error, extra={"task": debt.task_id})
            told = None
        if debt.parent in failed:
            await tasks.put_off(debt, min(DELIVERY_RETRY_S * 2 ** min(debt.tries, 16), DELIVERY_RETRY_MAX_S))
        elif told is not None:
            done += 1
            on_change(told.parent)
            wakes.ring(TURNS, [] if told.turn_id is None else [str(told.turn_id)])
    return done


def inbox_sweep(inbox: Inbox, wakes: Bell) -> Sweep:
    """Return the sweep of inboxes: insert the turn of items that wait though none follows, as after one that was refused."""

    async def recover() -> int:
        done = 0
        for _ in range(BATCHES_MAX):
            found = await inbox.recover(limit=BATCH)
            if found.ready:
                wakes.ring(TURNS, [str(turn) for turn in found.ready])
            done += len(found.ready)
            if not found.may_be_more:
                break
        return done

    return Sweep("inbox.recover", recover)


def job_sweep(jobs: JobQueue, wakes: Bell) -> Sweep:
    """Return the sweep of the background pools: ring every queue with something due that nobody was woken for."""

    async def ring() -> int:
        rung = 0
        for pool in (ACTIVITY, REMEMBER, INDEX):
            if await jobs.has_overdue(pool, OVERDUE_S):
                wakes.ring(pool)
                rung += 1
        return rung

    return Sweep("jobs.ring", ring)


class RetentionSweep:
    """Takes away what is old and owed to nobody, a bounded part at a time; after a whole pass it rests ``every_s``."""

    def __init__(self, retention: Retention, policy: Policy, *, every_s: float) -> None:
        self._retention = retention
        self._policy = policy
        self._every_s = every_s
        self._pass: AsyncGenerator[Pruned] | None = None
        self._rests_until = 0.0

    async def act(self) -> int:
        """Go on with the pass, or begin one when it is time; answers how much left."""
        now = asyncio.get_running_loop().time()
        if self._pass is None:
            if now < self._rests_until:
                return 0
            self._pass = self._retention.batches(self._policy)
        gone, batches, pass_ = 0, self._pass, None
        self._pass = None  # a pass that fails, or is cut, begins anew
        for _ in range(BATCHES_MAX):
            try:
                gone += (await anext(batches)).all
            except StopAsyncIteration:
                self._rests_until = now + self._every_s
                break
        else:
            pass_ = batches
        self._pass = pass_
        return gone


def retention_sweeps(
    retention: Retention, *, key_window_days: float, sessions_keep_days: float, every_s: float
) -> tuple[Sweep, ...]:
    """Return the sweep of retention, none when nothing may leave; receipts of the memory store leave by command only."""
    if not key_window_days and not sessions_keep_days:
        return ()
    policy = Policy(
        rows_after=timedelta(days=key_window_days) if key_window_days else None,
        sessions_after=timedelta(days=sessions_keep_days) if sessions_keep_days else None,
        memory=False,
    )
    return (Sweep("retention", RetentionSweep(retention, policy, every_s=every_s).act),)


def _add(counts: dict[str, int], name: str, n: int) -> None:
    counts[name] = counts.get(name, 0) + n

"""The sweeps of upkeep: one at a time in the whole system, at once when asked, and back when a holder is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from shared.conformance.turn_stage import seen
from shared.domain.errors import LeaseHeld, StoreUnavailable, TurnRefused
from shared.domain.ids import WorkerId
from shared.leases.inproc import InprocLeases, LeaseTable
from shared.leases.port import NamedLease
from shared.models.scripted import ScriptedModel
from shared.turns.admission import TurnToAdmit
from shared.turns.inproc.rows import TurnTables
from shared.turns.queue import INBOX_RETRY_S
from shared.wakes.inproc import InprocWakes
from tests.support.turn_world import LEASE_S, TurnWorld
from tests.support.virtual_time import loop_clock, virtual_time
from workers.sweeps import BATCH, BATCHES_MAX, FORGET_WORKERS_S, Sweep, Sweeps, inbox_sweep, turn_sweeps

EVERY_S = 5.0
SWEEP_LEASE_S = 15.0


def now() -> float:
    return asyncio.get_running_loop().time()


class Noted:
    """A sweep that notes when it ran; it may be told to take long or to fail."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.takes_s = 0.0
        self.failure: Exception | None = None

    async def act(self) -> int:
        self.times.append(now())
        if self.takes_s:
            await asyncio.sleep(self.takes_s)
        if self.failure is not None:
            raise self.failure
        return 2


class FailingLeases(InprocLeases):
    """Leases over a line that may be cut."""

    away = False

    async def acquire(self, name: str, holder: str, lease_s: float) -> NamedLease:
        self._reach()
        return await super().acquire(name, holder, lease_s)

    async def renew(self, lease: NamedLease) -> bool:
        self._reach()
        return await super().renew(lease)

    async def release(self, lease: NamedLease) -> bool:
        self._reach()
        return await super().release(lease)

    def _reach(self) -> None:
        if self.away:
            raise StoreUnavailable("the database cannot be reached")


def sweeps_of(noted: Noted, leases: InprocLeases, holder: str = "u1") -> Sweeps:
    return Sweeps([Sweep("repair", noted.act)], leases, holder, every_s=EVERY_S, lease_s=SWEEP_LEASE_S)


@asynccontextmanager
async def serving(*sweeps: Sweeps) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(s.serve()) for s in sweeps]
    try:
        yield
    finally:
        for s in sweeps:
            await s.drain(1.0)
        await asyncio.gather(*tasks)


@virtual_time
@pytest.mark.behaviour("DST-11")
async def test_a_sweep_runs_on_its_beat_and_counts_what_it_did() -> None:
    noted = Noted()
    sweeps = sweeps_of(noted, InprocLeases(LeaseTable(loop_clock)))
    async with serving(sweeps):
        await asyncio.sleep(3 * EVERY_S + 0.1)
        assert noted.times == [0, EVERY_S, 2 * EVERY_S, 3 * EVERY_S]
        info = sweeps.info()
        assert (info["held"], info["sweeps"], info["repaired"]) == (0, ["repair"], {"repair": 8})
    assert (sweeps.counts.passes, sweeps.counts.failures) == ({"repair": 4}, {})


@virtual_time
@pytest.mark.behaviour("DST-11")
async def test_of_two_processes_one_works_and_the_other_stands_by() -> None:
    leases = InprocLeases(LeaseTable(loop_clock))
    first, second = Noted(), Noted()
    one, two = sweeps_of(first, leases, "u1"), sweeps_of(second, leases, "u2")
    async with serving(one, two):
        await asyncio.sleep(10 * EVERY_S + 0.1)
        assert (len(first.times), len(second.times)) == (11, 0)
        assert (one.info()["sweeps"], two.info()["sweeps"]) == (["repair"], [])


@virtual_time
@pytest.mark.behaviour("DST-11")
async def test_the_other_goes_on_at_once_when_the_holder_drains() -> None:
    leases = InprocLeases(LeaseTable(loop_clock))
    first, second = Noted(), Noted()
    one, two = sweeps_of(first, leases, "u1"), sweeps_of(second, leases, "u2")
    async with serving(one, two):
        await asyncio.sleep(EVERY_S + 1)
        await one.drain(1.0)
        drained_at = now()
        await asyncio.sleep(EVERY_S)
        assert second.times and second.times[0] - drained_at <= EVERY_S
        assert (one.info()["sweeps"], len(first.times)) == ([], 2)


@virtual_time
@pytest.mark.behaviour("DST-11")
async def test_the_other_takes_over_when_the_holder_is_gone_without_a_word() -> None:
    table = LeaseTable(loop_clock)
    lost, kept = FailingLeases(table), InprocLeases(table)
    first, second = Noted(), Noted()
    one, two = sweeps_of(first, lost, "u1"), sweeps_of(second, kept, "u2")
    async with serving(one, two):
        await asyncio.sleep(EVERY_S + 0.1)
        lost.away = True
        await asyncio.sleep(SWEEP_LEASE_S + EVERY_S)
        assert first.times == [0, EVERY_S]
        assert second.times and EVERY_S + SWEEP_LEASE_S < second.times[0] <= 2 * EVERY_S + SWEEP_LEASE_S
        assert one.counts.failures["repair"] >= 3
        lost.away = False
        await asyncio.sleep(3 * EVERY_S)
        assert len(first.times) == 2, "back again it is the one that stands by"


@virtual_time
@pytest.mark.behaviour("DST-11")
async def test_a_wake_sweeps_now() -> None:
    noted = Noted()
    sweeps = sweeps_of(noted, InprocLeases(LeaseTable(loop_clock)))
    async with serving(sweeps):
        await asyncio.sleep(1)
        sweeps.offer(["ignored"])
        await asyncio.sleep(0.1)
        assert noted.times == [0, 1]
        await asyncio.sleep(EVERY_S)
        assert noted.times == [0, 1, 1 + EVERY_S]


@virtual_time
async def test_a_pass_that_takes_too_long_is_cut_before_its_lease_ends_and_the_sweep_goes_on() -> None:
    noted = Noted()
    noted.takes_s = 100
    leases = InprocLeases(LeaseTable(loop_clock))
    sweeps = sweeps_of(noted, leases)
    async with serving(sweeps):
        await asyncio.sleep(SWEEP_LEASE_S - 0.1)
        assert sweeps.counts.failures == {"repair": 1}
        with pytest.raises(LeaseHeld):
            await leases.acquire("repair", "u2", 1)
        noted.takes_s = 0
        await asyncio.sleep(2 * EVERY_S)
        assert sweeps.counts.passes["repair"] >= 1


@virtual_time
async def test_a_typed_failure_is_counted_and_the_sweep_goes_on() -> None:
    noted = Noted()
    noted.failure = StoreUnavailable("away")
    sweeps = sweeps_of(noted, InprocLeases(LeaseTable(loop_clock)))
    async with serving(sweeps):
        await asyncio.sleep(EVERY_S + 0.1)
        noted.failure = None
        await asyncio.sleep(EVERY_S)
    assert (sweeps.counts.failures, sweeps.counts.passes) == ({"repair": 2}, {"repair": 1})


@virtual_time
@pytest.mark.behaviour("DST-30")
async def test_a_defect_of_a_sweep_ends_its_process_instead_of_the_sweep_alone() -> None:
    noted = Noted()
    noted.failure = ZeroDivisionError("defect")
    leases = InprocLeases(LeaseTable(loop_clock))
    sweeps = sweeps_of(noted, leases)
    with pytest.raises(ZeroDivisionError):
        await sweeps.serve()
    await sweeps.drain(1.0)
    await leases.acquire("repair", "u2", 1)


@virtual_time
@pytest.mark.behaviour("DST-18")
async def test_a_drain_lets_the_pass_under_way_finish_and_frees_the_lease() -> None:
    noted = Noted()
    noted.takes_s = 3
    leases = InprocLeases(LeaseTable(loop_clock))
    sweeps = sweeps_of(noted, leases)
    serve = asyncio.create_task(sweeps.serve())
    await asyncio.sleep(1)
    await sweeps.drain(25.0)
    await serve
    assert (now(), sweeps.counts.passes) == (3, {"repair": 1})
    await leases.acquire("repair", "u2", 1)


@virtual_time
@pytest.mark.behaviour("DST-18")
async def test_a_pass_past_the_drains_time_is_cancelled_and_the_lease_is_free_all_the_same() -> None:
    noted = Noted()
    noted.takes_s = 10
    leases = InprocLeases(LeaseTable(loop_clock))
    sweeps = sweeps_of(noted, leases)
    serve = asyncio.create_task(sweeps.serve())
    await asyncio.sleep(1)
    await sweeps.drain(2.0)
    await serve
    assert (now(), sweeps.counts.passes) == (3, {})
    await leases.acquire("repair", "u2", 1)


@virtual_time
async def test_a_lease_that_cannot_be_freed_does_not_hold_the_drain_up() -> None:
    leases = FailingLeases(LeaseTable(loop_clock))
    sweeps = sweeps_of(Noted(), leases)
    serve = asyncio.create_task(sweeps.serve())
    await asyncio.sleep(1)
    leases.away = True
    await sweeps.drain(2.0)
    await serve
    assert now() == 1


@virtual_time
async def test_cancelling_the_server_cancels_its_sweeps() -> None:
    leases = InprocLeases(LeaseTable(loop_clock))
    sweeps = sweeps_of(Noted(), leases)
    serve = asyncio.create_task(sweeps.serve())
    await asyncio.sleep(1)
    serve.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serve
    await asyncio.sleep(0.1)
    await leases.acquire("repair", "u2", 1)


# --- what the sweeps of the turn queue repair ------------------------------------------------------------------------


class Upkeep:
    """The sweeps of a world's queue, to be run by hand."""

    def __init__(self, world: TurnWorld) -> None:
        self.wakes = InprocWakes()
        self.changed: list[str] = []
        found = (
            *turn_sweeps(world.queue, self.wakes, on_change=self.changed.append),
            inbox_sweep(world.inbox, self.wakes),
        )
        self.acts = {sweep.name: sweep.act for sweep in found}


@virtual_time
@pytest.mark.behaviour("DST-12")
async def test_the_queue_is_rung_for_what_is_due_for_longer_than_a_second() -> None:
    world = TurnWorld(ScriptedModel([]))
    upkeep = Upkeep(world)
    assert await upkeep.acts["turns.ring"]() == 0
    await world.admit()
    await asyncio.sleep(1)
    assert await upkeep.acts["turns.ring"]() == 0
    await asyncio.sleep(0.1)
    assert await upkeep.acts["turns.ring"]() == 1
    assert upkeep.wakes.rings == [("turns", ())]


@virtual_time
@pytest.mark.behaviour("SES-123", "DST-13")
async def test_dead_turns_are_reaped_their_followers_told_and_the_queue_rung() -> None:
    world = TurnWorld(ScriptedModel([]), on_worker_loss="interrupt")
    turn = await world.admit()
    claim = (await world.process().claim()).claim
    await world.queue.open(claim, "c1", [])
    upkeep = Upkeep(world)
    assert await upkeep.acts["turns.reap"]() == 0
    assert upkeep.wakes.rings == []
    await asyncio.sleep(LEASE_S + 1)
    assert await upkeep.acts["turns.reap"]() == 1
    view = await world.view(turn)
    assert (view.outcome, view.code) == ("interrupted", "turn.lease")
    assert upkeep.changed == [world.session]
    assert upkeep.wakes.rings == [("turns", ())]


@virtual_time
async def test_rows_past_their_deadline_are_ended_batch_by_batch_and_a_pass_has_an_end() -> None:
    world = TurnWorld(ScriptedModel([]))
    late = loop_clock()
    await world.admit(deadline=late)
    rows = world.store.part(TurnTables).turns
    (first,) = rows.values()
    for _ in range(BATCH + 10):
        world.session = type(world.session)("")
        await world.admit(deadline=late)
    await asyncio.sleep(1)
    upkeep = Upkeep(world)
    assert await upkeep.acts["turns.expire"]() == BATCH + 11
    assert (first.status, first.code) == ("expired", "turn.deadline")
    assert upkeep.wakes.rings == [("turns", ())]
    assert BATCHES_MAX * BATCH >= 1_000


@virtual_time
@pytest.mark.behaviour("INB-30", "INB-35")
async def test_items_whose_turn_the_host_refused_get_another_one_and_it_is_rung() -> None:
    world = TurnWorld(ScriptedModel(["seen"]))
    world.admission = Refuses()
    upkeep, process = Upkeep(world), world.process()
    await world.deliver("a")
    await process.run()
    assert await upkeep.acts["inbox.recover"]() == 0  # not at once
    await asyncio.sleep(INBOX_RETRY_S)
    assert await upkeep.acts["inbox.recover"]() == 1
    world.admission = None
    [(_, [rung])] = upkeep.wakes.rings
    holding = await world.process().run()
    assert str(holding.claim.turn_id) == rung
    assert world.kinds()[-1] == "turn.ended"
    assert await upkeep.acts["inbox.recover"]() == 0


@virtual_time
@pytest.mark.behaviour("INB-35")
async def test_sessions_whose_turns_are_not_over_hide_none_behind_them_from_the_sweep() -> None:
    world = TurnWorld(ScriptedModel([]))
    for _ in range(BATCH):
        world.session = type(world.session)("")
        await world.admit()
        await world.deliver("a")
    world.session = type(world.session)("")
    owed = await world.deliver("a")
    await asyncio.sleep(3_601)
    upkeep = Upkeep(world)
    assert await upkeep.acts["inbox.recover"]() == 1
    assert upkeep.wakes.rings == [("turns", (str(owed.turn_id),))]


class Refuses:
    """An admission that admits nothing."""

    async def admit(self, turn: TurnToAdmit, proceed: Callable[[], Awaitable[None]]) -> None:
        raise TurnRefused("not now", session=turn.session_id, reason="draining")


@virtual_time
async def test_the_row_of_a_killed_process_is_forgotten_in_the_end_and_that_of_a_living_one_never() -> None:
    world = TurnWorld(ScriptedModel([]))
    upkeep = Upkeep(world)
    for worker in ("killed", "living"):
        await world.queue.seen(seen(WorkerId(worker)))
    await asyncio.sleep(FORGET_WORKERS_S)
    await world.queue.seen(seen(WorkerId("living")))
    assert await upkeep.acts["workers.forget"]() == 0
    await asyncio.sleep(1)
    assert await upkeep.acts["workers.forget"]() == 1
    assert [row["id"] for row in await world.queue.workers()] == ["living"]

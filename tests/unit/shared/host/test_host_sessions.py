"""A host's sessions over a line that fails, in virtual time: the keep-alive, lost answers, and what is let go of."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shared.domain.errors import ConfigError, SessionBusy, SessionMissing, StoreUnavailable, TurnClosed
from shared.domain.ids import WorkerId
from shared.host.activity import await_idle, process_activity
from shared.host.beginning import admission_of
from shared.host.commits import WriterRules
from shared.host.ownership import EveryMs, HolderProcess, LeaseOwnership, ProcessLiveness, ProcessOwnership
from shared.host.port import NewTurn, SessionAddress
from shared.host.sessions import HostSessions
from shared.turns.admission import OpenAdmission, TurnToAdmit
from shared.turns.queue import AdmissionLimits, Ending
from tests.support.host_world import OWNER, HostWorld, note
from tests.support.virtual_time import virtual_time

COMPLETED = Ending("completed")
TURN = NewTurn({"text": "hello"})
KEPT = LeaseOwnership(60_000, EveryMs(20_000))
FIXED = LeaseOwnership(60_000, "none")


class Host:
    """A world with one instance and its session."""

    def __init__(self, ownership: Any = KEPT, **how: Any) -> None:
        self.world = HostWorld()
        self.sessions = HostSessions(self.world.log, self.world.queue, ownership=ownership, **how)
        self.address = SessionAddress(self.world.session, OWNER)

    async def open(self) -> Host:
        self.address = (await self.sessions.create(OWNER)).address
        self.world.session = self.address.id
        return self

    def another(self, ownership: Any = KEPT, **how: Any) -> HostSessions:
        return HostSessions(self.world.log, self.world.queue, ownership=ownership, **how)


# --- the keep-alive --------------------------------------------------------------------------------------------


@pytest.mark.behaviour("SES-88", "SES-90")
@virtual_time
async def test_a_keep_alive_holds_a_turn_that_writes_nothing_for_longer_than_its_lease() -> None:
    host = await Host().open()
    other = host.another()
    async with host.sessions.begin(host.address, TURN) as writer:
        await asyncio.sleep(600)
        view = await other.view(host.address)
        assert view.open is not None and view.open.turn == 1
        with pytest.raises(SessionBusy):
            async with other.begin(host.address, TURN):
                pass
        await writer.append([note()])
        await writer.end(COMPLETED)
    assert host.world.ends() == [("completed", None)]
    renewed = host.world.queue.renewals
    assert renewed == 600 // 20 - 1 or renewed == 600 // 20
    await asyncio.sleep(600)
    assert host.world.queue.renewals == renewed  # nothing is held, nothing is renewed


@pytest.mark.behaviour("SES-93")
@virtual_time
async def test_a_turn_shorter_than_the_interval_costs_no_renewal() -> None:
    host = await Host().open()
    for _ in range(3):
        async with host.sessions.begin(host.address, TURN) as writer:
            await asyncio.sleep(19)
            await writer.end(COMPLETED)
    assert host.world.queue.renewals == 0


@virtual_time
async def test_all_turns_of_an_instance_are_renewed_in_one_statement() -> None:
    host = await Host().open()
    second = (await host.sessions.create(OWNER)).address
    async with host.sessions.begin(host.address, TURN), host.sessions.begin(second, TURN):
        await asyncio.sleep(50)
        assert host.world.queue.renewals == 2


@pytest.mark.behaviour("SES-88", "SES-127")
@virtual_time
async def test_a_cancel_from_another_process_is_noticed_within_one_interval() -> None:
    host = await Host().open()
    other = host.another()
    async with host.sessions.begin(host.address, TURN) as writer:
        closed = asyncio.create_task(writer.closed())
        await asyncio.sleep(65)
        assert await other.cancel(host.address, 1) is True
        await asyncio.sleep(20)
        assert closed.done() and closed.result() == "cancelled"
        with pytest.raises(TurnClosed) as caught:
            await writer.append([note()])
        assert caught.value.fields["reason"] == "cancelled"
    assert host.world.ends() == [("cancelled", None)]
    assert host.world.notes() == []


@pytest.mark.behaviour("SES-99", "SES-100")
@virtual_time
async def test_a_stalled_holder_keeps_its_turn_until_a_cancel_closes_it() -> None:
    host = await Host().open()
    async with host.sessions.begin(host.address, TURN):
        await asyncio.sleep(7_200)
        assert (await host.another().view(host.address)).open is not None
        assert await host.another().cancel(host.address, 1) is True
    assert host.world.ends() == [("cancelled", None)]


@virtual_time
async def test_a_holder_that_cannot_renew_stops_before_its_lease_is_anyone_elses() -> None:
    host = await Host().open()
    async with host.sessions.begin(host.address, TURN) as writer:
        host.world.queue.away = True
        await writer.append([note()])
        assert await writer.closed() == "interrupted"
        assert asyncio.get_running_loop().time() < 60
        host.world.queue.away = False
    assert host.world.notes() == []
    await asyncio.sleep(60)
    async with host.another().begin(host.address, TURN) as writer:
        await writer.end(COMPLETED)
    assert host.world.ends() == [("interrupted", "turn.lease"), ("completed", None)]


@pytest.mark.behaviour("SES-91")
@virtual_time
async def test_under_on_commit_each_write_prolongs_the_trust_and_silence_ends_it() -> None:
    host = await Host(LeaseOwnership(60_000, "on-commit")).open()
    async with host.sessions.begin(host.address, TURN) as writer:
        for _ in range(4):
            await asyncio.sleep(40)
            await writer.append([note()])
            await writer.flush()
        await asyncio.sleep(61)
        assert writer.reason == "interrupted"
        with pytest.raises(TurnClosed):
            await writer.append([note()])
    async with host.sessions.begin(host.address, TURN) as writer:
        await writer.end(COMPLETED)
    assert host.world.ends() == [("interrupted", "turn.lease"), ("completed", None)]
    assert host.world.queue.renewals == 0


# --- begins that go wrong --------------------------------------------------------------------------------------


@pytest.mark.behaviour("SES-56", "SHD-06")
@virtual_time
async def test_a_begin_cancelled_after_its_opening_commit_ends_its_turn_as_interrupted() -> None:
    host = await Host().open()
    queue = host.world.queue
    queue.faults["begin"] = ["lost"]  # stored; its answer is on the way when the caller leaves
    queue.faults["end"] = ["unreached", "unreached"]

    async def begin() -> None:
        async with host.sessions.begin(host.address, TURN):
            raise AssertionError("the block never runs")

    beginning = asyncio.create_task(begin())
    await asyncio.sleep(0.0001)
    assert host.world.kinds() == ["turn.started"]
    beginning.cancel()
    await asyncio.sleep(0.005)
    assert host.sessions.activity.current.beginning == 1  # until what it stored is closed
    await asyncio.wait([beginning])
    assert beginning.cancelled()
    assert host.sessions.activity.current.beginning == 0
    assert host.world.ends() == [("interrupted", "turn.interrupted")]
    async with host.sessions.begin(host.address, TURN) as writer:
        await writer.end(COMPLETED)


@virtual_time
async def test_a_begin_cancelled_before_anything_is_stored_opens_nothing() -> None:
    host = await Host(admission=Waiting(asyncio.Event())).open()
    beginning = asyncio.create_task(_run_turn(host.sessions, host.address))
    await asyncio.sleep(0.01)
    beginning.cancel()
    await asyncio.wait([beginning], timeout=30)
    assert host.world.kinds() == []


@virtual_time
async def test_a_begin_whose_answer_is_lost_is_adopted_and_opens_one_turn() -> None:
    host = await Host().open()
    host.world.queue.faults["begin"] = ["lost"]
    await _run_turn(host.sessions, host.address)
    assert host.world.kinds() == ["turn.started", "turn.ended"]


@pytest.mark.behaviour("SES-119", "SES-120")
@pytest.mark.parametrize("ownership", [KEPT, FIXED, ProcessOwnership()])
def test_a_begin_whose_outcome_stays_unknown_leaves_no_turn_that_holds_the_session(ownership: Any) -> None:
    @virtual_time
    async def run() -> None:
        host = await Host(ownership).open()
        host.world.queue.faults["begin"] = ["lost", "unreached", "unreached"]
        with pytest.raises(StoreUnavailable):
            await _run_turn(host.sessions, host.address)
        assert host.world.kinds() == ["turn.started"]
        assert (await host.sessions.view(host.address)).open is None
        await _run_turn(host.sessions, host.address)
        assert host.world.ends() == [("interrupted", "turn.lease"), ("completed", None)]

    run()


# --- what is let go of -----------------------------------------------------------------------------------------


@pytest.mark.behaviour("SES-118", "SES-119", "SES-120")
@pytest.mark.parametrize("ownership", [KEPT, FIXED, ProcessOwnership()])
@pytest.mark.parametrize("fault", ["unreached", "lost"])
def test_a_turn_whose_closing_commit_fails_is_logged_and_let_go_of(
    ownership: Any, fault: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @virtual_time
    async def run() -> None:
        host = await Host(ownership, rules=WriterRules(patience_s=0)).open()
        host.world.queue.faults["end"] = [fault]
        with caplog.at_level(logging.WARNING):
            async with host.sessions.begin(host.address, TURN) as writer:
                turn = writer.admitted.turn_id
        [record] = [r for r in caplog.records if "could not be ended" in r.message]
        assert (record.__dict__["session"], record.__dict__["turn"]) == (host.address.id, str(turn))
        assert (await host.sessions.view(host.address)).open is None  # at once, here
        assert await host.sessions.cancel(host.address, 1) is False
        await _run_turn(host.sessions, host.address)
        first = ("failed", "turn.unended") if fault == "lost" else ("interrupted", "turn.lease")
        assert host.world.ends() == [first, ("completed", None)]

    run()


@virtual_time
async def test_a_view_that_meets_a_removal_finds_no_session() -> None:
    host = await Host().open()

    async with host.sessions.begin(host.address, TURN):
        reading = asyncio.create_task(host.another().view(host.address))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # its head is read
        host.world.store.remove([host.address.id])
        with pytest.raises(SessionMissing):
            await reading


@pytest.mark.behaviour("SES-108", "SES-117")
@pytest.mark.parametrize("ownership", [KEPT, ProcessOwnership()])
def test_a_holder_that_names_no_process_holds_nothing(ownership: Any) -> None:
    @virtual_time
    async def run() -> None:
        host = await Host(ownership).open()
        admission, started = admission_of(host.address, TURN)
        await host.world.queue.begin(
            admission,
            WorkerId("an-older-version"),
            lease_s=None,
            commit_id="c",
            drafts=[started],
            limits=AdmissionLimits(),
        )
        assert (await host.sessions.view(host.address)).open is None
        await _run_turn(host.sessions, host.address)
        assert host.world.ends() == [("interrupted", "turn.lease"), ("completed", None)]

    run()


@pytest.mark.behaviour("SES-112", "SES-109")
@virtual_time
async def test_a_host_brings_its_own_liveness() -> None:
    from_default = await Host(ProcessOwnership()).open()
    async with from_default.sessions.begin(from_default.address, TURN):
        strict = from_default.another(ProcessOwnership(), liveness=NobodyRuns())
        assert (await strict.view(from_default.address)).open is None
        assert (await from_default.sessions.view(from_default.address)).open is not None


class NobodyRuns(ProcessLiveness):
    """Takes no process for a running one."""

    def is_running(self, process: HolderProcess) -> bool | None:
        return False


# --- in flight, and shutting down ------------------------------------------------------------------------------


class Waiting:
    """An admission that waits."""

    def __init__(self, gate: asyncio.Event) -> None:
        self.gate = gate

    async def admit(self, turn: TurnToAdmit, proceed: Callable[[], Awaitable[None]]) -> None:
        await self.gate.wait()
        await proceed()


class Noting:
    """An admission that keeps the meta of what it admits."""

    def __init__(self) -> None:
        self.seen: list[dict[str, object]] = []

    async def admit(self, turn: TurnToAdmit, proceed: Callable[[], Awaitable[None]]) -> None:
        self.seen.append(dict(turn.meta))
        await proceed()


@pytest.mark.behaviour("TRN-38", "TRN-41")
@virtual_time
async def test_a_hosts_admission_sees_the_meta_of_a_turn_and_nothing_where_there_is_none() -> None:
    noting = Noting()
    host = await Host(admission=noting).open()
    for meta in ({"tenant": "t"}, None):
        async with host.sessions.begin(host.address, NewTurn({"text": "hi"}, meta=meta)) as writer:
            await writer.end(Ending("completed"))
    assert noting.seen == [{"tenant": "t"}, {}]


@pytest.mark.behaviour("SHD-25", "SHD-02", "SHD-14")
@virtual_time
async def test_a_drain_waits_for_a_begin_that_passed_the_flag_and_is_blocked_in_the_store() -> None:
    gate = asyncio.Event()
    host = await Host(admission=Waiting(gate)).open()
    turn = asyncio.create_task(_run_turn(host.sessions, host.address))
    await asyncio.sleep(0.01)
    waiting = asyncio.create_task(await_idle(lambda: process_activity(host.sessions.activity), timeout=25))
    await asyncio.sleep(1)
    assert not waiting.done()
    gate.set()
    assert not (await waiting).busy
    assert turn.done()


@pytest.mark.behaviour("SHD-30", "SHD-31", "SHD-32", "SHD-39", "SHD-40")
@virtual_time
async def test_a_turn_whose_log_is_closed_under_it_cannot_store_its_end_and_is_reaped_after_its_lease() -> (
    None
):
    host = await Host(FIXED).open()
    begun = asyncio.Event()

    async def hold() -> None:
        async with host.sessions.begin(host.address, TURN):
            begun.set()
            await asyncio.Event().wait()

    request = asyncio.create_task(hold())
    await begun.wait()
    host.world.queue.away = True  # the services are closed first: the wrong order
    assert not request.done()  # nothing of the services stops the turn
    request.cancel()
    await asyncio.wait([request])
    host.world.queue.away = False
    next_process = host.another(FIXED)
    with pytest.raises(SessionBusy):
        await _run_turn(next_process, host.address)
    await asyncio.sleep(61)
    await _run_turn(next_process, host.address)
    assert host.world.ends() == [("interrupted", "turn.lease"), ("completed", None)]


@pytest.mark.behaviour("SES-137")
@virtual_time
async def test_an_open_admission_admits_all() -> None:
    host = await Host(admission=OpenAdmission()).open()
    for _ in range(3):
        await _run_turn(host.sessions, host.address)
    assert host.world.ends() == [("completed", None)] * 3


@virtual_time
async def test_retries_out_of_their_bounds_are_refused_at_build() -> None:
    for retries in (-1, 1_001):
        with pytest.raises(ConfigError) as caught:
            Host(retries=retries)
        assert caught.value.fields["field"] == "retries"


async def _run_turn(sessions: HostSessions, address: SessionAddress) -> None:
    async with sessions.begin(address, TURN) as writer:
        await writer.end(COMPLETED)

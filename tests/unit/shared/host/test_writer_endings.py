"""The turn's writer: exactly one end, ends by someone else, and the closing of its scope."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from shared.domain.errors import (
    FenceLost,
    StoreUnavailable,
    TurnClosed,
)
from shared.domain.ids import WorkerId
from shared.host.commits import WriterEars
from shared.host.writer import QueuedTurnWriter
from shared.turns.queue import ClaimRequest, Ending
from tests.support.host_world import LEASE_S, OWNER, HostWorld, note
from tests.support.virtual_time import VirtualTimeLoop, virtual_time

COMPLETED = Ending("completed")
FAILED = Ending("failed", "turn.failed")


# --- the end ---------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("SES-51", "EVT-56")
@virtual_time
async def test_an_end_stores_what_was_queued_with_it_in_one_commit() -> None:
    world = HostWorld()
    writer = await world.writer()
    await writer.append([note(1)])
    ended = await writer.end(COMPLETED, [note(2)])
    assert (ended.seq, ended.pending, ended.promoted) == (4, 0, None)
    assert world.commits() == [("note.added", "note.added", "turn.ended")]


@pytest.mark.behaviour("SES-52")
@virtual_time
async def test_an_end_that_the_store_failed_is_tried_again_and_loses_nothing() -> None:
    world = HostWorld()
    writer = await world.writer(patience_s=0)
    await writer.append([note(1)])
    world.queue.faults["end"] = ["unreached", "lost"]
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await writer.end(COMPLETED)
    with pytest.raises(StoreUnavailable):
        await writer.append([note("between")])
    ended = await writer.end(FAILED)  # the second try was stored: it is the turn's end
    assert ended.seq == 3
    assert world.kinds() == ["turn.started", "note.added", "turn.ended"]
    assert world.ends() == [("completed", None)]
    assert len({commit for what, commit in world.queue.sent if what == "end"}) == 1


@pytest.mark.behaviour("SES-75", "SES-53")
@virtual_time
async def test_once_its_end_is_under_way_the_turn_takes_no_more_writes() -> None:
    world = HostWorld()
    writer = await world.writer()
    world.queue.faults["end"] = ["unreached"] * 3
    ending = asyncio.create_task(writer.end(COMPLETED))
    await asyncio.sleep(0.02)
    for call in (lambda: writer.append([note()]), writer.flush, lambda: writer.end(FAILED)):
        with pytest.raises(TurnClosed) as caught:
            await call()
        assert caught.value.fields["reason"] == "ended"
    writer.lose("ended")  # somebody noticed our own end before its answer came
    await ending
    assert await writer.closed() == "ended"
    with pytest.raises(TurnClosed):
        await writer.append([note()])
    assert world.ends() == [("completed", None)]


@pytest.mark.behaviour("SES-53", "SES-75", "SES-73")
@pytest.mark.parametrize("reason", ["cancelled", "interrupted", "removed"])
def test_someone_elses_end_refuses_the_next_write_with_its_reason(reason: str) -> None:
    async def run() -> None:
        world = HostWorld()
        claim = await world.claim()
        writer = await world.writer(claim)
        if reason == "cancelled":
            await world.queue.cancel(claim.turn_id, OWNER)
        elif reason == "interrupted":
            await asyncio.sleep(LEASE_S + 1)
            await world.queue.reap()
        else:
            await world.log.remove(world.session, OWNER)
        closed = asyncio.create_task(writer.closed())
        await writer.append([note()])
        with pytest.raises(TurnClosed) as caught:
            await writer.flush()
        assert caught.value.fields["reason"] == reason
        assert await closed == reason
        for call in (lambda: writer.append([note()]), lambda: writer.end(FAILED)):
            with pytest.raises(TurnClosed):
                await call()
        if reason != "removed":
            assert world.notes() == []

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(run())


@pytest.mark.behaviour("SES-61")
@virtual_time
async def test_a_passed_lease_or_another_holder_closes_the_turn_as_interrupted() -> None:
    world = HostWorld()
    claim = await world.claim(on_worker_loss="continue")
    writer = await world.writer(claim)
    await asyncio.sleep(LEASE_S + 1)
    await writer.append([note("late")])
    with pytest.raises(TurnClosed) as caught:
        await writer.flush()
    assert caught.value.fields["reason"] == "interrupted"
    [taken] = await world.queue.claim(ClaimRequest(WorkerId("other"), 1))
    second = QueuedTurnWriter(world.queue, world.log, taken)
    assert (await second.open([], title=None)).result == "took-over"
    await second.end(COMPLETED)
    assert world.notes() == []


@virtual_time
async def test_a_lost_lease_with_records_queued_stores_none_and_hangs_nobody() -> None:
    world = HostWorld()
    writer = await world.writer(capacity=4)
    gate = asyncio.Event()
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(writer.write(gate.wait))]
    await asyncio.sleep(0.1)
    tasks += [asyncio.create_task(writer.append([note(n)])) for n in range(10)]
    tasks.append(asyncio.create_task(writer.flush()))
    await asyncio.sleep(0.1)
    writer.lose("interrupted")
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(answer, TurnClosed) for answer in answers) == 8  # four had been queued, and went on
    assert world.notes() == []


# --- the scope -------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("SES-54", "SES-55", "EVT-60")
@pytest.mark.parametrize(
    ("error", "end"),
    [
        (None, ("failed", "turn.unended")),
        (LookupError("why"), ("failed", "turn.unended")),
        (asyncio.CancelledError(), ("interrupted", "turn.interrupted")),
    ],
)
def test_a_scope_that_closes_without_an_end_stores_what_is_queued_and_ends_the_turn(
    error: BaseException | None, end: tuple[str, str]
) -> None:
    async def run() -> None:
        world = HostWorld()
        writer = await world.writer()
        for n in range(500):
            await writer.append([note(n)])
        await writer.close_scope(error)
        assert world.notes() == [*range(500)]
        assert world.ends() == [end]
        assert world.kinds()[-1] == "turn.ended"
        assert writer.reason == "ended"

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(run())


@virtual_time
async def test_a_scope_that_closes_while_the_store_is_away_leaves_the_turn_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = HostWorld()
    writer = await world.writer()
    world.queue.away = True
    with caplog.at_level(logging.WARNING):
        await writer.close_scope(None)
    [record] = caplog.records
    assert (record.__dict__["session"], record.__dict__["turn"]) == (
        world.session,
        str(writer.admitted.turn_id),
    )
    assert writer.reason == "ended"
    world.queue.away = False
    await asyncio.sleep(60)
    assert world.ends() == []


@virtual_time
async def test_an_end_whose_caller_was_cancelled_is_stored_when_the_scope_closes() -> None:
    world = HostWorld()
    writer = await world.writer()
    world.queue.faults["end"] = ["unreached", "unreached"]
    ending = asyncio.create_task(writer.end(COMPLETED))
    await asyncio.sleep(0.01)
    ending.cancel()
    await asyncio.wait([ending])
    await writer.close_scope(asyncio.CancelledError())
    assert world.ends() == [("completed", None)]


@virtual_time
async def test_a_writer_is_told_of_each_commit_with_the_moment_it_was_sent() -> None:
    world = HostWorld()
    told: list[tuple[int, float]] = []
    closes: list[str] = []
    ears = WriterEars(on_commit=lambda seq, at: told.append((seq, at)), on_close=closes.append)
    writer = await world.writer(ears=ears)
    await asyncio.sleep(3)
    await writer.append([note()])
    await writer.flush()
    await writer.close([], Ending("completed"))
    assert told == [(1, 0.0), (2, 3.0), (2, 3.0)]
    assert closes == ["ended"]
    assert isinstance(writer.admitted.number, int) and writer.session.id == world.session
    assert issubclass(TurnClosed, FenceLost)

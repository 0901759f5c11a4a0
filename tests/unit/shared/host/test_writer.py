"""The turn's writer: order, batches, the latched failure and transactions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.errors import (
    ConfigError,
    InvalidInput,
    ReservedKind,
    SessionContended,
    SessionDefect,
    StoreUnavailable,
    TurnClosed,
)
from shared.domain.ids import SessionId
from shared.host.commits import CAPACITY_MAX, WriterEars, WriterRules
from shared.host.port import Decision
from shared.host.write_queue import BATCH_ITEMS, BATCH_RECORDS
from shared.host.writer import QueuedTurnWriter
from shared.sessions.inproc import InprocSessionLog
from shared.sessions.records import Draft, Record
from shared.sessions.vocabulary import RESERVED_KINDS
from shared.turns.queue import CallEntry, Claim, Ending
from tests.support.host_world import LEASE_S, OWNER, HostWorld, note
from tests.support.turn_world import FaultyQueue
from tests.support.virtual_time import VirtualTimeLoop, virtual_time

COMPLETED = Ending("completed")
FAILED = Ending("failed", "turn.failed")


def line(n: int, state: Any = "started") -> CallEntry:
    return CallEntry(f"call-{n}", 0, n, "tool", "digest", f"token-{n}", state)


async def passes(moment: Awaitable[object]) -> bool:
    """Whether something is done although nothing else happens for half a lease."""
    try:
        async with asyncio.timeout(LEASE_S / 2):
            await moment
    except TimeoutError:
        return False
    return True


class DefectiveQueue(FaultyQueue):
    """A queue with a defect in it."""

    async def append(self, *given: Any, **how: Any) -> int:
        raise ZeroDivisionError("a defect")


class LateLog(InprocSessionLog):
    """A log into which somebody writes just before each read."""

    async def read(self, session_id: SessionId, **how: Any) -> Sequence[Record]:
        await self.commit(session_id, OWNER, [note("late")])
        return await super().read(session_id, **how)


async def reopened(world: HostWorld) -> Claim:
    """A claim whose turn is open."""
    claim = await world.claim()
    await world.writer(claim)
    return claim


def decides(drafts: Sequence[Draft]) -> Callable[[Sequence[Record]], Decision]:
    return lambda _records: Decision(drafts)


# --- order and batches -----------------------------------------------------------------------------------------


@pytest.mark.behaviour("SES-47", "EVT-55", "EVT-56", "EVT-57", "SES-50")
@virtual_time
async def test_appends_that_follow_each_other_share_a_commit_and_only_a_flush_waits() -> None:
    world = HostWorld()
    writer = await world.writer()
    for n in range(5):
        await writer.append([note(n)])
    assert world.notes() == []  # nothing was waited for
    assert await writer.flush() == 6
    assert world.notes() == [0, 1, 2, 3, 4]
    assert world.commits() == [("note.added",) * 5]


@pytest.mark.behaviour("EVT-62")
@virtual_time
async def test_a_commit_holds_64_items_and_256_records_at_most() -> None:
    world = HostWorld()
    writer = await world.writer()
    for n in range(BATCH_ITEMS + 6):
        await writer.append([note(n)])
    await writer.append([note(n) for n in range(2 * BATCH_RECORDS + 10)])
    await writer.append([note("last")])
    await writer.flush()
    assert [len(kinds) for kinds in world.commits()] == [BATCH_ITEMS, 6, BATCH_RECORDS, BATCH_RECORDS, 11]
    assert world.notes() == [*range(BATCH_ITEMS + 6), *range(2 * BATCH_RECORDS + 10), "last"]


@virtual_time
async def test_a_commit_never_grows_beyond_what_the_store_takes() -> None:
    world = HostWorld()
    writer = await world.writer()
    large = "x" * (3 * 1024 * 1024)
    await writer.append([note(large) for _ in range(7)])
    await writer.append([note(large)])
    await writer.flush()
    assert [len(kinds) for kinds in world.commits()] == [5, 3]


@pytest.mark.behaviour("SES-48", "EVT-54", "EVT-58")
@virtual_time
async def test_a_hosts_write_runs_at_its_place_in_the_order() -> None:
    world = HostWorld()
    writer = await world.writer()

    async def look() -> list[Any]:
        await asyncio.sleep(10)
        return world.notes()

    await writer.append([note("before")])
    looking = asyncio.create_task(writer.write(look))
    await asyncio.sleep(1)
    await writer.append([note("after")])
    assert await looking == ["before"]
    await writer.flush()
    assert world.notes() == ["before", "after"]


@virtual_time
async def test_what_a_hosts_write_raises_fails_its_caller_and_no_other_write() -> None:
    world = HostWorld()
    writer = await world.writer()

    async def fail() -> None:
        raise LookupError("the host's own")

    async def give_up() -> None:
        raise asyncio.CancelledError

    with pytest.raises(LookupError):
        await writer.write(fail)
    with pytest.raises(asyncio.CancelledError):
        await writer.write(give_up)
    await writer.append([note()])
    await writer.end(COMPLETED)
    assert world.notes() == [1]


@virtual_time
async def test_a_write_may_append_and_may_not_wait_for_its_own_writer() -> None:
    world = HostWorld()
    writer = await world.writer(capacity=1)

    async def append_twice() -> None:
        await writer.append([note("a")])
        await writer.append([note("b")])

    await writer.write(append_twice)
    for waiting in (writer.flush, lambda: writer.end(COMPLETED), lambda: writer.commit([note()])):

        async def wait_inside(op: Callable[[], Awaitable[object]] = waiting) -> None:
            await op()

        with pytest.raises(InvalidInput, match="waits for another"):
            await writer.write(wait_inside)
    await writer.end(COMPLETED)
    assert world.notes() == ["a", "b"]


@pytest.mark.behaviour("EVT-55")
@virtual_time
async def test_a_full_queue_holds_its_producer_back_and_loses_nothing() -> None:
    world = HostWorld()
    writer = await world.writer(capacity=2)
    gate = asyncio.Event()
    held = asyncio.create_task(writer.write(gate.wait))
    await asyncio.sleep(0.1)
    await writer.append([note(1)])
    await writer.append([note(2)])
    third = asyncio.create_task(writer.append([note(3)]))
    fourth = asyncio.create_task(writer.append([note(4)]))
    assert not await passes(asyncio.shield(third))
    gate.set()
    await asyncio.gather(held, third, fourth)
    await writer.flush()
    assert world.notes() == [1, 2, 3, 4]


@virtual_time
async def test_a_producer_cancelled_while_the_queue_is_full_queues_nothing() -> None:
    world = HostWorld()
    writer = await world.writer(capacity=1)
    gate = asyncio.Event()
    held = asyncio.create_task(writer.write(gate.wait))
    await asyncio.sleep(0.1)
    await writer.append([note(1)])
    waiting = asyncio.create_task(writer.append([note(2)]))
    await asyncio.sleep(0.1)
    waiting.cancel()
    await asyncio.wait([waiting])
    gate.set()
    await held
    await writer.append([note(3)])
    await writer.flush()
    assert world.notes() == [1, 3]


@given(st.lists(st.lists(st.sampled_from(["append", "flush", "write", "transact"]), max_size=5), max_size=6))
def test_any_interleaving_of_producers_is_stored_in_the_order_it_was_queued(plans: list[list[str]]) -> None:
    async def run() -> None:
        world = HostWorld()
        writer = await world.writer(capacity=3)
        queued: list[str] = []

        async def produce(who: int, plan: Sequence[str]) -> None:
            for n, what in enumerate(plan):
                name = f"{who}.{n}"
                if what == "append":
                    # Nothing may come between the note here and the place in the queue: entering is fair.
                    queued.append(name)
                    await writer.append([note(name)])
                elif what == "flush":
                    await writer.flush()
                elif what == "write":
                    await writer.write(lambda: asyncio.sleep(0.1))
                else:
                    await writer.transact(lambda _: Decision())

        async with asyncio.TaskGroup() as group:
            for who, plan in enumerate(plans):
                group.create_task(produce(who, plan))
        await writer.end(COMPLETED)
        assert world.notes() == queued
        assert world.ends() == [("completed", None)]

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(run())


@virtual_time
async def test_a_commit_with_ledger_lines_takes_earlier_appends_with_it_and_ends_there() -> None:
    world = HostWorld()
    steps: list[str] = []
    writer = await world.writer(ears=WriterEars(on_step=lambda: steps.append("step")))
    gate = asyncio.Event()
    held = asyncio.create_task(writer.write(gate.wait))
    await asyncio.sleep(0.1)
    await writer.append([note(1)])
    first = asyncio.create_task(writer.commit([note(2)], calls=[line(1)]))
    second = asyncio.create_task(writer.commit([note(3)], stepped=True, calls=[line(1, "done")]))
    await asyncio.sleep(0.1)
    gate.set()
    await held
    assert (await first, await second) == (3, 4)
    assert [(w.kinds, dict(w.calls), w.stepped) for w in world.queue.writes[1:]] == [
        (("note.added",) * 2, {"call-1": "started"}, False),
        (("note.added",), {"call-1": "done"}, True),
    ]
    assert steps == ["step"]


@pytest.mark.parametrize(
    "bad", [{"capacity": 0}, {"capacity": CAPACITY_MAX + 1}, {"retries": -1}, {"patience_s": -1}]
)
def test_a_rule_out_of_its_bounds_is_refused_with_its_name(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        WriterRules(**bad)
    assert caught.value.fields["field"] in bad
    assert WriterRules().capacity == 1_024


# --- reserved kinds --------------------------------------------------------------------------------------------


@pytest.mark.behaviour("SES-59", "SES-60")
@virtual_time
async def test_every_reserved_kind_is_refused_to_the_host_with_all_of_its_call() -> None:
    world = HostWorld()
    writer = await world.writer()
    for kind in sorted(RESERVED_KINDS):
        batch = [note("good"), note(kind=kind), note("good")]
        with pytest.raises(ReservedKind):
            await writer.append(batch)
        with pytest.raises(ReservedKind):
            await writer.transact(decides(batch))
        with pytest.raises(ReservedKind):
            await writer.write(partial(writer.append, batch))
    await writer.flush()
    assert world.kinds() == ["turn.started"]
    await writer.append([note(kind="step.started")], framework=True)
    await writer.flush()
    assert world.kinds() == ["turn.started", "step.started"]


# --- failures --------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("SES-57", "EVT-59")
@virtual_time
async def test_the_first_failed_append_fails_every_later_write_and_flush() -> None:
    world = HostWorld()
    writer = await world.writer(patience_s=0)
    world.queue.away = True
    await writer.append([note("lost")])
    with pytest.raises(StoreUnavailable) as first:
        await writer.flush()
    world.queue.away = False
    later: list[Callable[[], Awaitable[object]]] = [
        lambda: writer.append([note("after")]),
        lambda: writer.commit([note("after")]),
        lambda: writer.write(lambda: asyncio.sleep(0)),
        lambda: writer.transact(lambda _: Decision([note("after")])),
        writer.flush,
        lambda: writer.end(COMPLETED),
        lambda: writer.end(Ending("partial")),
    ]
    for call in later:
        with pytest.raises(StoreUnavailable) as caught:
            await call()
        assert caught.value is first.value
    assert world.kinds() == ["turn.started"]
    await writer.end(FAILED)
    assert world.kinds() == ["turn.started", "turn.ended"]


@pytest.mark.behaviour("SES-57")
@virtual_time
async def test_a_failure_frees_everyone_who_waits() -> None:
    world = HostWorld()
    writer = await world.writer(capacity=1, patience_s=5)
    world.queue.away = True
    await writer.append([note()])
    await asyncio.sleep(0.1)
    waiting = [
        asyncio.create_task(writer.append([note()])),
        asyncio.create_task(writer.flush()),
        asyncio.create_task(writer.append([note()])),
    ]
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(answer) for answer in answers] == [type(None), StoreUnavailable, StoreUnavailable]
    world.queue.away = False
    await writer.end(FAILED)
    assert world.ends() == [("failed", "turn.failed")]


@virtual_time
async def test_an_end_as_failed_goes_through_although_the_records_before_it_are_lost() -> None:
    world = HostWorld()
    writer = await world.writer(patience_s=0)
    world.queue.faults["append"] = ["unreached"]
    await writer.append([note("lost")])
    await asyncio.sleep(0.001)  # its commit is on its way
    await writer.end(FAILED)
    assert world.kinds() == ["turn.started", "turn.ended"]


@pytest.mark.behaviour("SES-58")
@virtual_time
async def test_a_defect_in_a_commit_is_logged_and_fails_all_that_follows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = HostWorld()
    claim = await world.claim()

    await world.writer(claim)
    broken = QueuedTurnWriter(DefectiveQueue(world.store), world.log, claim)
    with caplog.at_level(logging.ERROR):
        await broken.append([note()])
        for _ in range(2):
            with pytest.raises(SessionDefect, match="a defect") as caught:
                await broken.flush()
    assert caught.value.code == "session.defect"
    [record] = [r for r in caplog.records if r.exc_info is not None]
    assert record.exc_info is not None and record.exc_info[0] is ZeroDivisionError
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.behaviour("EVT-62")
@virtual_time
async def test_a_commit_whose_answer_is_lost_is_repeated_by_its_id_and_stored_once() -> None:
    world = HostWorld()
    writer = await world.writer()
    world.queue.faults["append"] = ["lost", "unreached", "lost"]
    await writer.append([note(1)])
    await writer.flush()
    assert world.notes() == [1]
    assert len({commit for what, commit in world.queue.sent if what == "append"}) == 1
    assert [what for what, _ in world.queue.sent].count("append") == 4


@virtual_time
async def test_a_writer_without_patience_of_its_own_tries_until_its_lease_is_lost() -> None:
    world = HostWorld()
    writer = await world.writer()
    world.queue.away = True
    await writer.append([note()])
    flushing = asyncio.create_task(writer.flush())
    assert not await passes(asyncio.shield(flushing))
    writer.lose("interrupted")
    with pytest.raises(TurnClosed):
        await flushing
    sent = len(world.queue.sent)
    await asyncio.sleep(60)
    assert len(world.queue.sent) == sent  # nothing is sent for a turn that is not ours


# --- transactions ----------------------------------------------------------------------------------------------


@pytest.mark.behaviour("SES-49")
@virtual_time
async def test_a_transaction_decides_again_with_what_others_wrote() -> None:
    world = HostWorld()
    writer = await world.writer()
    seen: list[list[int]] = []

    async def decide(records: Sequence[Record]) -> Decision:
        seen.append([r.data["n"] for r in records])
        if len(seen) == 1:
            await world.log.commit(world.session, OWNER, [note(7)])
        return Decision([note(sum(seen[-1]) + 1)], answer=len(seen))

    assert await writer.transact(decide, after=1, kinds=["note.added"]) == 2
    assert seen == [[], [7]]
    assert world.notes() == [7, 8]
    assert await writer.transact(lambda records: Decision(answer=len(records)), after=1) == 2


@pytest.mark.behaviour("SES-76")
@virtual_time
async def test_a_transaction_that_is_never_first_is_contended_and_stores_nothing() -> None:
    world = HostWorld()
    writer = await world.writer(retries=3)
    asked = 0

    async def decide(records: Sequence[Record]) -> Decision:
        nonlocal asked
        asked += 1
        await world.log.commit(world.session, OWNER, [note("other")])
        return Decision([note("mine")])

    with pytest.raises(SessionContended):
        await writer.transact(decide)
    assert asked == 4
    await writer.end(COMPLETED)  # its caller's alone
    assert world.notes() == ["other"] * 4


@virtual_time
async def test_a_transaction_reads_no_further_than_the_head_that_it_checks() -> None:
    world = HostWorld()
    writer = QueuedTurnWriter(world.queue, LateLog(world.store), await reopened(world), rules=WriterRules())
    seen: list[int] = []

    def decide(records: Sequence[Record]) -> Decision:
        seen.append(len(records))
        return Decision([note()])

    with pytest.raises(SessionContended):
        await writer.transact(decide)
    assert seen == [*range(1, 10)]

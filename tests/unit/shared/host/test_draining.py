"""Draining an inbox in a host's process, in virtual time: how its turns end, what an attempt is, and when it stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shared.domain.errors import (
    Defect,
    InvalidInput,
    ModelUnavailable,
    NothingPending,
    SessionBusy,
    StoreUnavailable,
    TurnRefused,
)
from shared.host.commits import WriterRules
from shared.host.inboxes import MAX_TURNS_MAX
from shared.host.port import Decision, Drained, InboxTurn, NewTurn, RunInbox, SessionAddress, TurnWriter
from shared.host.sessions import HostSessions
from shared.inbox.inproc import InprocInbox
from shared.turns.admission import TurnToAdmit
from shared.turns.queue import Ending
from tests.support.host_world import OWNER, HostWorld, note
from tests.support.virtual_time import virtual_time

COMPLETED = Ending("completed")


class Refusing:
    """An admission that refuses as told."""

    def __init__(self) -> None:
        self.refuses = False
        self.seen: list[dict[str, Any]] = []

    async def admit(self, turn: TurnToAdmit, proceed: Callable[[], Awaitable[None]]) -> None:
        self.seen.append(dict(turn.meta))
        if self.refuses:
            raise TurnRefused("not now", session=turn.session_id, reason="draining")
        await proceed()


class Host:
    """A session of a host with an inbox, and what its drains were asked."""

    def __init__(self, **how: Any) -> None:
        self.world = HostWorld()
        self.admission = Refusing()
        self.inbox = InprocInbox(self.world.store)
        self.sessions = HostSessions(
            self.world.log, self.world.queue, inbox=self.inbox, admission=self.admission, **how
        )
        self.address = SessionAddress(self.world.session, OWNER)
        self.asked: list[tuple[tuple[str, ...], str]] = []

    async def open(self, *items: str) -> Host:
        self.address = (await self.sessions.create(OWNER)).address
        self.world.session = self.address.id
        for item in items:
            await self.deliver(item)
        return self

    async def deliver(self, item: str) -> None:
        await self.sessions.deliver(self.address, id=item, source="test", content=f"content of {item}")

    async def drain(self, run: RunInbox | None = None, **how: Any) -> Drained:
        return await self.sessions.drain(self.address, run or self.take, **how)

    async def take(self, writer: TurnWriter) -> None:
        self.asked.append((tuple(writer.admitted.claimed), writer.admitted.message["text"]))

    async def attempts(self) -> dict[str, int]:
        return {i.id: i.attempts for i in await self.inbox.waiting(self.address.id, OWNER)}

    async def pending(self) -> int:
        return (await self.sessions.view(self.address)).pending


async def fail(writer: TurnWriter) -> None:
    raise ValueError("no")


async def interrupt_itself(writer: TurnWriter) -> None:
    task = asyncio.create_task(asyncio.sleep(1))
    task.cancel()
    await task


# --- what a drain runs ---------------------------------------------------------------------------------------------


@pytest.mark.behaviour("INB-19", "INB-22", "INB-07", "INB-08", "INB-09", "INB-29", "INB-33")
@virtual_time
async def test_a_drain_answers_all_that_waits_in_one_turn_and_stops_at_the_end_that_counts_none() -> None:
    host = await Host().open("a", "b")
    assert await host.drain() == Drained(1, 0, "empty")
    assert host.asked == [(("a", "b"), "content of a\n\ncontent of b")]
    assert host.world.kinds() == ["inbox.queued", "inbox.queued", "turn.started", "turn.ended"]
    [started] = [r.data for r in await host.sessions.read(host.address, kinds=["turn.started"])]
    assert (started["origin"], started["claimed"]) == ("inbox", ["a", "b"])
    assert host.world.ends() == [("completed", None)]
    assert await host.pending() == 0
    assert await host.drain() == Drained(0, 0, "empty")


@pytest.mark.behaviour("INB-21", "TRN-45")
@virtual_time
async def test_each_inbox_turn_is_begun_with_the_drains_meta() -> None:
    host = await Host().open("a")
    seen: list[Any] = []

    async def run(writer: TurnWriter) -> None:
        seen.append(dict(writer.admitted.meta))
        if len(seen) == 1:
            await host.deliver("b")

    await host.drain(run, meta={"by": "the drain"})
    assert seen == [{"by": "the drain"}] * 2 == host.admission.seen
    stored = [r.data["meta"] for r in await host.sessions.read(host.address, kinds=["turn.started"])]
    assert stored == seen


@pytest.mark.behaviour("INB-20", "INB-28")
@virtual_time
async def test_a_drain_goes_on_for_what_came_during_its_turns_and_stops_after_three_of_them() -> None:
    host = await Host().open("0")

    async def run(writer: TurnWriter) -> None:
        await host.take(writer)
        await host.deliver(f"{len(host.asked)}")

    assert await host.drain(run) == Drained(3, 1, "max_turns")
    assert [claimed for claimed, _ in host.asked] == [("0",), ("1",), ("2",)]
    assert await host.drain(run, max_turns=1) == Drained(1, 1, "max_turns")
    assert await host.drain(max_turns=5) == Drained(1, 0, "empty")
    assert [claimed for claimed, _ in host.asked][3:] == [("3",), ("4",)]


@pytest.mark.behaviour("INB-20")
@pytest.mark.parametrize("max_turns", [0, -1, MAX_TURNS_MAX + 1])
def test_a_bound_on_turns_that_makes_no_sense_is_refused(max_turns: int) -> None:
    @virtual_time
    async def run() -> None:
        host = await Host().open("a")
        with pytest.raises(InvalidInput) as caught:
            await host.drain(max_turns=max_turns)
        assert caught.value.field == "max_turns"
        assert await host.pending() == 1

    run()


# --- how its turns end ---------------------------------------------------------------------------------------------


def raised_as_a_defect() -> BaseException:
    error = Defect("a defect")
    error.__cause__ = ModelUnavailable("no model")
    return error


@pytest.mark.behaviour("INB-23", "INB-13", "INB-14")
@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: ValueError("no"), "turn.failed"),
        (lambda: ModelUnavailable("no model"), ModelUnavailable.code),
        (raised_as_a_defect, ModelUnavailable.code),
        (lambda: Defect("ours"), "turn.defect"),
        (lambda: ExceptionGroup("two", [ValueError("a"), ValueError("b")]), "turn.failed"),
    ],
    ids=["host", "typed", "typed as a defect", "defect", "group"],
)
def test_a_run_that_fails_ends_its_turn_by_its_error_and_its_items_are_dropped_after_two(
    make: Callable[[], BaseException], code: str, caplog: pytest.LogCaptureFixture
) -> None:
    @virtual_time
    async def run() -> None:
        host = await Host().open("a")

        async def raising(writer: TurnWriter) -> None:
            raise make()

        with caplog.at_level(logging.WARNING):
            assert await host.drain(raising) == Drained(2, 0, "empty")
        assert host.world.ends() == [("failed", code)] * 2
        dropped = await host.sessions.read(host.address, kinds=["inbox.dropped"])
        assert [(r.data["id"], r.data["attempts"]) for r in dropped] == [("a", 2)]
        assert host.world.kinds()[-2:] == ["turn.ended", "inbox.dropped"]
        assert len([r for r in caplog.records if r.__dict__.get("session") == host.address.id]) == 2

    run()


@pytest.mark.behaviour("INB-24", "INB-25", "INB-26")
@virtual_time
async def test_a_run_that_interrupts_itself_counts_though_it_wrote_nothing_and_ends_with_a_drop() -> None:
    host = await Host().open("a")
    assert await host.drain(interrupt_itself, max_turns=1) == Drained(1, 1, "max_turns")
    assert await host.attempts() == {"a": 1}
    assert await host.drain(interrupt_itself, max_turns=10) == Drained(1, 0, "empty")
    assert host.world.ends() == [("interrupted", "turn.interrupted")] * 2
    assert host.world.kinds().count("inbox.dropped") == 1


@pytest.mark.behaviour("INB-27", "INB-15", "INB-26")
@pytest.mark.parametrize("wrote", ["nothing", "append", "write", "transact"])
def test_a_drain_cancelled_from_outside_ends_its_turn_and_counts_only_what_was_tried(wrote: str) -> None:
    @virtual_time
    async def run() -> None:
        host = await Host().open("a")
        begun = asyncio.Event()

        async def hang(writer: TurnWriter) -> None:
            match wrote:
                case "append":
                    await writer.append([note()])
                case "write":
                    await writer.write(nothing)
                case "transact":
                    await writer.transact(lambda _: Decision())
                case _:
                    pass
            begun.set()
            await asyncio.Event().wait()

        draining = asyncio.create_task(host.drain(hang))
        await begun.wait()
        draining.cancel()
        await asyncio.wait([draining])
        assert draining.cancelled()
        assert host.world.ends() == [("interrupted", "turn.interrupted")]
        assert await host.attempts() == {"a": 0 if wrote == "nothing" else 1}
        assert await host.drain() == Drained(1, 0, "empty")

    run()


async def nothing() -> None:
    pass


# --- when it does not run ------------------------------------------------------------------------------------------


@pytest.mark.behaviour("INB-19", "INB-10")
@virtual_time
async def test_a_drain_beside_an_open_turn_runs_nothing_and_the_turns_end_counts_what_waits() -> None:
    host = await Host().open()
    async with host.sessions.begin(host.address, NewTurn({"text": "hello"})) as writer:
        assert writer.admitted.claimed == ()
        await host.deliver("a")
        assert await host.drain() == Drained(0, 1, "busy")
        with pytest.raises(SessionBusy):
            async with host.sessions.begin(host.address, InboxTurn()):
                raise AssertionError("the block never runs")
        assert (await writer.end(COMPLETED)).pending == 1
    assert await host.drain() == Drained(1, 0, "empty")
    with pytest.raises(NothingPending):
        async with host.sessions.begin(host.address, InboxTurn()):
            raise AssertionError("the block never runs")


@pytest.mark.behaviour("INB-19", "SHD-22")
@virtual_time
async def test_while_the_hosts_admission_refuses_items_wait_and_no_attempt_is_counted() -> None:
    host = await Host().open("a")
    host.admission.refuses = True
    for _ in range(3):
        assert await host.drain() == Drained(0, 1, "refused")
    assert (await host.attempts(), host.asked) == ({"a": 0}, [])
    assert host.world.kinds() == ["inbox.queued"]
    host.admission.refuses = False
    assert await host.drain() == Drained(1, 0, "empty")


@pytest.mark.behaviour("INB-12", "INB-28")
@virtual_time
async def test_an_inbox_turn_that_is_cancelled_is_done_and_ends_the_drain() -> None:
    host = await Host().open("a")

    async def run(writer: TurnWriter) -> None:
        await host.take(writer)
        assert await host.sessions.cancel(host.address, writer.admitted.number) is True
        await host.deliver("b")

    assert await host.drain(run) == Drained(1, 1, "closed")
    assert host.world.ends() == [("cancelled", None)]
    assert await host.drain() == Drained(1, 0, "empty")
    assert [claimed for claimed, _ in host.asked] == [("a",), ("b",)]


@virtual_time
async def test_a_session_removed_under_a_drain_ends_it() -> None:
    host = await Host().open("a")

    async def run(writer: TurnWriter) -> None:
        await host.sessions.remove(host.address)

    assert await host.drain(run) == Drained(1, 0, "closed")


@virtual_time
async def test_what_keeps_an_end_from_being_stored_is_raised_and_the_scope_tries_that_end_again() -> None:
    host = await Host(rules=WriterRules(patience_s=0)).open("a")
    host.world.queue.faults["end"] = ["unreached"]
    with pytest.raises(StoreUnavailable):
        await host.drain()
    assert host.world.ends() == [("completed", None)]
    assert await host.drain() == Drained(0, 0, "empty")


@virtual_time
async def test_a_drain_whose_lease_is_trusted_no_longer_says_that_its_turn_was_closed() -> None:
    host = await Host().open("a")

    async def run(writer: TurnWriter) -> None:
        host.world.queue.away = True
        asyncio.get_running_loop().call_later(100, setattr, host.world.queue, "away", False)
        await writer.closed()

    assert (await host.drain(run)).stopped == "closed"
    await asyncio.sleep(100)
    assert await host.drain() == Drained(1, 0, "empty")
    assert host.world.ends() == [("interrupted", "turn.lease"), ("completed", None)]


# --- who closes, and who counts ------------------------------------------------------------------------------------


@pytest.mark.behaviour("INB-34", "SES-51")
@virtual_time
async def test_the_end_of_a_users_turn_counts_what_waits_whoever_delivered() -> None:
    host = await Host().open()
    other = HostSessions(host.world.log, host.world.queue, inbox=host.inbox)
    async with host.sessions.begin(host.address, NewTurn({"text": "hello"})) as writer:
        for item in ("a", "b"):
            await other.deliver(host.address, id=item, source="test", content=item)
        assert (await writer.end(COMPLETED)).pending == 2


@pytest.mark.behaviour("INB-16", "SES-118")
@virtual_time
async def test_a_delivery_closes_a_turn_that_nobody_holds_any_more() -> None:
    host = await Host().open("a")
    begun = asyncio.Event()

    async def hang(writer: TurnWriter) -> None:
        begun.set()
        await asyncio.Event().wait()

    draining = asyncio.create_task(host.drain(hang))
    await begun.wait()
    host.world.queue.away = True
    draining.cancel()
    await asyncio.wait([draining])
    host.world.queue.away = False
    await asyncio.sleep(61)
    other = HostSessions(host.world.log, host.world.queue, inbox=host.inbox)
    await other.deliver(host.address, id="b", source="test", content="b")
    assert host.world.ends() == [("interrupted", "turn.lease")]
    assert await other.drain(host.address, host.take) == Drained(1, 0, "empty")
    assert host.asked[0][0] == ("a", "b")

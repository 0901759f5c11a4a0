"""Who leaves when, and with whom: the gatherer of group commits, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from shared.database.gatherer import APART, Apart, Gatherer
from shared.domain.errors import StoreBusy, StoreUnavailable
from tests.support.virtual_time import virtual_time

WAIT_S = 0.002


class Line:
    """What is sent, and when it is answered: a statement takes one second, or as long as its session is held."""

    def __init__(
        self, *, members_max: int = 64, wait_s: float = WAIT_S, at_once: int = 1, at_once_late: int = 4
    ) -> None:
        self.sent: list[list[str]] = []
        self.held: dict[str, asyncio.Event] = {}
        self.left_out: set[str] = set()
        self.failure: Exception | None = None
        self.gatherer = Gatherer[str, str](
            self._send_all,
            members_max=members_max,
            wait_s=wait_s,
            at_once=at_once,
            at_once_late=at_once_late,
        )

    async def ask(self, member: str) -> str:
        """Send a member, whose session is what stands before its dot, as a turn queue does."""
        session = member.partition(".")[0]

        async def call() -> str:
            self.sent.append([member])
            await self._take_time([member])
            return f"{member} alone"

        answer = await self.gatherer.join(session, member)
        return await self.gatherer.apart(session, call) if answer is APART else answer

    def hold(self, session: str) -> asyncio.Event:
        """Hold up every statement of a session until the event is set."""
        return self.held.setdefault(session, asyncio.Event())

    async def _send_all(self, members: Sequence[str]) -> Sequence[str | Apart]:
        self.sent.append(list(members))
        await self._take_time([m for m in members if m not in self.left_out])
        if self.failure is not None:
            raise self.failure
        return [APART if member in self.left_out else f"{member} in {len(members)}" for member in members]

    async def _take_time(self, members: Sequence[str]) -> None:
        await asyncio.sleep(1)
        for member in members:
            if held := self.held.get(member.partition(".")[0]):
                await held.wait()


def asking(line: Line, *members: str) -> list[asyncio.Task[str]]:
    return [asyncio.create_task(line.ask(member)) for member in members]


async def sending(line: Line, *members: str) -> list[asyncio.Task[str]]:
    """Ask, and return when the members were sent: they begin, the loop's turn ends, their group begins."""
    asked = asking(line, *members)
    for _ in range(3):
        await asyncio.sleep(0)
    assert [member for group in line.sent for member in group][-len(members) :] == list(members)
    return asked


async def now() -> float:
    await asyncio.sleep(0)
    return asyncio.get_running_loop().time()


@virtual_time
async def test_those_that_one_turn_of_the_loop_brings_leave_together_and_so_do_those_that_come_meanwhile() -> (
    None
):
    line = Line()
    first = await sending(line, "a", "b")
    second = asking(line, "c")
    await now()
    third = asking(line, "d")
    assert await asyncio.gather(*first, *second, *third) == ["a in 2", "b in 2", "c in 2", "d in 2"]
    assert line.sent == [["a", "b"], ["c", "d"]]


@virtual_time
async def test_whoever_waited_long_enough_leaves_beside_what_is_under_way() -> None:
    line = Line()
    held = line.hold("a")
    [first] = await sending(line, "a")
    others = asking(line, "b", "c")
    assert await asyncio.gather(*others) == ["b in 2", "c in 2"]
    assert await now() == pytest.approx(WAIT_S + 1)
    assert not first.done()
    held.set()
    assert await first == "a in 1"


@virtual_time
async def test_no_more_groups_are_late_than_may_be_and_none_waits_for_ever() -> None:
    line = Line(at_once_late=2)
    held = [line.hold(session) for session in ("a", "b")]
    first = await sending(line, "a")
    second = asking(line, "b")
    await asyncio.sleep(10)
    assert line.sent == [["a"], ["b"]]
    third = asking(line, "c")
    await asyncio.sleep(10)
    assert line.sent == [["a"], ["b"]]
    held[1].set()
    assert await second[0] == "b in 1"
    assert await third[0] == "c in 1"
    assert not first[0].done()
    held[0].set()
    assert await first[0] == "a in 1"


@virtual_time
async def test_a_group_holds_one_member_of_a_session_and_the_next_waits_for_its_answer() -> None:
    line = Line()
    await asyncio.gather(*asking(line, "a", "b.1", "b.2", "c", "b.3"))
    assert line.sent == [["a", "b.1", "c"], ["b.2"], ["b.3"]]


@virtual_time
async def test_a_group_is_never_larger_than_it_may_be() -> None:
    line = Line(members_max=3, wait_s=60)
    await asyncio.gather(*asking(line, *"abcdefgh"))
    assert [len(group) for group in line.sent] == [3, 3, 2]


@virtual_time
async def test_a_member_that_is_left_out_goes_by_itself_and_holds_nobody_up() -> None:
    line = Line()
    line.left_out = {"b"}
    held = line.hold("b")
    [out, other] = await sending(line, "b", "c")
    assert await other == "c in 2"
    assert await asking(line, "d")[0] == "d in 1"
    assert line.sent == [["b", "c"], ["b"], ["d"]]
    assert not out.done()
    held.set()
    assert await out == "b alone"


@virtual_time
async def test_behind_a_statement_of_its_session_that_is_held_up_a_member_goes_by_itself() -> None:
    line = Line()
    line.left_out = {"a.1"}
    held = line.hold("a")
    [first] = await sending(line, "a.1")
    await asyncio.sleep(2)
    [second] = asking(line, "a.2")
    await asyncio.sleep(2)
    assert line.sent == [["a.1"], ["a.1"], ["a.2"]]
    assert not first.done()
    held.set()
    assert [await first, await second] == ["a.1 alone", "a.2 alone"]


@virtual_time
async def test_a_member_whose_caller_is_cancelled_while_it_waits_is_never_sent() -> None:
    line = Line()
    [first] = await sending(line, "a")
    [second, third] = asking(line, "b", "c")
    await now()
    second.cancel()
    assert [await first, await third] == ["a in 1", "c in 1"]
    with pytest.raises(asyncio.CancelledError):
        await second
    assert line.sent == [["a"], ["c"]]
    assert line.gatherer.waiting == 0


@virtual_time
async def test_a_member_that_is_cancelled_as_its_group_leaves_is_not_sent() -> None:
    line = Line()
    [first, second] = asking(line, "a", "b")
    await now()
    first.cancel()  # its own task runs after the turn's end, which lets both leave
    assert await second == "b in 1"
    assert first.cancelled()
    assert line.sent == [["b"]]


@virtual_time
async def test_a_caller_that_is_cancelled_after_its_group_left_costs_the_others_nothing() -> None:
    line = Line(wait_s=60)
    [first, second] = await sending(line, "a", "b")
    first.cancel()
    assert await second == "b in 2"
    assert first.cancelled()
    assert await asking(line, "a")[0] == "a in 1"


@virtual_time
async def test_the_error_of_a_group_is_raised_to_each_of_its_members() -> None:
    line = Line()
    line.failure = StoreBusy("no connection", statement="group")
    raised = await asyncio.gather(*asking(line, "a", "b"), return_exceptions=True)
    assert [type(error) for error in raised] == [StoreBusy, StoreBusy]
    assert raised[0] is not raised[1]
    assert [error.fields for error in raised if isinstance(error, StoreBusy)] == [{"statement": "group"}] * 2
    line.failure = None
    assert await asking(line, "b")[0] == "b in 1"


@virtual_time
async def test_two_statements_may_be_under_way_where_that_is_allowed() -> None:
    line = Line(at_once=2)
    under_way = [*await sending(line, "a"), *await sending(line, "b")]
    await asyncio.gather(*under_way, *asking(line, *"cdef"))
    assert line.sent == [["a"], ["b"], ["c", "d", "e", "f"]]


@virtual_time
async def test_closing_waits_for_what_was_sent() -> None:
    line = Line(wait_s=60)
    [asked] = await sending(line, "a")
    await line.gatherer.close()
    assert await now() == pytest.approx(1)
    assert await asked == "a in 1"


def test_a_loop_that_ends_leaves_no_caller_without_an_answer() -> None:
    told: list[BaseException] = []

    async def ask(line: Line, member: str) -> None:
        try:
            await line.ask(member)
        except BaseException as error:
            told.append(error)
            raise

    async def leave_in_the_middle() -> None:
        line = Line()
        tasks = [asyncio.create_task(ask(line, member)) for member in "abc"]
        await asyncio.sleep(0.001)
        del tasks

    asyncio.run(leave_in_the_middle())
    assert len(told) == 3
    assert all(isinstance(error, asyncio.CancelledError | StoreUnavailable) for error in told)

"""Inbox turns in a worker: what they claim and are asked, what comes between, and what is refused at opening."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shared.domain.errors import TurnRefused
from shared.domain.failpoints import Failpoints
from shared.inbox.port import Delivery
from shared.models.scripted import ScriptedModel
from shared.turns.admission import TurnToAdmit
from shared.turns.inproc.inbox import InboxTable
from tests.support.turn_world import OWNER, TurnWorld
from tests.support.virtual_time import virtual_time


class Refusing:
    """An admission that refuses while it is told to."""

    def __init__(self) -> None:
        self.refuses = True
        self.doors: list[str] = []

    async def admit(self, turn: TurnToAdmit, proceed: Callable[[], Awaitable[None]]) -> None:
        self.doors.append(turn.door)
        if self.refuses:
            raise TurnRefused("not now", session=turn.session_id, reason="draining")
        await proceed()


def starts(world: TurnWorld) -> list[tuple[str, list[str], str]]:
    return [(s["origin"], s["claimed"], s["user_message"]["text"]) for s in world.data("turn.started")]


def ends(world: TurnWorld) -> list[tuple[Any, Any]]:
    return [(e["reason"], e.get("code")) for e in world.data("turn.ended")]


async def waiting(world: TurnWorld) -> dict[str, int]:
    return {i.id: i.attempts for i in await world.inbox.waiting(world.session, OWNER)}


@pytest.mark.behaviour("INB-07", "INB-08", "INB-09", "INB-12", "INB-19")
@virtual_time
async def test_a_worker_answers_all_that_waits_in_one_turn() -> None:
    model = ScriptedModel(["seen"])
    world = TurnWorld(model)
    told = [await world.deliver(item) for item in ("a", "b")]
    assert (told[0].turn_id, told[0].turn_id) == (told[1].turn_id, told[1].turn_id) != (None, None)
    process = world.process()
    holding = await process.run()
    assert (holding.claim.origin, holding.claim.turn_id) == ("inbox", told[0].turn_id)
    assert starts(world) == [("inbox", ["a", "b"], "content of a\n\ncontent of b")]
    assert model.requests[0].messages[-1].text == "content of a\n\ncontent of b"
    assert (ends(world), await waiting(world)) == ([("completed", None)], {})
    assert world.store.sessions[world.session].title is None  # others wrote it, not the user


@pytest.mark.behaviour("INB-07", "INB-31")
@virtual_time
async def test_a_delivery_between_reading_and_opening_is_answered_by_the_next_turn() -> None:
    world = TurnWorld(ScriptedModel(["seen", "seen too"]))
    await world.deliver("a")
    came: list[str] = []

    async def deliver() -> None:
        if not came:
            came.append("late")
            await world.deliver("late")

    process = world.process(failpoints=Failpoints({"inbox.read": deliver}))
    await process.run()
    assert await waiting(world) == {"late": 0}
    await process.run()
    assert [claimed for _, claimed, _ in starts(world)] == [["a"], ["late"]]
    assert (ends(world), await waiting(world)) == ([("completed", None)] * 2, {})


@pytest.mark.behaviour("INB-07", "INB-30")
@virtual_time
async def test_more_than_one_turn_can_ask_is_answered_by_several_and_each_item_once() -> None:
    world = TurnWorld(ScriptedModel(["seen"] * 5))
    items = [f"n-{n:03}" for n in range(120)]
    await world.deliver(items[0], "x" * 48 * 1024)
    for item in items[1:]:
        delivery = Delivery(world.session, OWNER, item, "task", "x" * 48 * 1024)
        await world.inbox.deliver(delivery, max_pending=len(items))
    process = world.process()
    while await waiting(world):
        await process.run()
    claimed = [claimed for _, claimed, _ in starts(world)]
    assert [item for each in claimed for item in each] == items
    assert len(claimed) == 3
    assert ends(world) == [("completed", None)] * 3
    assert "inbox.dropped" not in world.kinds()


@pytest.mark.behaviour("INB-30", "INB-11")
@virtual_time
async def test_the_end_of_a_turn_rings_for_the_inbox_turn_that_follows_it() -> None:
    world = TurnWorld(ScriptedModel(["hi", "seen"]))
    await world.admit("hello")
    process = world.process()
    holding = await process.claim()
    await world.deliver("a")
    await process.run(holding)
    [rung] = process.rings
    holding = await process.run()
    assert (holding.claim.turn_id, holding.claim.origin) == (rung, "inbox")
    assert [(origin, claimed) for origin, claimed, _ in starts(world)] == [("user", []), ("inbox", ["a"])]


@pytest.mark.behaviour("INB-19", "SHD-22")
@virtual_time
async def test_an_inbox_turn_that_the_hosts_admission_refuses_ends_refused_and_its_items_wait() -> None:
    world = TurnWorld(ScriptedModel(["seen"]))
    world.admission = refusing = Refusing()
    told = await world.deliver("a")
    assert told.turn_id is not None
    process = world.process()
    await process.run()
    view = await world.view(told.turn_id)
    assert (view.status, view.code, view.number) == ("refused", "turn.refused", None)
    assert (await waiting(world), world.kinds()) == ({"a": 0}, ["inbox.queued"])
    assert await process.claimer.claim(1, ()) == []  # no new row at once: that would loop
    refusing.refuses = False
    await world.deliver("b")
    await process.run()
    assert [claimed for _, claimed, _ in starts(world)] == [["a", "b"]]
    assert refusing.doors == ["begin", "begin"]


@pytest.mark.behaviour("INB-10")
@virtual_time
async def test_an_inbox_turn_that_finds_nothing_ends_refused_and_nothing_of_it_is_stored() -> None:
    world = TurnWorld(ScriptedModel([]))
    told = await world.deliver("a")
    assert told.turn_id is not None
    before = world.kinds()

    async def take_all() -> None:
        world.store.part(InboxTable).items.pop(world.session)
        world.store.sessions[world.session].inbox_waiting = 0

    process = world.process(failpoints=Failpoints({"turn.claimed": take_all}))
    await process.run()
    view = await world.view(told.turn_id)
    assert (view.status, view.code) == ("refused", "inbox.empty")
    assert world.kinds() == before


@pytest.mark.behaviour("INB-13", "INB-14")
@virtual_time
async def test_items_whose_agent_is_unknown_fail_their_turns_and_are_dropped_after_two() -> None:
    world = TurnWorld(ScriptedModel([]))
    await world.deliver("a", agent="nobody")
    process = world.process()
    for _ in range(2):
        await process.run()
    assert ends(world) == [("failed", "config.options")] * 2
    assert [claimed for _, claimed, _ in starts(world)] == [["a"]] * 2
    assert [(d["id"], d["attempts"]) for d in world.data("inbox.dropped")] == [("a", 2)]
    assert await process.claimer.claim(1, ()) == []


@pytest.mark.behaviour("INB-18")
@virtual_time
async def test_a_lost_answer_of_the_opening_is_adopted_and_claims_once() -> None:
    world = TurnWorld(ScriptedModel(["seen"]))
    await world.deliver("a")
    world.queue.faults["open"] = ["lost", "unreached"]
    await world.process().run()
    assert [claimed for _, claimed, _ in starts(world)] == [["a"]]
    assert ends(world) == [("completed", None)]

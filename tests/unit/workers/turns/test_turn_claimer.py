"""What the pump asks of the store: places, hints, and the process's place in the rotation of owners."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pytest

from shared.domain.errors import StoreUnavailable
from shared.domain.ids import OwnerId, TurnId, new_session_id
from shared.models.scripted import ScriptedModel
from shared.sessions.log import NewSession
from shared.turns.inproc.rows import TurnTables
from shared.turns.queue import PRIORITIES, Claim, ClaimRequest
from tests.support.turn_world import LEASE_S, FaultyQueue, TurnWorld, WorkerProcess
from tests.support.virtual_time import virtual_time
from workers.turns.claims import background_places, turn_ids


async def world_of(*owners: str, turns: int = 1) -> tuple[TurnWorld, WorkerProcess, dict[str, list[TurnId]]]:
    """A world in which each owner has some sessions with a ready turn each."""
    world = TurnWorld(ScriptedModel([]))
    admitted: dict[str, list[TurnId]] = {}
    for owner in owners:
        for _ in range(turns):
            made = await world.log.create(NewSession(new_session_id(), OwnerId(owner)))
            turn = await world.admit_to(made.session_id, OwnerId(owner))
            admitted.setdefault(owner, []).append(turn)
    return world, world.process(), admitted


@virtual_time
@pytest.mark.behaviour("DST-14")
async def test_owners_are_served_in_turn_from_where_the_last_claim_stopped() -> None:
    _, process, _ = await world_of("a", "b", "c", turns=3)
    served = [(await process.claim()).claim.owner for _ in range(7)]
    assert served == ["a", "b", "c", "a", "b", "c", "a"]


@virtual_time
@pytest.mark.behaviour("DST-14", "DST-27")
async def test_a_hint_goes_first_and_the_rotation_goes_on_behind_it() -> None:
    world, process, turns = await world_of("a", "b", "c", turns=3)

    async def claim(*given: str) -> str:
        (holding,) = await process.claimer.claim(1, given)
        return holding.claim.owner

    latest = str(max(turns["c"]))
    assert await claim(latest) == "c"
    assert process.claimer.cursor == "", "a hinted owner does not move the rotation"
    assert await claim(latest) == "a", "no hint after a full hinted claim"
    assert world.queue.requests[-1].hints == ()
    assert await claim(latest) == "c"
    assert await claim() == "b"


@virtual_time
@pytest.mark.behaviour("DST-14")
async def test_an_owner_whose_every_wake_names_a_later_turn_does_not_hold_the_others_back() -> None:
    _, process, turns = await world_of("a", "b", "c", "z", turns=8)
    latest = str(max(turns["z"]))
    served = [h.claim.owner for _ in range(12) for h in await process.claimer.claim(1, [latest])]
    assert served[::2] == ["z"] * 6
    # The eighth claim begins with the turn that waits longest.
    assert served[1::2] == ["a", "b", "c", "a", "z", "a"]


@virtual_time
@pytest.mark.behaviour("DST-14")
async def test_places_that_go_round_once_more_do_not_move_the_rotation_back() -> None:
    _, process, _ = await world_of(*[f"o{n:02}" for n in range(20)], turns=2)
    served = {h.claim.owner for h in await process.claimer.claim(18, ())}
    assert served == {f"o{n:02}" for n in range(16)}
    assert process.claimer.cursor == "o15"
    (next_one,) = await process.claimer.claim(1, ())
    assert next_one.claim.owner == "o16"


@virtual_time
@pytest.mark.behaviour("DST-14")
async def test_the_rotation_follows_the_databases_order_of_owners_not_ours() -> None:
    """In most collations "a" is before "B"; by code points, the twin's order, it is behind."""

    class OtherCollation(FaultyQueue):
        async def claim(self, request: ClaimRequest) -> Sequence[Claim]:
            return list(reversed(await super().claim(request)))

    world, process, _ = await world_of("a", "B")
    process.claimer.queue = OtherCollation(world.store)
    assert [h.claim.owner for h in await process.claimer.claim(2, ())] == ["a", "B"]
    assert process.claimer.cursor == "B"


@virtual_time
async def test_a_hint_may_follow_a_hinted_claim_that_left_places_free() -> None:
    world, process, turns = await world_of("a", "b")
    await process.claimer.claim(9, [str(turns["a"][0])])
    await process.claimer.claim(9, [str(turns["b"][0])])
    assert world.queue.requests[-1].hints == (turns["b"][0],)


@virtual_time
async def test_lost_turns_do_not_move_the_rotation() -> None:
    _, process, _ = await world_of("b", "c")
    lost = await process.claim()
    process.holdings.drop(lost)
    process.claimer.cursor = ""
    await asyncio.sleep(LEASE_S + 1)
    (again,) = await process.claimer.claim(1, ())
    assert (again.claim.lost, process.claimer.cursor) == (True, "")


@virtual_time
@pytest.mark.behaviour("DST-20", "DST-26")
async def test_a_claim_says_what_the_process_serves_and_how_many_suspects_it_may_still_take() -> None:
    world, process, turns = await world_of("a", turns=2)
    rows = world.store.part(TurnTables).turns
    for turn in turns["a"]:
        rows[turn].suspect = True
    process.claimer.suspects_max = 2
    await process.claimer.claim(1, ())
    request = world.queue.requests[-1]
    assert (request.worker, request.places, request.lease_s) == ("w1", 1, LEASE_S)
    assert (request.revisions, request.attempts_max, request.running_per_owner) == (("1",), 3, 256)
    assert request.suspects_left == 2
    await process.claimer.claim(1, ())
    await process.claimer.claim(1, ())
    assert [r.suspects_left for r in world.queue.requests] == [2, 1, 0]


@virtual_time
async def test_a_claim_that_fails_is_raised_and_stops_takeovers_for_one_lease() -> None:
    world, process, _ = await world_of("a")
    await asyncio.sleep(100)
    world.queue.faults["claim"] = ["unreached"]
    with pytest.raises(StoreUnavailable):
        await process.claimer.claim(1, ())
    await process.claimer.claim(1, ())
    assert world.queue.requests[-1].takeovers is False
    await asyncio.sleep(LEASE_S + 1)
    await process.claimer.claim(1, ())
    assert world.queue.requests[-1].takeovers is True


@virtual_time
@pytest.mark.behaviour("DST-08")
async def test_a_lease_is_trusted_from_when_its_claim_was_sent() -> None:
    world, process, _ = await world_of("a")
    world.queue.claims_answered.clear()
    claiming = asyncio.create_task(process.claimer.claim(1, ()))
    await asyncio.sleep(4)
    world.queue.claims_answered.set()
    (holding,) = await claiming
    assert process.holdings.keeper.trusted_until(holding.claim.turn_id) == pytest.approx(LEASE_S - 1.5)


@pytest.mark.parametrize("names", [["x", "", "not-a-uuid"], [str(uuid4()) + "0"]])
def test_what_is_no_id_is_passed_over(names: list[str]) -> None:
    known = uuid4()
    assert turn_ids([*names, str(known)]) == (known,)


def test_no_hints_are_no_ids() -> None:
    found: Any = turn_ids([])
    assert found == ()


@virtual_time
@pytest.mark.behaviour("DST-15")
async def test_turns_of_the_background_hold_at_most_half_of_the_places() -> None:
    world, process, _ = await world_of()
    for n in range(8):
        owner = OwnerId(f"o{n}")
        made = await world.log.create(NewSession(new_session_id(), owner))
        await world.admit_to(made.session_id, owner, priority=PRIORITIES["background"])
    held = list(await process.claimer.claim(8, ()))
    assert len(held) == 4
    assert await process.claimer.claim(4, ()) == []
    made = await world.log.create(NewSession(new_session_id(), OwnerId("urgent")))
    urgent = await world.admit_to(made.session_id, OwnerId("urgent"), priority=PRIORITIES["interactive"])
    [next_one] = await process.claimer.claim(4, ())
    assert next_one.claim.turn_id == urgent
    process.holdings.drop(held[0])
    [next_one] = await process.claimer.claim(3, ())
    assert next_one.claim.priority == PRIORITIES["background"]


@virtual_time
@pytest.mark.behaviour("DST-15")
async def test_one_claim_in_eight_begins_with_the_turn_that_waits_longest() -> None:
    world, process, turns = await world_of("m", turns=1)
    await asyncio.sleep(1)
    made = await world.log.create(NewSession(new_session_id(), OwnerId("z")))
    for _ in range(9):
        made = await world.log.create(NewSession(new_session_id(), OwnerId("z")))
        await world.admit_to(made.session_id, OwnerId("z"), priority=PRIORITIES["interactive"])
    process.claimer.running_per_owner = 100
    served = []
    for _ in range(8):
        process.claimer.cursor = "m"  # the rotation never comes to the first owner
        [holding] = await process.claimer.claim(1, ())
        served.append(holding.claim.turn_id)
    assert served.index(turns["m"][0]) == 7
    assert [request.oldest_first for request in world.queue.requests] == [False] * 7 + [True]


@pytest.mark.parametrize(("capacity", "places"), [(1, 1), (2, 1), (3, 1), (400, 200)])
def test_the_backgrounds_half_is_at_least_one_place(capacity: int, places: int) -> None:
    assert background_places(capacity) == places

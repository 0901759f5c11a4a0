"""What a worker process writes of itself."""

from __future__ import annotations

import asyncio

import pytest

from shared.domain.ids import WorkerId
from shared.models.scripted import ScriptedModel
from tests.support.turn_world import TurnWorld
from tests.support.virtual_time import virtual_time
from workers.health.loop_load import LoopLoad
from workers.turns.presence import Presence


@pytest.mark.behaviour("SHD-20", "DST-32")
@virtual_time
async def test_a_process_says_on_its_beat_how_much_it_holds_that_it_drains_and_how_far_it_lags() -> None:
    world = TurnWorld(ScriptedModel([]))
    now = {"held": 0, "draining": False}
    load = LoopLoad()
    presence = Presence(
        queue=world.queue,
        worker=WorkerId("w1"),
        queues=("turns",),
        revisions=("1",),
        capacity=4,
        held=lambda: int(now["held"]),
        draining=lambda: bool(now["draining"]),
        load=load,
        every_s=5.0,
    )
    await presence.write()
    beating = asyncio.create_task(presence.write_for_ever())
    now |= {"held": 3, "draining": True}
    load.note(9.0, 9.0)
    await asyncio.sleep(5.1)
    (row,) = await world.queue.workers()
    assert (row["held"], row["draining"], row["overloaded"]) == (3, True, True)
    assert row["lag_s"] == pytest.approx(8.1)
    beating.cancel()
    await asyncio.wait({beating})
    await presence.leave()
    assert await world.queue.workers() == []

"""What a worker process writes of itself."""

from __future__ import annotations

import asyncio

from shared.domain.ids import WorkerId
from shared.models.scripted import ScriptedModel
from tests.support.turn_world import TurnWorld
from tests.support.virtual_time import virtual_time
from workers.turns.presence import Presence


@virtual_time
async def test_a_process_says_on_its_beat_how_much_it_holds_and_that_it_drains() -> None:
    world = TurnWorld(ScriptedModel([]))
    now = {"held": 0, "draining": False}
    presence = Presence(
        queue=world.queue,
        worker=WorkerId("w1"),
        queues=("turns",),
        revisions=("1",),
        capacity=4,
        held=lambda: int(now["held"]),
        draining=lambda: bool(now["draining"]),
        every_s=5.0,
    )
    await presence.write()
    beating = asyncio.create_task(presence.write_for_ever())
    now |= {"held": 3, "draining": True}
    await asyncio.sleep(5.1)
    (row,) = await world.queue.workers()
    assert (row["held"], row["draining"]) == (3, True)
    beating.cancel()
    await asyncio.wait({beating})
    await presence.leave()
    assert await world.queue.workers() == []

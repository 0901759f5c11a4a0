"""Turns of a session that a host forked: they are shown what the fork inherited, on the first turn and on every attempt."""

from __future__ import annotations

import asyncio

import pytest

from shared.domain.failpoints import Failpoints
from shared.domain.ids import SessionId, new_session_id
from shared.models.scripted import ScriptedModel
from shared.sessions.log import NewSession
from tests.support.turn_world import LEASE_S, OWNER, TurnWorld
from tests.support.virtual_time import virtual_time


async def forked(world: TurnWorld, *, inherit: bool = True) -> SessionId:
    """Fork the world's session, make the fork the world's, and return the parent."""
    parent, world.session = world.session, new_session_id()
    await world.log.fork(NewSession(world.session, OWNER), parent, inherit=inherit)
    return parent


def shown(world: TurnWorld) -> list[str]:
    return [message.text for message in world.model.requests[-1].messages[1:]]


@virtual_time
@pytest.mark.behaviour("SES-72")
async def test_the_first_turn_of_a_fork_is_shown_what_it_inherits_and_no_more() -> None:
    world = TurnWorld(ScriptedModel(["one", "two", "three"]))
    await world.admit("first")
    await world.process().run()
    parent = await forked(world)
    await world.admit_to(parent, OWNER, "after the fork")
    await world.process().run()
    await world.admit("of the fork")
    await world.process().run()
    assert shown(world) == ["first", "one", "of the fork"]


@virtual_time
@pytest.mark.behaviour("SES-72")
async def test_the_second_attempt_at_a_forks_first_turn_is_shown_the_same() -> None:
    world = TurnWorld(ScriptedModel(["one", "two", "three"]))
    await world.admit("first")
    await world.process().run()
    await forked(world)
    reached = asyncio.Event()

    async def stop() -> None:
        reached.set()
        await asyncio.Event().wait()

    await world.admit("of the fork")
    _, task = await world.process(failpoints=Failpoints({"turn.requested": stop})).start()
    await reached.wait()
    await asyncio.sleep(LEASE_S + 1)
    await world.process("w2").run()
    assert shown(world) == ["first", "one", "of the fork"]
    task.cancel()
    await asyncio.wait({task})


@virtual_time
@pytest.mark.behaviour("SES-72")
async def test_the_first_turn_of_a_child_that_inherits_nothing_is_shown_nothing() -> None:
    world = TurnWorld(ScriptedModel(["one", "two"]))
    await world.admit("first")
    await world.process().run()
    await forked(world, inherit=False)
    await world.admit("of the child")
    await world.process().run()
    assert shown(world) == ["of the child"]

"""A host that resumes a turn with the agent: its key, what the body is told, and what of the old turn the model sees."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from shared.agents import Turn, TurnOutcome
from shared.domain.errors import KeyConflict, NotResumable, RunIdReused, TurnDuplicate
from shared.domain.ids import new_run_id
from shared.host.port import NewTurn
from shared.models.types import UserMessage
from shared.sessions.vocabulary import Payload, TurnStarted
from tests.support.virtual_time import virtual_time
from tests.unit.workers.turns.test_turns_in_process import HELLO, Host, answer, waits

GO_ON = NewTurn({"text": "go on"}, resumes=1)


async def interrupted(*script: str) -> Host:
    """A host whose session's one turn was interrupted."""
    host = await Host(*script).create()
    running = await host.start(waits)
    await asyncio.sleep(1)
    running.cancel()
    await asyncio.wait({running})
    assert (await host.last("turn.ended"))["reason"] == "interrupted"
    return host


@virtual_time
@pytest.mark.behaviour("RSM-32", "RSM-34", "RSM-21")
async def test_the_failed_reply_of_an_interrupted_turn_is_in_no_later_request() -> None:
    host = await interrupted("first", "second")
    assert (await host.last("turn.ended"))["code"] == "turn.interrupted"
    assert await host.last("turn.reply") == {"v": 1, "outcome": "failed"}
    await host.run(turn=GO_ON)
    await host.run(turn=NewTurn({"text": "and now"}))
    for request, texts in zip(
        host.model.requests, (["hello", "go on"], ["hello", "go on", "and now"]), strict=True
    ):
        assert [m.text for m in request.messages if isinstance(m, UserMessage)] == texts
    assert [m.text for m in host.model.requests[1].messages][-4:] == ["hello", "go on", "first", "and now"]


@virtual_time
@pytest.mark.behaviour("RSM-01", "RSM-17", "RSM-38", "RSM-40", "RSM-41", "RSM-42", "TRN-06")
async def test_a_resume_is_keyed_by_its_turn_and_tells_the_body_and_the_bus_what_it_continues() -> None:
    published: list[Payload] = []

    async def publish(name: str, payload: Payload) -> None:
        published.append(payload)

    async def use(turn: Turn) -> TurnOutcome:
        assert turn.admitted.resumes == 1
        return turn.reply("ok")

    host = await interrupted()
    host.services = replace(host.services, publish=publish)
    await host.run(use, GO_ON)
    assert [one.resumes for one in published if isinstance(one, TurnStarted)] == [1]
    resumed = (await host.last("turn.started"))["turn_id"]
    assert str(await host.sessions.lookup(host.address, "resume:1")) == resumed
    with pytest.raises(TurnDuplicate) as duplicate:
        await host.run(use, GO_ON)
    assert duplicate.value.fields["turn_id"] == resumed
    with pytest.raises(KeyConflict):
        await host.run(use, replace(GO_ON, message={"text": "other"}))
    with pytest.raises(KeyConflict):
        await host.run(use, replace(GO_ON, resumes=None, key="resume:1"))
    with pytest.raises(NotResumable):
        await host.run(use, replace(GO_ON, key="mine"))
    with pytest.raises(NotResumable):
        await host.run(use, replace(GO_ON, resumes=True))
    await host.run(answer, HELLO)
    assert [one.resumes for one in published if isinstance(one, TurnStarted)] == [1, None]


@virtual_time
@pytest.mark.behaviour("RSM-39", "RSM-44", "RSM-45", "RSM-46")
async def test_a_resume_that_did_not_answer_is_tried_again_under_a_new_key_and_run() -> None:
    async def fail(turn: Turn) -> TurnOutcome:
        raise ValueError("the provider is away")

    host = await interrupted("done")
    run = new_run_id()
    with pytest.raises(ValueError, match="away"):
        await host.run(fail, replace(GO_ON, run_id=run))
    with pytest.raises(TurnDuplicate):
        await host.run(fail, GO_ON)
    with pytest.raises(RunIdReused):
        await host.run(fail, replace(GO_ON, key="resume:1:2", run_id=run))
    running = asyncio.create_task(host.run(waits, replace(GO_ON, key="resume:1:2")))
    await asyncio.sleep(1)
    running.cancel()
    await asyncio.wait({running})
    result = await host.run(turn=replace(GO_ON, resumes=3))
    assert result.outcome == "completed"
    assert await host.sessions.lookup(host.address, "resume:3") is not None
    started = [
        r.data.get("resumes")
        for r in await host.sessions.log.read(host.address.id)
        if r.kind == "turn.started"
    ]
    assert started == [None, 1, 1, 3]

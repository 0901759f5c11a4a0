"""A process that ran a session's last turn does not read its log for the next one, whoever wrote what to it meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import pytest

from shared.agents import Policy
from shared.domain.ids import SessionId, WorkerId, new_run_id, new_session_id, new_turn_id
from shared.inbox.port import Delivery
from shared.models.scripted import ScriptedModel
from shared.models.types import Message, ModelRequest
from shared.sessions.inproc import InprocSessionLog, InprocStore
from shared.sessions.log import NewSession
from shared.sessions.records import Record, draft
from shared.sessions.vocabulary import TurnReply, TurnStarted, UserMessage, draft_of
from shared.turns.queue import Admission, AdmissionLimits, Ending
from tests.support.scripted_tools import Bench, calls
from tests.support.turn_world import LEASE_S, OWNER, Fault, TurnWorld, WorkerProcess
from tests.support.virtual_time import virtual_time
from workers.context.transcript import fold


class CountedLog(InprocSessionLog):
    """The twin's log; counts the readings of histories."""

    def __init__(self, store: InprocStore) -> None:
        super().__init__(store)
        self.readings = 0

    async def read_back(
        self,
        session_id: SessionId,
        *,
        before: int | None = None,
        limit: int = 1_000,
        kinds: Sequence[str] | None = None,
    ) -> Sequence[Record]:
        self.readings += 1
        return await super().read_back(session_id, before=before, limit=limit, kinds=kinds)


class Stage:
    """A session whose first two turns one process ran; the model says how many messages it was shown."""

    def __init__(self, *, policy: Policy | None = None) -> None:
        self.bench = Bench()
        self.world = TurnWorld(ScriptedModel(lambda request: said(request)), self.bench.tool, policy=policy)
        self.log = self.world.log = CountedLog(self.world.store)
        self.process = self.world.process("ours")

    async def turn(self, text: str, process: WorkerProcess | None = None) -> int:
        """Run a turn, check that the model is shown what the log holds, and return how often it was read for that."""
        before = self.log.readings
        await self.world.admit(text)
        earlier = fold(self.world.records()).messages
        await (process or self.process).run()
        assert self.shown() == (
            *earlier,
            *fold(self.world.records()).messages[len(earlier) : len(earlier) + 1],
        )
        assert self.shown()[-1].text == text
        return self.log.readings - before

    def shown(self) -> tuple[Message, ...]:
        """What the last request showed behind the instructions."""
        return self.world.model.requests[-1].messages[1:]


def said(request: ModelRequest) -> str:
    return f"shown {len(request.messages)}"


async def staged() -> Stage:
    stage = Stage()
    assert [await stage.turn("one"), await stage.turn("two")] == [0, 0]
    return stage


# --- nobody else writes -------------------------------------------------------------------------------------------


@virtual_time
@pytest.mark.behaviour("EVT-61")
async def test_a_process_that_ran_every_turn_of_a_session_never_reads_its_history() -> None:
    stage = await staged()
    assert [await stage.turn(f"turn {n}") for n in range(20)] == [0] * 20


@virtual_time
async def test_a_process_that_ran_no_turn_of_a_session_reads_its_history_once() -> None:
    stage = await staged()
    other = stage.world.process("other")
    assert [await stage.turn(f"turn {n}", other) for n in range(3)] == [1, 0, 0]


@virtual_time
async def test_steps_with_calls_are_shown_again_as_they_are_stored() -> None:
    stage = Stage()
    stage.world.model = ScriptedModel([calls("work", "work"), "done", "again"])
    stage.process = stage.world.process("ours")
    await stage.world.admit("one")
    _, running = await stage.process.start()
    await stage.bench.has_begun(2)
    for call in ("0", "1"):
        stage.bench.let_go(call)
    await running
    assert await stage.turn("two") == 0
    assert len(stage.shown()) == 1 + 1 + 2 + 1 + 1


@pytest.mark.parametrize("fault", ["lost", "unreached"])
@pytest.mark.parametrize("what", ["open", "end"])
@virtual_time
async def test_a_commit_that_was_repeated_leaves_what_the_log_holds(what: str, fault: Fault) -> None:
    stage = await staged()
    stage.world.queue.faults[what] = [fault]
    await stage.world.admit("three")
    await stage.process.run()
    await stage.turn("four")


# --- someone does ----------------------------------------------------------------------------------------------------


async def another_worker(stage: Stage) -> None:
    await stage.turn("elsewhere", stage.world.process("other"))


async def a_host_in_a_turn_of_its_own(stage: Stage) -> None:
    admission = Admission(new_turn_id(), new_run_id(), stage.world.session, OWNER, {"text": "host"})
    started = TurnStarted(
        turn_id=str(admission.turn_id),
        run_id=admission.run_id,
        entry=f"{admission.run_id}:0",
        origin="user",
        user_message=UserMessage(text="host"),
    )
    queue = stage.world.queue
    begun = await queue.begin(
        admission,
        WorkerId("host"),
        lease_s=None,
        commit_id="b",
        drafts=[draft_of(started)],
        limits=AdmissionLimits(),
    )
    reply = TurnReply(outcome="completed", text="by hand")
    await queue.end(begun.claim, "e", [draft_of(reply)], Ending("completed"))


async def a_host_outside_any_turn(stage: Stage) -> None:
    await stage.log.commit(stage.world.session, OWNER, [draft("note", {"text": "x"})])


async def a_delivery_that_a_turn_answered(stage: Stage) -> None:
    world = stage.world
    await world.inbox.deliver(Delivery(world.session, OWNER, "i", "test", "news"))
    await world.process("other").run()


async def a_removal_and_another_session_under_the_same_id(stage: Stage) -> None:
    world = stage.world
    await world.log.remove(world.session, OWNER)
    await world.log.create(NewSession(world.session, OWNER))
    for text in ("uno", "due"):  # as many records, of the same kinds
        await stage.turn(text, world.process("other"))


async def a_successor_that_took_the_turn_over(stage: Stage) -> None:
    world = stage.world
    world.model.hold()
    await world.admit("stolen")
    holding, running = await stage.process.start()
    await world.model.started(len(world.model.requests) + 1)
    stage.process.holdings.keeper.drop(holding.claim.turn_id, holding.claim.fence)
    await asyncio.sleep(LEASE_S + 1)
    world.model.release()
    await world.process("thief").run()
    await asyncio.wait({running})
    assert stage.process.runner.counts.stale_writes_refused == 1


async def a_cancel_of_an_open_turn(stage: Stage) -> None:
    world = stage.world
    world.model.hold()
    turn = await world.admit("cancelled")
    _, running = await stage.process.start()
    await world.model.started(len(world.model.requests) + 1)
    await world.queue.cancel(turn, OWNER)
    world.model.release()
    await asyncio.wait({running})


WRITERS: Final = (
    another_worker,
    a_host_in_a_turn_of_its_own,
    a_host_outside_any_turn,
    a_delivery_that_a_turn_answered,
    a_removal_and_another_session_under_the_same_id,
    a_successor_that_took_the_turn_over,
    a_cancel_of_an_open_turn,
)


@pytest.mark.parametrize("write", WRITERS, ids=lambda writer: writer.__name__)
@virtual_time
async def test_whatever_someone_else_wrote_is_read_by_the_next_turn(
    write: Callable[[Stage], Awaitable[None]],
) -> None:
    stage = await staged()
    await write(stage)
    assert [await stage.turn("next"), await stage.turn("and the next")] == [1, 0]


@virtual_time
async def test_what_is_written_during_a_turn_is_read_by_the_next_one() -> None:
    stage = await staged()
    stage.world.model.hold()
    await stage.world.admit("three")
    _, running = await stage.process.start()
    await stage.world.model.started(3)
    await a_host_outside_any_turn(stage)
    stage.world.model.release()
    await running
    assert await stage.turn("four") == 1


@virtual_time
@pytest.mark.behaviour("SES-72")
async def test_a_session_that_inherits_is_read_for_each_of_its_turns() -> None:
    stage = await staged()
    parent, stage.world.session = stage.world.session, new_session_id()
    await stage.log.fork(NewSession(stage.world.session, OWNER), parent, inherit=True)
    for _ in range(2):
        before = stage.log.readings
        await stage.world.admit("of the fork")
        await stage.process.run()
        assert stage.log.readings > before
    assert [message.text for message in stage.shown()[:2]] == ["one", "shown 2"]

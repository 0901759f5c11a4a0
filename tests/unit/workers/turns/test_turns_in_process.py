"""A turn that a host's own process begins and ends: whose it is to end, and what happens when the end fails."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from shared.agents import Agent, Turn, TurnOutcome, TurnResult, Use
from shared.domain.errors import (
    Defect,
    InvalidInput,
    ModelRefused,
    SessionMissing,
    StoreUnavailable,
    TurnBeginError,
    TurnClosed,
    TurnDuplicate,
)
from shared.domain.ids import OwnerId, new_session_id
from shared.feed.inproc import InprocFeed
from shared.host.endings import turn_ending_of
from shared.host.port import CloseReason, NewTurn, SessionAddress
from shared.models.scripted import ScriptedModel, ScriptedReply
from shared.models.types import Usage, UserMessage
from shared.sessions.inproc import InprocStore
from shared.sessions.log import NewSession
from shared.sessions.records import draft
from shared.sessions.vocabulary import Payload, TurnStarted
from tests.support.small_sessions import SmallSessions
from tests.support.virtual_time import loop_clock, virtual_time
from workers.executor import BoundedExecutor
from workers.turns.body.in_process import TurnServices, run_turn
from workers.turns.body.lifecycle import FAILED_DRAIN_S, NoReactions, Reactions

OWNER = OwnerId("o")
HELLO = NewTurn({"text": "hello"})


class Host:
    """A host's process with one session."""

    def __init__(self, *script: Any, reactions: Reactions | None = None, **services: Any) -> None:
        self.model = ScriptedModel(script)
        self.sessions = SmallSessions(InprocStore(loop_clock))
        self.address = SessionAddress(new_session_id(), OWNER)
        self.published: list[str] = []
        self.services = TurnServices(
            sessions=self.sessions,
            log=self.sessions.log,
            model=self.model,
            default_model="m",
            executor=BoundedExecutor(1),
            feed=InprocFeed(),
            reactions=reactions or NoReactions(),
            publish=self._publish,
            **services,
        )

    async def _publish(self, name: str, payload: Payload) -> None:
        self.published.append(name)

    async def create(self) -> Host:
        await self.sessions.log.create(NewSession(self.address.id, OWNER))
        return self

    async def run(
        self, use: Use | None = None, turn: NewTurn = HELLO, agent: Agent | None = None
    ) -> TurnResult:
        return await run_turn(
            agent or Agent("a", "Be brief."), turn, self.services, use, session=self.address
        )

    async def start(self, use: Use | None = None) -> asyncio.Task[TurnResult]:
        return asyncio.create_task(self.run(use))

    async def kinds(self) -> list[str]:
        return [r.kind for r in await self.sessions.log.read(self.address.id)]

    async def last(self, kind: str) -> dict[str, Any]:
        found = [r.data for r in await self.sessions.log.read(self.address.id) if r.kind == kind]
        return dict(found[-1])


async def answer(turn: Turn) -> TurnOutcome:
    return turn.reply("ok")


async def waits(turn: Turn) -> TurnOutcome:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


def raising(error: BaseException) -> Use:
    async def use(turn: Turn) -> TurnOutcome:
        raise error

    return use


# --- whose turn it is ----------------------------------------------------------------------------------------------


@virtual_time
@pytest.mark.behaviour("TRN-01", "TRN-02", "TRN-15", "TRN-16", "KIT-25")
async def test_a_new_turn_is_begun_and_ended_here_and_tells_how_many_items_its_end_left_waiting() -> None:
    host = await Host("hi").create()
    host.sessions.queue.waiting_items = 3
    result = await host.run()
    assert (result.outcome, result.reply, result.pending) == ("completed", "hi", 3)
    kinds = await host.kinds()
    assert (kinds[0], kinds[-2:]) == ("turn.started", ["turn.reply", "turn.ended"])
    assert host.published == ["turn.started", "turn.ended"]


@virtual_time
@pytest.mark.behaviour("TRN-04", "TRN-02", "TRN-64")
async def test_a_turn_that_the_host_began_is_left_for_it_to_end_after_records_of_its_own() -> None:
    host = await Host().create()
    writer = await host.sessions.open(host.address, HELLO)
    result = await run_turn(Agent("a", ""), writer, host.services, answer)
    assert (result.outcome, result.pending) == ("completed", 0)
    assert (await host.kinds())[-1] == "turn.reply"
    await writer.append([draft("note.added", {"by": "the host"})])
    await writer.end(turn_ending_of(TurnOutcome(result.outcome, result.reply)))
    assert (await host.kinds())[-3:] == ["turn.reply", "note.added", "turn.ended"]
    with pytest.raises(InvalidInput):
        await run_turn(Agent("a", ""), HELLO, host.services, answer)


@virtual_time
@pytest.mark.behaviour("TRN-03", "TRN-08", "TRN-40", "TRN-44")
async def test_what_a_new_turn_names_is_admitted_and_the_same_key_begins_nothing_again() -> None:
    host = await Host().create()
    seen: list[Turn] = []

    async def use(turn: Turn) -> TurnOutcome:
        seen.append(turn)
        return turn.reply("ok")

    turn = NewTurn({"text": "hi"}, key="k", command={"do": 1}, meta={"request": "1"})
    await host.run(use, turn)
    [given] = seen
    assert given.user_message.text == "hi"
    assert (given.admitted.key, given.admitted.command, given.admitted.meta) == (
        "k",
        {"do": 1},
        {"request": "1"},
    )
    with pytest.raises(TurnDuplicate):
        await host.run(use, NewTurn({"text": "hi"}, key="k", command={"do": 1}, meta={"request": "2"}))
    assert len(seen) == 1


@virtual_time
@pytest.mark.behaviour("TRN-28", "TRN-35")
async def test_a_turn_that_cannot_begin_raises_the_refusal_itself_and_opens_nothing() -> None:
    host = Host()
    with pytest.raises(SessionMissing) as refusal:
        await host.run(answer)
    assert isinstance(refusal.value, TurnBeginError)
    assert (host.sessions.writers, host.model.requests) == ([], [])


@virtual_time
@pytest.mark.behaviour("MST-09", "RSM-20")
async def test_a_later_turn_shows_the_earlier_ones_and_its_own_message_once() -> None:
    host = await Host("one", "two").create()
    await host.run()
    await host.run()
    shown = [m.text for m in host.model.requests[-1].messages]
    assert shown == ["Be brief.", "hello", "one", "hello"]


# --- how it ends -----------------------------------------------------------------------------------------------------


@virtual_time
@pytest.mark.behaviour("TRN-60", "TRN-62")
async def test_a_success_whose_end_cannot_be_stored_is_not_reported_and_the_scope_stores_it() -> None:
    host = await Host().create()
    host.sessions.queue.faults["end"] = ["unreached"]
    with pytest.raises(StoreUnavailable):
        await host.run(answer)
    assert await host.last("turn.ended") == {"v": 1, "reason": "completed"}


@pytest.mark.parametrize(
    ("error", "code"), [(ValueError("no"), "turn.failed"), (ModelRefused("no"), "model.refused")]
)
@virtual_time
@pytest.mark.behaviour("TRN-61", "TRN-62", "TRN-23", "TRN-35")
async def test_a_failure_keeps_its_cause_when_its_end_cannot_be_stored_at_first(
    error: Exception, code: str
) -> None:
    host = await Host().create()
    host.sessions.queue.faults["end"] = ["unreached"]
    with pytest.raises(type(error)) as raised:
        await host.run(raising(error))
    assert raised.value is error
    assert (await host.last("turn.ended"))["code"] == code


@virtual_time
@pytest.mark.behaviour("TRN-54", "TRN-56")
async def test_what_escapes_our_own_code_is_raised_and_stored_as_a_defect() -> None:
    async def broken(started: TurnStarted) -> None:
        raise KeyError("ours")

    host = await Host(take_message=broken).create()
    with pytest.raises(Defect):
        await host.run(answer)
    assert (await host.last("turn.ended"))["code"] == "turn.defect"
    assert "turn.reply" not in await host.kinds()


@pytest.mark.parametrize("reason", ["cancelled", "interrupted", "removed"])
@virtual_time
@pytest.mark.behaviour("TRN-27", "TRN-50")
async def test_a_turn_that_someone_else_closes_stops_at_once_with_the_reason(reason: CloseReason) -> None:
    host = await Host("never").create()
    host.model.hold()
    running = await host.start()
    await host.model.started()
    host.sessions.writers[0].lose(reason)
    with pytest.raises(TurnClosed) as closed:
        await running
    assert (closed.value.code, closed.value.fields["reason"]) == ("turn.closed", reason)
    assert host.model.cancelled == 1
    assert "turn.reply" not in await host.kinds()


@virtual_time
@pytest.mark.behaviour("TRN-24", "TRN-21")
async def test_a_cancel_after_the_body_returned_stores_reply_and_end_as_returned_and_once() -> None:
    settling = asyncio.Event()

    async def endless() -> None:
        settling.set()
        await asyncio.Event().wait()

    async def use(turn: Turn) -> TurnOutcome:
        turn.tasks.fork("endless", endless())
        return TurnOutcome("partial", "kept")

    host = await Host().create()
    running = await host.start(use)
    await settling.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await host.last("turn.reply") == {"v": 1, "outcome": "partial", "text": "kept"}
    assert await host.last("turn.ended") == {"v": 1, "reason": "partial"}
    assert (await host.kinds()).count("turn.ended") == 1


@virtual_time
@pytest.mark.behaviour("TRN-144", "TRN-46")
async def test_a_failed_turn_stores_its_end_with_the_usage_so_far() -> None:
    async def use(turn: Turn) -> TurnOutcome:
        await turn.run()
        raise ValueError("no")

    host = await Host(ScriptedReply("hi", usage=Usage(5, 1))).create()
    with pytest.raises(ValueError, match="no"):
        await host.run(use)
    [ending] = host.sessions.queue.endings
    assert (ending.code, ending.usage["input_tokens"]) == ("turn.failed", 5)


# --- reactions -------------------------------------------------------------------------------------------------------


class Endless:
    """Reactions that never are done once there is a reply."""

    pending = 0

    async def drain(self) -> None:
        await asyncio.Event().wait()


@virtual_time
@pytest.mark.behaviour("TRN-26", "TRN-143", "TRN-142")
async def test_a_failed_turn_waits_ten_seconds_for_reactions_to_its_reply() -> None:
    host = await Host(reactions=Endless()).create()
    with pytest.raises(ValueError, match="no"):
        await host.run(raising(ValueError("no")))
    assert asyncio.get_running_loop().time() == pytest.approx(FAILED_DRAIN_S, abs=0.1)
    assert (await host.last("turn.ended"))["code"] == "turn.failed"


@virtual_time
@pytest.mark.behaviour("TRN-25", "TRN-143")
async def test_a_cancelled_turn_waits_for_no_reaction() -> None:
    host = await Host(reactions=Endless()).create()
    running = await host.start(waits)
    await asyncio.sleep(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert asyncio.get_running_loop().time() == pytest.approx(1, abs=0.1)
    assert await host.last("turn.reply") == {"v": 1, "outcome": "failed"}
    assert (await host.last("turn.ended"))["code"] == "turn.interrupted"


@virtual_time
@pytest.mark.behaviour("TRN-139", "TRN-20")
async def test_tasks_and_reactions_are_settled_until_both_are_quiet() -> None:
    done: list[str] = []

    class Chained:
        """Each reaction forks a task, the first task wakes another reaction."""

        turn: Turn
        waiting = 1

        @property
        def pending(self) -> int:
            return self.waiting

        async def drain(self) -> None:
            if not self.waiting:
                return
            self.waiting = 0
            done.append("reaction")
            self.turn.tasks.fork(f"task {len(done)}", self.task())

        async def task(self) -> None:
            done.append("task")
            if len(done) < 4:
                self.waiting = 1

    reactions = Chained()

    async def use(turn: Turn) -> TurnOutcome:
        reactions.turn = turn
        return turn.reply("ok")

    host = await Host(reactions=reactions).create()
    await host.run(use)
    assert done == ["reaction", "task", "reaction", "task"]


@virtual_time
@pytest.mark.behaviour("TRN-140", "TRN-141")
async def test_a_cancel_while_reactions_to_a_reply_drain_cuts_the_drain_only() -> None:
    host = await Host(reactions=Endless()).create()
    running = await host.start(answer)
    await asyncio.sleep(1)
    assert (await host.kinds())[-1] == "turn.reply"
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert await host.last("turn.reply") == {"v": 1, "outcome": "completed", "text": "ok"}
    assert await host.last("turn.ended") == {"v": 1, "reason": "completed"}


@virtual_time
@pytest.mark.behaviour("TRN-09")
async def test_the_users_message_is_the_newest_of_the_memory_a_body_sees() -> None:
    async def use(turn: Turn) -> TurnOutcome:
        assert turn.memory[-1] == UserMessage("hello")
        return turn.reply("ok")

    await (await Host().create()).run(use)

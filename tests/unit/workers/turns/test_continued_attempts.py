"""A turn whose worker was lost goes on elsewhere: what was stored counts, what was not is done again (core 7)."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

from shared.agents import Policy, Tool, ToolContext, tool
from shared.domain.failpoints import Failpoints
from shared.domain.ids import TurnId
from shared.leases.watchdog import margin_s
from shared.models.scripted import Script, ScriptedModel, ScriptedReply
from shared.models.types import ModelRequest, ToolCall, ToolMessage
from shared.sessions.records import draft
from shared.sessions.vocabulary import TurnReply, TurnStarted, UserMessage, draft_of
from shared.turns.queue import Claim, Ending
from tests.support.turn_world import LEASE_S, TurnWorld
from tests.support.virtual_time import virtual_time
from workers.tools.calls import UNKNOWN_TEXT
from workers.turns.holdings import Holding

STOPS = (
    "turn.claimed",
    "turn.opened",
    "turn.requested",
    "turn.response-stored",
    "turn.tool-started",
    "turn.tool-done",
    "turn.step-stored",
    "turn.reply-ready",
)


class Counted:
    """A tool that counts its runs and the tokens it was given."""

    def __init__(self, name: str = "act", *, repeatable: bool = False) -> None:
        self.tokens: list[str] = []

        async def act(context: ToolContext) -> str:
            self.tokens.append(context.idempotency_token)
            return f"{name} {len(self.tokens)}"

        self.tool: Tool = tool(name=name, description="Act.", repeatable=repeatable)(act)


def calls(*names: str) -> ScriptedReply:
    return ScriptedReply(calls=tuple(ToolCall(f"c{n}", name, "{}") for n, name in enumerate(names)))


async def lose_at(world: TurnWorld, point: str, hit: int = 1) -> Holding:
    """Run an attempt that stops for ever at a failpoint; wait until its lease has passed and it noticed."""
    reached = asyncio.Event()
    left = hit

    async def stop() -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            reached.set()
            await asyncio.Event().wait()

    process = world.process("lost", failpoints=Failpoints({point: stop}))
    holding, task = await process.start()
    async with asyncio.timeout(5):
        await reached.wait()
    await asyncio.sleep(LEASE_S - margin_s(LEASE_S))
    stored = len(world.queue.writes)
    await asyncio.sleep(margin_s(LEASE_S) + 1)
    assert task.cancelled() and holding.lost == "watchdog"
    assert len(world.queue.writes) == stored, "a lost attempt stores nothing"
    return holding


async def assert_ended_once(world: TurnWorld, turn: TurnId, outcome: str = "completed") -> None:
    kinds = world.kinds()
    for kind in ("turn.started", "turn.reply", "turn.ended"):
        assert kinds.count(kind) == 1, kind
    assert kinds[-1] == "turn.ended"
    view = await world.view(turn)
    assert (view.status, view.outcome, view.is_open) == ("ended", outcome, False)


@pytest.mark.parametrize("point", STOPS)
@virtual_time
@pytest.mark.behaviour("BEY-01", "RSM-37", "SES-131")
async def test_wherever_a_worker_is_lost_the_next_one_finishes_the_turn_once(point: str) -> None:
    act, read = Counted(), Counted("read", repeatable=True)

    def answer(request: ModelRequest) -> Script:
        return "end" if any(isinstance(m, ToolMessage) for m in request.messages) else calls("act", "read")

    world = TurnWorld(ScriptedModel(answer), act.tool, read.tool)
    turn = await world.admit()
    lost = await lose_at(world, point)
    process = world.process("next")
    holding = await process.run()
    assert holding.claim.fence.epoch == lost.claim.fence.epoch + 1
    await assert_ended_once(world, turn)
    assert len(act.tokens) <= 1, "a call that may not be repeated ran twice"
    assert set(read.tokens) <= {f"{holding.claim.run_id}:call:1"}
    assert [r["call_id"] for r in world.data("memory.tool-result")] == ["c0", "c1"]
    assert world.kinds().count("step.response") == 1
    assert [e["step"] for e in world.data("step.ended")] == [0, 1]


@virtual_time
@pytest.mark.behaviour("BEY-01")
async def test_a_stored_response_is_never_asked_for_again() -> None:
    act = Counted()
    world = TurnWorld(ScriptedModel([calls("act"), "end"]), act.tool)
    turn = await world.admit()
    await lose_at(world, "turn.response-stored")
    await world.process("next").run()
    assert len(world.model.requests) == 2
    await assert_ended_once(world, turn)


@virtual_time
@pytest.mark.behaviour("BEY-01", "RSM-35")
async def test_a_started_call_is_unknown_to_the_model_unless_it_may_be_repeated() -> None:
    """Field case: a worker dies between a call and its result; the next request still has a result for each call."""
    act, read = Counted(), Counted("read", repeatable=True)
    world = TurnWorld(ScriptedModel([calls("act", "read"), "end"]), act.tool, read.tool)
    turn = await world.admit()
    lost = await lose_at(world, "turn.tool-done")
    await world.process("next").run()
    assert len(act.tokens) == 1
    assert read.tokens == [f"{lost.claim.run_id}:call:1"] * 2
    results = {r["name"]: (r["status"], r["text"]) for r in world.data("memory.tool-result")}
    assert results == {"act": ("unknown", UNKNOWN_TEXT), "read": ("ok", "read 2")}
    assert [c.state for c in await world.queue.calls(world.session, turn)] == ["unknown", "done"]
    assert [m.text for m in world.model.requests[-1].messages[-2:]] == [UNKNOWN_TEXT, "read 2"]
    assert [(c["name"], c["status"]) for c in world.data("tool.completed")] == [
        ("act", "unknown"),
        ("read", "ok"),
    ]


@virtual_time
@pytest.mark.behaviour("BEY-01", "THR-99", "THR-100")
async def test_a_settled_result_is_reused_and_a_call_that_never_started_runs() -> None:
    act = Counted()
    world = TurnWorld(
        ScriptedModel([calls("act", "act", "act"), "end"]), act.tool, policy=Policy(tool_concurrency=1)
    )
    await world.admit()
    lost = await lose_at(world, "turn.tool-done", hit=2)  # the first result is stored, the second is not
    await world.process("next").run()
    run = lost.claim.run_id
    assert act.tokens == [f"{run}:call:0", f"{run}:call:1", f"{run}:call:2"]
    assert [r["text"] for r in world.data("memory.tool-result")] == ["act 1", UNKNOWN_TEXT, "act 3"]
    assert world.kinds().count("tool.started") == 3
    assert world.kinds().count("tool.completed") == 3


@virtual_time
async def test_calls_that_never_run_are_told_once_over_all_attempts() -> None:
    world = TurnWorld(ScriptedModel([calls("nope", "act"), "end"]), Counted().tool)
    await world.admit()
    await lose_at(world, "turn.response-stored")
    await world.process("next").run()
    assert [(c["name"], c["status"]) for c in world.data("tool.completed")] == [
        ("nope", "error"),
        ("act", "unknown"),
    ]


@virtual_time
@pytest.mark.behaviour("RSM-37", "REQ-14", "THR-100")
async def test_a_continuing_attempt_sends_the_request_whose_header_is_stored() -> None:
    model = ScriptedModel([calls("act"), "never heard", "end"])
    world = TurnWorld(model, Counted().tool)
    turn = await world.admit()
    await lose_at(world, "turn.reply-ready")
    await world.process("next").run()
    assert model.requests[1] == model.requests[2]
    assert [h["step"] for h in world.data("request.prepared")] == [0, 1]
    await assert_ended_once(world, turn)


@virtual_time
@pytest.mark.behaviour("REQ-01")
async def test_an_open_turn_without_a_header_gets_one_before_the_model_is_asked() -> None:
    world = TurnWorld(ScriptedModel([lambda _: f"{len(world.data('request.prepared'))} header"]))
    turn = await world.admit()
    claim = (await world.process("lost").claim()).claim
    await world.queue.open(claim, "c1", [draft_of(started_of(claim))])
    await asyncio.sleep(LEASE_S + 1)
    await world.process("next").run()
    assert world.data("turn.reply")[0]["text"] == "1 header"
    await assert_ended_once(world, turn)


def started_of(claim: Claim) -> TurnStarted:
    return TurnStarted(
        turn_id=str(claim.turn_id),
        run_id=claim.run_id,
        entry=f"{claim.run_id}:0",
        origin="user",
        user_message=UserMessage(text="hello"),
    )


@pytest.mark.parametrize("outcome", ["completed", "partial", "failed"])
@virtual_time
@pytest.mark.behaviour("TRN-24", "TRN-21")
async def test_a_stored_reply_ends_the_turn_with_its_outcome_and_nothing_runs(
    outcome: Literal["completed", "partial", "failed"],
) -> None:
    world = TurnWorld(ScriptedModel([]))
    turn = await world.admit()
    claim = (await world.process("lost").claim()).claim
    reply = TurnReply(outcome=outcome, text="stored")
    await world.queue.open(claim, "c1", [draft_of(started_of(claim)), draft_of(reply)])
    await asyncio.sleep(LEASE_S + 1)
    await world.process("next").run()
    await assert_ended_once(world, turn, outcome)
    assert world.model.requests == []
    assert world.data("turn.ended") == [{"v": 1, "reason": outcome}]


@virtual_time
@pytest.mark.behaviour("SES-160", "SES-66")
async def test_an_open_turn_whose_log_has_no_beginning_fails_and_frees_its_session() -> None:
    world = TurnWorld(ScriptedModel([]))
    turn = await world.admit()
    claim = (await world.process("lost").claim()).claim
    await world.queue.open(claim, "c1", [])
    await asyncio.sleep(LEASE_S + 1)
    await world.process("next").run()
    view = await world.view(turn)
    assert (view.status, view.code) == ("ended", "session.decode")


@virtual_time
@pytest.mark.behaviour("SES-160", "SES-66")
async def test_a_corrupt_row_of_the_history_fails_the_turn_with_its_code_instead_of_losing_it() -> None:
    world = TurnWorld(ScriptedModel(["one"]))
    await world.admit()
    await world.process().run()
    await world.admit()
    claim = (await world.process("writer").claim()).claim
    broken = draft("memory.message", {"v": 1, "text": "x"})
    await world.queue.open(claim, "c1", [draft_of(started_of(claim))])
    await world.queue.end(claim, "c2", [broken], Ending("completed"))
    turn = await world.admit()
    await world.process("next").run()
    view = await world.view(turn)
    assert (view.status, view.outcome, view.code) == ("ended", "failed", "session.decode")
    assert len(world.model.requests) == 1
    assert world.records()[-3].kind == "turn.started"


@virtual_time
async def test_a_turn_of_an_agent_that_this_worker_does_not_have_fails_by_name() -> None:
    world = TurnWorld(ScriptedModel([]))
    turn = await world.admit(agent="somebody")
    await world.process().run()
    view = await world.view(turn)
    assert (view.outcome, view.code) == ("failed", "config.options")
    assert view.failure is not None and "somebody" in view.failure


@virtual_time
@pytest.mark.behaviour("DST-31")
async def test_a_turns_time_is_counted_over_all_its_attempts() -> None:
    model = ScriptedModel(["never", "never"])
    model.hold()
    world = TurnWorld(model, policy=Policy(max_duration_s=20))
    turn = await world.admit()
    await lose_at(world, "turn.requested")  # 16 of the 20 seconds
    began = asyncio.get_running_loop().time()
    await world.process("next").run()
    assert asyncio.get_running_loop().time() - began == pytest.approx(4, abs=0.1)
    assert (await world.view(turn)).code == "turn.timeout"


@virtual_time
@pytest.mark.behaviour("DST-31")
async def test_an_attempt_that_begins_after_the_turns_time_asks_nothing() -> None:
    world = TurnWorld(ScriptedModel(["never"]), policy=Policy(max_duration_s=5))
    turn = await world.admit()
    claim = (await world.process("lost").claim()).claim
    await world.queue.open(claim, "c1", [draft_of(started_of(claim))])
    await asyncio.sleep(LEASE_S + 1)
    await world.process("next").run()
    assert (await world.view(turn)).code == "turn.timeout"
    assert world.model.cancelled == len(world.model.requests)

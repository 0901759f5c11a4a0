"""One attempt's steps: which records and commits, what runs when, and how a turn ends."""

from __future__ import annotations

import asyncio

import pytest

from shared.agents import Policy, tool
from shared.domain.errors import (
    ModelStreamBroken,
)
from shared.models.scripted import Script, ScriptedModel, ScriptedReply
from shared.models.types import (
    AssistantMessage,
    ModelRequest,
    SystemMessage,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from tests.support.scripted_tools import Bench, calls, quick
from tests.support.turn_world import TurnWorld, Write
from tests.support.virtual_time import virtual_time
from workers.tools.calls import LIMIT_TEXT

OPENING = ("turn.started", "step.started", "request.prepared")
CLOSING = ("memory.message", "step.usage", "step.ended", "turn.reply", "turn.ended")


@virtual_time
@pytest.mark.behaviour("SES-36", "TRN-131", "TRN-21")
async def test_a_turn_of_one_step_is_two_commits_of_its_holder() -> None:
    usage = Usage(input_tokens=9, output_tokens=2)
    world = TurnWorld(ScriptedModel([ScriptedReply(text="Hi there.", usage=usage)]))
    turn = await world.admit("hello", key="k", meta={"m": None}, command={"c": 1})
    process = world.process()
    holding = await process.run()
    token = holding.claim.fence.token
    opening, closing = world.queue.writes
    assert opening == Write("open", opening.commit_id, OPENING, {})
    assert closing == Write("end", closing.commit_id, CLOSING, {})
    assert all(write.commit_id.startswith(f"{token}:") for write in world.queue.writes)
    (started,), (reply,), (ended,) = (world.data(f"turn.{k}") for k in ("started", "reply", "ended"))
    assert (started["key"], started["meta"], started["command"]) == ("k", {"m": None}, {"c": 1})
    assert (started["user_message"], started["entry"]) == ({"text": "hello"}, f"{started['run_id']}:0")
    assert reply == {"v": 1, "outcome": "completed", "text": "Hi there.", "step": 0}
    assert ended == {"v": 1, "reason": "completed"}
    view = await world.view(turn)
    assert (view.status, view.outcome, view.number) == ("ended", "completed", 1)
    assert view.usage["input_tokens"] == 9
    assert process.feed.told == [
        ("writer", 1),
        ("begin", 0),
        ("push", 0, "Hi "),
        ("push", 0, "there."),
        ("close", True),
        ("close", False),
    ]
    assert process.hints.changes == [world.session] * 2
    assert (len(process.holdings), process.runner.counts.ended) == (0, {"completed": 1})


@virtual_time
@pytest.mark.behaviour("REQ-01", "REQ-07", "TRN-42")
async def test_the_model_is_asked_only_after_its_header_is_stored() -> None:
    headers: list[int] = []

    def answer(request: ModelRequest) -> Script:
        headers.append(len(world.data("request.prepared")))
        assert "secret" not in str(request)
        return calls("quick") if len(headers) < 3 else "end"

    world = TurnWorld(ScriptedModel(answer), quick())
    await world.admit(meta={"tenant": "secret"})
    await world.process().run()
    assert headers == [1, 2, 3]
    assert [h["step"] for h in world.data("request.prepared")] == [0, 1, 2]
    assert all(
        h["system"] == "Be brief." and h["tools"][0]["name"] == "quick"
        for h in world.data("request.prepared")
    )


@virtual_time
@pytest.mark.behaviour("BEY-01", "RSM-27", "RSM-28", "THR-95", "THR-99")
async def test_a_step_with_a_call_stores_response_then_the_whole_step_with_the_next_header() -> None:
    world = TurnWorld(ScriptedModel([calls("quick"), "end"]), quick())
    turn = await world.admit()
    holding = await world.process().run()
    call = "1.0.0:quick:0"
    assert [(w.what, w.kinds, w.calls, w.stepped) for w in world.queue.writes] == [
        ("open", OPENING, {}, False),
        ("append", ("step.response", "tool.started"), {call: "started"}, False),
        (
            "append",
            (
                "tool.completed",
                "memory.message",
                "memory.tool-result",
                "step.usage",
                "step.ended",
                *OPENING[1:],
            ),
            {call: "done"},
            True,
        ),
        ("end", CLOSING, {}, False),
    ]
    (line,) = await world.queue.calls(world.session, turn)
    assert (line.state, line.token) == ("done", f"{holding.claim.run_id}:call:0")
    assert [m["entry"].rpartition(":")[2] for m in world.data("memory.message")] == ["1", "3"]
    assert world.data("memory.tool-result")[0]["entry"].endswith(":2")


@virtual_time
@pytest.mark.behaviour("BEY-01")
async def test_no_handler_runs_before_the_whole_response_is_stored() -> None:
    seen: list[list[str]] = []

    async def act() -> None:
        seen.append([r["calls"][0]["invocation_id"] for r in world.data("step.response")])
        (line,) = await world.queue.calls(world.session, turn)
        assert line.state == "started"

    world = TurnWorld(ScriptedModel([calls("act"), "end"]), tool(name="act", description="Act.")(act))
    turn = await world.admit()
    await world.process().run()
    assert seen == [["1.0.0:act:0"]]
    assert world.data("tool.completed")[0]["status"] == "ok"


@virtual_time
@pytest.mark.behaviour("REQ-06")
async def test_the_next_request_holds_the_call_and_its_result() -> None:
    world = TurnWorld(ScriptedModel([calls("quick", text="Let me look."), "end"]), quick())
    await world.admit()
    await world.process().run()
    first, second = world.model.requests
    assert second.messages == (
        *first.messages,
        AssistantMessage("Let me look.", (ToolCall("c0", "quick", "{}"),)),
        ToolMessage("c0", "quick", "done"),
    )
    assert first.messages == (SystemMessage("Be brief."), UserMessage("hello"))


@virtual_time
@pytest.mark.behaviour("TLS-55", "THR-99")
async def test_calls_run_a_bounded_number_at_once_and_each_is_marked_before_it_runs() -> None:
    bench = Bench()
    world = TurnWorld(
        ScriptedModel([calls(*["work"] * 5), "end"]), bench.tool, policy=Policy(tool_concurrency=2)
    )
    turn = await world.admit()
    _, task = await world.process().start()

    async def states() -> str:
        return " ".join(line.state for line in await world.queue.calls(world.session, turn))

    await bench.has_begun(2)
    assert await states() == "started started planned planned planned"
    for n, expected in enumerate(
        [
            "done started started planned planned",
            "done done started started planned",
            "done done done started started",
        ]
    ):
        bench.let_go(str(n))
        await bench.has_begun(3 + n)
        assert await states() == expected
    bench.let_go("3", "4")
    await task
    assert bench.most == 2
    assert bench.begun == ["0", "1", "2", "3", "4"]
    assert [r["text"] for r in world.data("memory.tool-result")] == [f"done {n}" for n in range(5)]


@virtual_time
async def test_results_that_finish_together_share_a_commit_and_the_last_ones_go_with_the_step() -> None:
    bench = Bench()
    world = TurnWorld(ScriptedModel([calls(*["work"] * 4), "end"]), bench.tool)
    await world.admit()
    _, task = await world.process().start()
    await bench.has_begun(4)
    bench.let_go("1", "3")
    await asyncio.sleep(1)
    bench.let_go("0", "2")
    await task
    _, _, together, whole, _ = world.queue.writes
    assert (together.kinds, together.stepped) == (("tool.completed",) * 2, False)
    assert set(together.calls) == {"1.0.0:work:1", "1.0.0:work:3"}
    assert (whole.kinds.count("tool.completed"), whole.stepped) == (2, True)
    assert set(whole.calls) == {"1.0.0:work:0", "1.0.0:work:2"}
    assert [r["text"] for r in world.data("memory.tool-result")] == [f"done {n}" for n in range(4)]


@virtual_time
@pytest.mark.behaviour("BEY-01", "TRN-88")
async def test_tokens_and_invocations_are_unique_over_the_steps_of_a_turn() -> None:
    bench = Bench()
    bench.let_go("0", "1")
    world = TurnWorld(ScriptedModel([calls("work", "work"), calls("work"), "end"]), bench.tool)
    turn = await world.admit()
    holding = await world.process().run()
    assert sorted(bench.tokens) == [f"{holding.claim.run_id}:call:{n}" for n in range(3)]
    lines = await world.queue.calls(world.session, turn)
    assert [c.invocation_id for c in lines] == ["1.0.0:work:0", "1.0.0:work:1", "1.0.1:work:0"]


@virtual_time
async def test_what_never_runs_is_settled_with_the_response_and_read_by_the_model() -> None:
    asked = (ToolCall("a", "nope", "{}"), ToolCall("b", "quick", "{"), ToolCall("c", "quick", "{}"))
    world = TurnWorld(ScriptedModel([ScriptedReply(calls=asked), "end"]), quick())
    await world.admit()
    await world.process().run()
    response = world.queue.writes[1]
    assert response.kinds == ("step.response", "tool.completed", "tool.completed", "tool.started")
    assert list(response.calls.values()) == ["failed", "failed", "started"]
    assert [r["status"] for r in world.data("memory.tool-result")] == ["error", "error", "ok"]
    assert [c["status"] for c in world.data("tool.completed")] == ["error", "error", "ok"]
    assert "no tool named 'nope'" in world.data("memory.tool-result")[0]["text"]


@virtual_time
@pytest.mark.behaviour("TLS-14", "TLS-50")
async def test_calls_past_the_turns_limit_are_refused_also_in_a_later_step() -> None:
    world = TurnWorld(
        ScriptedModel([calls("quick", "quick"), calls("quick", "quick"), calls("quick"), "end"]),
        quick(),
        policy=Policy(max_tool_calls=3),
    )
    await world.admit()
    await world.process().run()
    found = world.data("memory.tool-result")
    assert [r["status"] for r in found] == ["ok", "ok", "ok", "refused", "refused"]
    assert found[-1]["text"] == LIMIT_TEXT
    assert world.data("turn.reply")[0]["outcome"] == "completed"


@virtual_time
@pytest.mark.behaviour("TRN-110")
async def test_a_turn_at_its_step_cap_ends_partial_with_its_last_step_whole() -> None:
    world = TurnWorld(
        ScriptedModel([calls("quick"), calls("quick", text="Half.")]), quick(), policy=Policy(max_steps=2)
    )
    turn = await world.admit()
    await world.process().run()
    assert world.data("turn.reply") == [
        {"v": 1, "outcome": "partial", "text": "Half.", "exhausted": "steps", "reason": "step-cap", "step": 1}
    ]
    assert world.queue.writes[-1].kinds == (
        "tool.completed",
        "memory.message",
        "memory.tool-result",
        "step.usage",
        "step.ended",
        "turn.reply",
        "turn.ended",
    )
    assert (await world.view(turn)).outcome == "partial"
    assert len(world.model.requests) == 2


@pytest.mark.parametrize("reason", ["length", "content_filter"])
@virtual_time
async def test_an_answer_that_the_provider_cut_is_partial_and_says_why(reason: str) -> None:
    world = TurnWorld(ScriptedModel([ScriptedReply(text="Half", finish_reason=reason)]))
    await world.admit()
    await world.process().run()
    (reply,) = world.data("turn.reply")
    assert (reply["outcome"], reply["reason"], reply["text"]) == ("partial", reason, "Half")


@virtual_time
@pytest.mark.behaviour("USE-02", "USE-22", "USE-27", "KIT-22")
async def test_the_turns_usage_is_the_sum_of_its_stored_steps() -> None:
    spent = [Usage(10, 1, 4, 2, 1), Usage(20, 2), Usage(30, 3)]
    world = TurnWorld(
        ScriptedModel(
            [
                calls("quick", usage=spent[0]),
                calls("quick", usage=spent[1]),
                ScriptedReply(text="x", usage=spent[2]),
            ]
        ),
        quick(),
    )
    turn = await world.admit()
    await world.process().run()
    stored = world.data("step.usage")
    assert [(u["step"], u["usage"]["input_tokens"]) for u in stored] == [(0, 10), (1, 20), (2, 30)]
    usage = (await world.view(turn)).usage
    assert usage == {name: sum(u["usage"][name] for u in stored) for name in stored[0]["usage"]}
    assert (usage["input_tokens"], usage["cache_read_tokens"]) == (60, 4)


@virtual_time
@pytest.mark.behaviour("API-06", "USE-35")
async def test_a_stream_that_broke_after_text_starts_over_and_followers_are_told() -> None:
    broken = ScriptedReply(text="one two three", fail_with=ModelStreamBroken("cut"), fail_after=2)
    world = TurnWorld(ScriptedModel([broken, "whole answer"]))
    await world.admit()
    process = world.process()
    await process.run()
    shown = [t for t in process.feed.told if t[0] in ("begin", "push")]
    assert shown == [
        ("begin", 0),
        ("push", 0, "one "),
        ("push", 0, "two "),
        ("begin", 0),
        ("push", 0, "whole "),
        ("push", 0, "answer"),
    ]
    assert world.data("turn.reply")[0]["text"] == "whole answer"
    assert len(world.data("request.prepared")) == 1
    assert world.model.requests[0] == world.model.requests[1]

"""Bodies of a host: what ``use`` is given, what it may do, and how what it returns or raises ends the turn."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

from shared.agents import Policy, RunResult, Turn, TurnOutcome, tool
from shared.domain.errors import (
    Conflict,
    InvalidInput,
    ModelRefused,
    RunOpen,
    SessionBusy,
    TurnClosed,
    TurnTimeout,
)
from shared.models.scripted import ScriptedModel, ScriptedReply
from shared.models.types import AssistantMessage, SystemMessage, ToolMessage, Usage, UserMessage
from tests.support.scripted_tools import calls, quick
from tests.support.turn_world import TurnWorld
from tests.support.virtual_time import virtual_time

PAGE: Final = Path(__file__).resolve().parents[4] / "docs" / "agents.md"
Body = Callable[[Turn], Awaitable[TurnOutcome]]


async def end_of(world: TurnWorld) -> tuple[Any, ...]:
    """Run the one turn; return what its closing record says."""
    turn = await world.admit()
    await world.process().run()
    (ended,) = world.data("turn.ended")
    (reply,) = world.data("turn.reply")
    view = await world.view(turn)
    assert (view.status, view.outcome, view.code) == ("ended", ended["reason"], ended.get("code"))
    return reply["outcome"], ended["reason"], ended.get("code"), ended.get("failure")


# --- replies -----------------------------------------------------------------------------------------------------


@virtual_time
@pytest.mark.behaviour("TRN-13", "TRN-14", "TRN-19", "TRN-21", "TRN-05")
async def test_a_body_may_answer_without_a_step_loop_and_the_turn_is_recorded_all_the_same() -> None:
    async def use(turn: Turn) -> TurnOutcome:
        return turn.reply(f"you said {turn.user_message.text}")

    world = TurnWorld(ScriptedModel([]), use=use)
    turn = await world.admit("hi")
    assert world.kinds() == []
    await world.process().run()
    assert world.kinds() == ["turn.started", "turn.reply", "turn.ended"]
    assert world.data("turn.started")[0]["user_message"] == {"text": "hi"}
    assert world.data("turn.reply") == [{"v": 1, "outcome": "completed", "text": "you said hi"}]
    assert (await world.view(turn)).outcome == "completed"
    assert [w.what for w in world.queue.writes] == ["open", "end"]


@virtual_time
@pytest.mark.behaviour("TRN-13")
async def test_the_next_turns_model_reads_a_reply_that_no_model_wrote_and_one_that_it_wrote_only_once() -> (
    None
):
    async def use(turn: Turn) -> TurnOutcome:
        if turn.admitted.number == 1:
            return turn.reply("from the host")
        return TurnOutcome("completed", (await turn.run()).text)

    world = TurnWorld(ScriptedModel(["from the model", "again"]), use=use)
    for _ in range(3):
        await world.admit()
        await world.process().run()
    assert [m.text for m in world.model.requests[-1].messages if isinstance(m, AssistantMessage)] == [
        "from the host",
        "from the model",
    ]


@pytest.mark.parametrize("outcome", ["completed", "partial", "failed"])
@virtual_time
@pytest.mark.behaviour("TRN-14", "TRN-48", "TRN-46")
async def test_a_turn_ends_as_its_body_returns_it_without_a_code(outcome: Any) -> None:
    async def use(turn: Turn) -> TurnOutcome:
        return TurnOutcome(outcome)

    assert await end_of(TurnWorld(ScriptedModel([]), use=use)) == (outcome, outcome, None, None)


@virtual_time
@pytest.mark.behaviour("TRN-08", "TRN-40", "TRN-41", "TRN-36")
async def test_a_body_sees_the_turn_as_it_was_admitted() -> None:
    seen: list[Turn] = []

    async def use(turn: Turn) -> TurnOutcome:
        seen.append(turn)
        return turn.reply("ok")

    world = TurnWorld(ScriptedModel([]), use=use)
    given: list[dict[str, Any]] = [{}, {"key": "k", "command": {"do": 1}, "meta": {"tenant": "t"}}]
    for options in given:
        turn_id = await world.admit(**options)
        await world.process().run()
    plain, full = (turn.admitted for turn in seen)
    assert (plain.number, plain.key, plain.command, plain.meta, plain.claimed) == (1, None, None, {}, ())
    assert (full.number, full.key, full.command, full.meta) == (2, "k", {"do": 1}, {"tenant": "t"})
    assert (full.turn_id, full.origin, full.message) == (turn_id, "user", {"text": "hello"})


@virtual_time
@pytest.mark.behaviour("TRN-09")
async def test_a_body_reads_the_conversation_and_cannot_change_it() -> None:
    seen: list[Any] = []

    async def use(turn: Turn) -> TurnOutcome:
        seen.append(turn.memory)
        await turn.run()
        seen.append(turn.memory)
        return TurnOutcome("completed")

    world = TurnWorld(ScriptedModel(["hi"]), use=use)
    await world.admit("hello")
    await world.process().run()
    assert seen == [(UserMessage("hello"),), (UserMessage("hello"), AssistantMessage("hi"))]


# --- runs --------------------------------------------------------------------------------------------------------


@virtual_time
@pytest.mark.behaviour("TRN-79", "TRN-80", "TRN-81", "TRN-88", "KIT-14")
async def test_two_runs_of_a_turn_have_ordinals_of_their_own_and_share_no_id() -> None:
    results: list[RunResult] = []

    async def use(turn: Turn) -> TurnOutcome:
        results.append(await turn.run())
        results.append(await turn.run())
        assert turn.usage["input_tokens"] == 30
        return TurnOutcome("completed", results[-1].text)

    call, answer = calls("quick", usage=Usage(10, 1)), ScriptedReply("done", usage=Usage(5, 1))
    world = TurnWorld(ScriptedModel([call, answer, call, answer]), quick(), use=use)
    turn = await world.admit()
    await world.process().run()
    assert [(r.run, r.step, r.text, r.outcome, r.usage["input_tokens"]) for r in results] == [
        (0, 1, "done", "completed", 15),
        (1, 1, "done", "completed", 15),
    ]
    for kind in ("step.started", "request.prepared", "memory.message", "step.usage", "step.ended"):
        assert [(d["run"], d["step"]) for d in world.data(kind)] == [(0, 0), (0, 1), (1, 0), (1, 1)], kind
    ledger = await world.queue.calls(world.session, turn)
    assert sorted(c.invocation_id for c in ledger) == ["1.0.0:quick:0", "1.1.0:quick:0"]
    assert len({c.token for c in ledger}) == 2
    entries = [d["entry"] for r in world.records() if "entry" in (d := r.data)]
    assert len(set(entries)) == len(entries) == 7
    assert world.data("turn.reply") == [{"v": 1, "outcome": "completed", "text": "done", "run": 1, "step": 1}]
    assert (await world.view(turn)).usage["input_tokens"] == 30


@virtual_time
@pytest.mark.behaviour("TRN-79", "TRN-12", "TRN-129")
async def test_a_later_run_reads_the_earlier_one_and_what_the_body_told_it() -> None:
    async def use(turn: Turn) -> TurnOutcome:
        await turn.context("before")
        await turn.run()
        await turn.context("go on")
        return TurnOutcome("completed", (await turn.run()).text)

    world = TurnWorld(ScriptedModel([calls("quick"), "first", "second"]), quick(), use=use)
    await world.admit()
    await world.process().run()
    assert world.model.requests[-1].messages == (
        SystemMessage("Be brief."),
        UserMessage("hello"),
        UserMessage("before"),
        *world.model.requests[1].messages[3:5],
        AssistantMessage("first"),
        UserMessage("go on"),
    )
    assert isinstance(world.model.requests[1].messages[4], ToolMessage)


@virtual_time
@pytest.mark.behaviour("TRN-110")
async def test_a_run_under_a_policy_of_its_own_stops_at_its_step_cap_and_the_next_counts_anew() -> None:
    results: list[RunResult] = []

    async def use(turn: Turn) -> TurnOutcome:
        results.append(await turn.run(Policy(max_steps=1)))
        results.append(await turn.run(Policy(max_steps=2)))
        return TurnOutcome("completed", "over")

    world = TurnWorld(ScriptedModel([calls("quick"), calls("quick"), "done"]), quick(), use=use)
    assert await end_of(world) == ("completed", "completed", None, None)
    assert [(r.outcome, r.reason) for r in results] == [("partial", "step-cap"), ("completed", "completed")]


@virtual_time
@pytest.mark.behaviour("TRN-58")
async def test_a_second_run_beside_the_first_is_refused() -> None:
    async def use(turn: Turn) -> TurnOutcome:
        async with asyncio.TaskGroup() as group:
            group.create_task(turn.run())
            await asyncio.sleep(1)
            for refused in (turn.run(), turn.context("no")):
                with pytest.raises(RunOpen):
                    await refused
            group.create_task(turn.run())
        raise AssertionError("unreachable")

    model = ScriptedModel(["never"])
    model.hold()
    reply, reason, code, _ = await end_of(TurnWorld(model, use=use))
    assert (reply, reason, code) == ("failed", "failed", "turn.run-open")


@virtual_time
@pytest.mark.behaviour("TRN-24")
async def test_a_body_may_outlive_a_run_that_failed_and_the_failure_is_stored_with_what_it_cost() -> None:
    caught: list[Exception] = []

    async def use(turn: Turn) -> TurnOutcome:
        for policy in (None, Policy(max_duration_s=5)):
            try:
                await turn.run(policy)
            except (ModelRefused, TurnTimeout) as error:
                caught.append(error)
        return TurnOutcome("partial", "sorry")

    async def slow() -> str:
        await asyncio.sleep(60)
        return "late"

    model = ScriptedModel([ModelRefused("no"), calls("slow", usage=Usage(7, 1))])
    world = TurnWorld(model, tool(name="slow", description="Wait.")(slow), use=use)
    turn = await world.admit()
    await world.process().run()
    assert [(type(e), str(e)) for e in caught] == [
        (ModelRefused, "no"),
        (TurnTimeout, "the run took longer than 5 s"),
    ]
    assert [(d["run"], d["outcome"], d["reason"]) for d in world.data("run.ended")] == [
        (0, "failed", "model.refused"),
        (1, "failed", "turn.timeout"),
    ]
    assert [(d["run"], d["status"]) for d in world.data("step.ended")] == [(0, "failed"), (1, "failed")]
    view = await world.view(turn)
    assert (view.outcome, view.usage["input_tokens"]) == ("partial", 7)
    assert [c.state for c in await world.queue.calls(world.session, turn)] == ["unknown"]


@virtual_time
@pytest.mark.behaviour("TRN-24")
async def test_a_run_that_the_body_cut_short_itself_is_stored_as_failed_before_the_next_begins() -> None:
    async def use(turn: Turn) -> TurnOutcome:
        with suppress(TimeoutError):
            async with asyncio.timeout(5):
                await turn.run()
        world.model.release()
        return TurnOutcome("completed", (await turn.run()).text)

    world = TurnWorld(ScriptedModel(["never", "fine"]), use=use)
    world.model.hold()
    assert await end_of(world) == ("completed", "completed", None, None)
    assert [(d["run"], d["outcome"], d["reason"]) for d in world.data("run.ended")] == [
        (0, "failed", "turn.run-cut"),
        (1, "completed", "completed"),
    ]


# --- failures ----------------------------------------------------------------------------------------------------


def raising(error: BaseException) -> Body:
    async def use(turn: Turn) -> TurnOutcome:
        raise error

    return use


async def not_an_outcome(turn: Turn) -> Any:
    return "done"


async def its_run_meets_a_defect(turn: Turn) -> TurnOutcome:
    await turn.run()
    raise AssertionError("unreachable")


@pytest.mark.parametrize(
    ("use", "end"),
    [
        (raising(ValueError("no")), ("failed", "turn.failed", "ValueError: no")),
        (raising(ModelRefused("no")), ("failed", "model.refused", "no")),
        (
            raising(ExceptionGroup("", [KeyError("k"), ValueError("no")])),
            ("failed", "turn.failed", "KeyError: 'k'"),
        ),
        (
            raising(BaseExceptionGroup("", [asyncio.CancelledError(), ValueError("no")])),
            ("failed", "turn.failed", "ValueError: no"),
        ),
        (raising(asyncio.CancelledError()), ("interrupted", "turn.interrupted", None)),
        (
            not_an_outcome,
            ("failed", "turn.failed", "TypeError: a turn's body must return a TurnOutcome, not str"),
        ),
        (its_run_meets_a_defect, ("failed", "turn.defect", "RuntimeError: ours")),
        # Errors of sessions of the host's own: nothing about this turn.
        (
            raising(TurnClosed("another", reason="cancelled")),
            ("failed", "turn.closed", "TurnClosed: another"),
        ),
        (raising(SessionBusy("another")), ("failed", "session.busy", "SessionBusy: another")),
    ],
)
@virtual_time
@pytest.mark.behaviour("TRN-22", "TRN-46", "TRN-49", "TRN-50", "TRN-52", "TRN-54", "TRN-57", "TRN-58")
async def test_what_a_body_raises_ends_its_turn_once_with_the_code_of_whoever_raised_it(
    use: Body, end: tuple[str, str, str | None]
) -> None:
    world = TurnWorld(ScriptedModel(lambda _: RuntimeError("ours")), use=use)
    assert await end_of(world) == ("failed", *end)


@virtual_time
@pytest.mark.behaviour("TRN-60", "TRN-27")
async def test_a_body_that_hides_the_loss_of_its_turn_stores_nothing_more() -> None:
    begun = asyncio.Event()

    async def use(turn: Turn) -> TurnOutcome:
        begun.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return turn.reply("too late")

    world = TurnWorld(ScriptedModel([]), use=use)
    turn = await world.admit()
    process = world.process()
    _, task = await process.start()
    await begun.wait()
    await world.queue.cancel(turn, (await world.view(turn)).owner)
    watching = asyncio.create_task(process.holdings.watch_for_ever())
    await asyncio.wait({task})
    watching.cancel()
    assert world.kinds() == ["turn.started", "turn.ended"]
    assert process.runner.counts.stale_writes_refused == 1


# --- tasks -------------------------------------------------------------------------------------------------------


@virtual_time
@pytest.mark.behaviour("TRN-20", "TRN-139")
async def test_tasks_and_what_they_fork_are_joined_before_the_reply_is_recorded() -> None:
    log: list[str] = []
    world: TurnWorld

    async def inner() -> None:
        await asyncio.sleep(1)
        log.append(f"inner, {world.kinds()[-1]}")

    async def use(turn: Turn) -> TurnOutcome:
        async def outer() -> str:
            await asyncio.sleep(1)
            turn.tasks.fork("inner", inner())
            return "out"

        turn.tasks.fork("outer", outer())
        with pytest.raises(Conflict):
            turn.tasks.fork("outer", outer())
        with pytest.raises(InvalidInput):
            turn.tasks.fork("", outer())
        return turn.reply("ok")

    world = TurnWorld(ScriptedModel([]), use=use)
    assert await end_of(world) == ("completed", "completed", None, None)
    assert log == ["inner, turn.started"]


@virtual_time
@pytest.mark.behaviour("TRN-20", "TRN-22")
async def test_a_task_that_fails_after_the_body_returned_fails_the_turn_and_its_reply() -> None:
    async def late() -> None:
        await asyncio.sleep(1)
        raise ValueError("late")

    async def use(turn: Turn) -> TurnOutcome:
        turn.tasks.fork("late", late())
        return turn.reply("ok")

    world = TurnWorld(ScriptedModel([]), use=use)
    assert await end_of(world) == ("failed", "failed", "turn.failed", "ValueError: late")


@virtual_time
@pytest.mark.behaviour("TRN-23", "TRN-07")
async def test_a_failed_turn_keeps_its_cause_and_cancels_the_tasks_that_still_run() -> None:
    ended: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    async def use(turn: Turn) -> TurnOutcome:
        turn.tasks.fork("endless", endless())
        await asyncio.sleep(0)
        raise ValueError("cause")

    world = TurnWorld(ScriptedModel([]), use=use)
    assert await end_of(world) == ("failed", "failed", "turn.failed", "ValueError: cause")
    assert ended == ["cancelled"]


@virtual_time
@pytest.mark.behaviour("TRN-12")
async def test_a_hosts_write_runs_after_what_was_written_before_and_gives_its_result() -> None:
    world: TurnWorld

    async def store() -> str:
        return world.kinds()[-1]

    async def use(turn: Turn) -> TurnOutcome:
        await turn.context("noted")
        last = await turn.write(store)
        return turn.reply(f"{last} at {await turn.flush()}")

    world = TurnWorld(ScriptedModel([]), use=use)
    await end_of(world)
    assert world.data("turn.reply")[0]["text"] == "memory.section at 2"


# --- the page ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "reply", "asked"), [("ping", "pong", 0), ("What is one and one?", "It is two.", 2)]
)
@virtual_time
async def test_the_example_of_the_page_about_bodies_runs(message: str, reply: str, asked: int) -> None:
    (code,) = re.findall(
        r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    module = ModuleType("my_module")
    exec(compile(code, PAGE.name, "exec"), module.__dict__)
    (agent,) = module.__dict__["app"].agents
    world = TurnWorld(ScriptedModel(["It is too.", "It is two."]), use=agent.use)
    await world.admit(message)
    await world.process().run()
    assert world.data("turn.reply")[0]["text"] == reply
    assert len(world.model.requests) == asked

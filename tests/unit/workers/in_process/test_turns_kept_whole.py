"""Turns through ``agent.run`` over persistent sessions: kept whole, in order, or not at all."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from shared.agents import Agent, Policy, ToolContext, Turn, TurnOutcome, Use, tool
from shared.conversations import ConversationMessage, ToolCallPart, ToolResultPart
from shared.conversations.persistent import newest_exchanges
from shared.domain.errors import (
    ConfigError,
    HistoryConflict,
    HistoryFenced,
    HistoryFull,
    HistoryMissing,
    HistoryStorage,
    InMemoryScopeError,
    ModelRefused,
    SessionHistoryError,
    StoreDefect,
    StoreUnavailable,
    TurnTimeout,
)
from shared.domain.ids import RunId, SessionId, TurnId
from shared.models.types import AssistantMessage, SystemMessage, ToolCall, ToolMessage, UserMessage
from shared.sessions.inproc import InprocStore
from shared.sessions.vocabulary_whole import WHOLE_TURN_KINDS
from tests.support.virtual_time import virtual_time
from tests.support.whole_turn_world import Program
from workers.in_process import TurnIds

AGENT = Agent("a", "Be brief.")
S = SessionId("s")


@tool()
async def look(place: str) -> str:
    """Look somewhere."""
    return f"{place}: empty"


LOOKING = Agent("looks", "Look around.", tools=[look])
CALL = ToolCall("c1", "look", '{"place": "box"}')


def user(text: str) -> ConversationMessage:
    return ConversationMessage.user(text)


def said(text: str) -> ConversationMessage:
    return ConversationMessage.assistant(text)


@pytest.mark.behaviour("THR-46", "THR-47", "THR-02")
async def test_one_agent_serves_many_sessions_and_each_goes_on_with_its_own_turns() -> None:
    program = Program(*[lambda request: f"{len(request.messages)}"] * 3)
    async with program.opened() as sessions:
        first = await AGENT.run("one")
        other = await AGENT.run("other")
        again = await AGENT.run("two", session_id=first.session_id)
        assert first.session_id != other.session_id
        assert (first.reply, other.reply, again.reply) == ("2", "2", "4")
        assert again.session_id == first.session_id
        assert first.session_id is not None
        loaded = await sessions.history.load(first.session_id)
    assert list(loaded.prompt) == [user("one"), said("2"), user("two"), said("4")]


@pytest.mark.behaviour("THR-50", "THR-53", "THR-56", "THR-95", "THR-97")
async def test_instructions_calls_results_and_declarations_are_kept_with_the_turn() -> None:
    program = Program(CALL, "It is empty.", "Still empty.")
    async with program.opened() as sessions:
        result = await LOOKING.run("look", session_id=S)
        kept = (await sessions.history.load(S)).last_turn
        await AGENT.run("again?", session_id=S)
    assert kept is not None
    assert kept.instructions == "Look around."
    assert kept.source == (
        user("look"),
        ConversationMessage.assistant(
            "", [ToolCallPart(call_id="c1", name="look", arguments='{"place": "box"}')]
        ),
        ConversationMessage.tool(ToolResultPart(call_id="c1", name="look", text="box: empty")),
        said("It is empty."),
    )
    assert [declared["name"] for declared in kept.tools] == ["look"]
    assert kept.tools[0]["parameters"] == look.parameters
    assert (kept.output, kept.usage) == ("It is empty.", result.usage)
    assert program.model.requests[2].messages == (
        SystemMessage("Be brief."),
        UserMessage("look"),
        AssistantMessage("", (CALL,)),
        ToolMessage("c1", "look", "box: empty"),
        AssistantMessage("It is empty."),
        UserMessage("again?"),
    )


@pytest.mark.behaviour("THR-96", "THR-97")
async def test_a_turn_of_many_steps_is_three_records_without_deltas_headers_or_steps() -> None:
    program = Program(CALL, CALL, CALL, "Done.")
    async with program.opened():
        await LOOKING.run("look", session_id=S)
    assert program.kinds == list(WHOLE_TURN_KINDS)
    assert program.store.sessions[S].revision == 1


@pytest.mark.behaviour("THR-53")
async def test_a_bodys_own_reply_and_context_are_messages_too() -> None:
    async def use(turn: Turn) -> TurnOutcome:
        await turn.context("It rains.")
        await turn.run()
        return turn.reply("Take a coat.")

    program = Program("Hm.")
    async with program.opened() as sessions:
        await Agent("a", "Be brief.", use=use).run("out?", session_id=S)
        prompt = (await sessions.history.load(S)).prompt
    assert list(prompt) == [user("out?"), user("It rains."), said("Hm."), said("Take a coat.")]


# --- the order at the end ------------------------------------------------------------------------------------------


@pytest.mark.behaviour("THR-51", "THR-T07")
async def test_what_the_turn_owns_is_closed_the_result_validated_the_turn_kept_and_only_then_published() -> (
    None
):
    program = Program("hi")
    async with program.opened():
        await AGENT.run("hello")
    assert program.steps == ["turn.started", "close", "validate", "commit", "turn.ended"]


@pytest.mark.behaviour("THR-51", "THR-58", "THR-T07")
@pytest.mark.parametrize("what", ["close", "validate"])
async def test_a_failing_close_or_validation_keeps_nothing(what: str) -> None:
    program, failure = Program("hi"), RuntimeError("no")
    program.close_fails, program.refuses = (failure, None) if what == "close" else (None, failure)
    async with program.opened() as sessions:
        with pytest.raises(RuntimeError) as raised:
            await AGENT.run("hello", session_id=S)
        assert raised.value is failure
        with pytest.raises(HistoryMissing):
            await sessions.history.load(S)
    assert program.steps == ["turn.started", "close", "validate"][: 2 if what == "close" else 3]
    assert program.kinds == []


@pytest.mark.behaviour("THR-52")
async def test_services_around_the_program_stay_open_over_its_turns() -> None:
    closed: list[str] = []

    @asynccontextmanager
    async def service() -> AsyncIterator[None]:
        yield
        closed.append("service")

    program = Program("a", "b")
    async with service(), program.opened():
        await AGENT.run("one")
        await AGENT.run("two")
        assert closed == []
        assert program.steps.count("close") == 2
    assert closed == ["service"]


async def test_a_publisher_that_fails_undoes_nothing_of_a_kept_turn(caplog: pytest.LogCaptureFixture) -> None:
    async def publish(name: str, payload: object) -> None:
        if name == "turn.ended":
            raise RuntimeError("deaf")

    program = Program("hi")
    async with program.opened(publish=publish):
        assert (await AGENT.run("hello")).reply == "hi"
    assert program.kinds == list(WHOLE_TURN_KINDS)
    assert "could not be published" in caplog.text


# --- nothing of a turn that did not succeed --------------------------------------------------------------------------


async def _fails(turn: Turn) -> TurnOutcome:
    await turn.run()
    raise KeyError("host")


async def _is_told_to_fail(turn: Turn) -> TurnOutcome:
    await turn.run()
    return TurnOutcome("failed", "sorry")


async def _returns_rubbish(turn: Turn) -> TurnOutcome:
    await turn.run()
    return "done"  # type: ignore[return-value]  # a defect of the host


@pytest.mark.behaviour("THR-58", "THR-60")
@pytest.mark.parametrize(
    ("use", "raised"),
    [(_fails, KeyError), (_returns_rubbish, TypeError), (None, ModelRefused)],
    ids=["body", "defect", "model"],
)
async def test_a_failed_turn_keeps_nothing_and_is_not_run_again(
    use: Use | None, raised: type[Exception]
) -> None:
    program = Program("one", "two" if use is not None else ModelRefused("no"))
    failing = Agent("f", "Fail.", use=use)
    async with program.opened() as sessions:
        await AGENT.run("first", session_id=S)
        with pytest.raises(raised):
            await failing.run("second", session_id=S)
        assert len(program.model.requests) == 2
        assert list((await sessions.history.load(S)).prompt) == [user("first"), said("one")]
    assert program.steps.count("turn.ended") == 1


@pytest.mark.behaviour("THR-58")
async def test_a_turn_that_says_it_failed_is_returned_and_not_kept() -> None:
    program = Program("hm")
    async with program.opened():
        result = await Agent("f", "Fail.", use=_is_told_to_fail).run("hi", session_id=S)
    assert (result.outcome, result.reply, result.session_id) == ("failed", "sorry", S)
    assert (program.kinds, program.store.sessions) == ([], {})


@virtual_time
@pytest.mark.behaviour("THR-58")
async def test_a_turn_that_runs_out_of_time_keeps_nothing() -> None:
    async def sleeps(turn: Turn) -> TurnOutcome:
        await turn.run()
        await asyncio.sleep(60)
        raise AssertionError("unreachable")

    program = Program("hm")
    async with program.opened():
        with pytest.raises(TurnTimeout):
            await Agent("slow", "Wait.", use=sleeps, policy=Policy(max_duration_s=5)).run("hi")
    assert (program.kinds, program.steps) == ([], ["turn.started", "close"])


@pytest.mark.behaviour("THR-58", "THR-60")
async def test_an_interrupted_turn_keeps_nothing_and_is_never_resumed() -> None:
    program = Program("never", "fresh")
    program.model.hold()
    async with program.opened() as sessions:
        task = asyncio.create_task(AGENT.run("hi", session_id=S))
        await program.model.started()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert program.steps == ["turn.started", "close"]
        program.model.release()
        await AGENT.run("anew", session_id=S)
        assert list((await sessions.history.load(S)).prompt) == [user("anew"), said("fresh")]


# --- the append ----------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("THR-58", "THR-75", "THR-T06")
async def test_an_append_that_never_arrives_keeps_nothing_and_publishes_nothing() -> None:
    away = [StoreUnavailable(f"away {n}") for n in range(3)]
    program = Program("hi")
    program.log.fail_before = list(away)
    async with program.opened() as sessions:
        with pytest.raises(HistoryStorage) as raised:
            await AGENT.run("hello", session_id=S)
        assert raised.value.__cause__ is away[-1]
        assert raised.value.reason == "storage"
        with pytest.raises(HistoryMissing):
            await sessions.history.load(S)
    assert program.steps == ["turn.started", "close", "validate"]


@pytest.mark.behaviour("THR-59", "THR-60", "THR-75", "THR-T06")
async def test_an_append_whose_answers_are_lost_keeps_the_whole_turn_once() -> None:
    program = Program("hi", "more")
    program.log.fail_after = [StoreUnavailable("lost") for _ in range(3)]
    async with program.opened() as sessions:
        with pytest.raises(HistoryStorage) as raised:
            await AGENT.run("hello", session_id=S)
        assert isinstance(raised.value.__cause__, StoreUnavailable)
        assert "turn.ended" not in program.steps
        loaded = await sessions.history.load(S)
        assert loaded.last_turn is not None
        assert raised.value.fields["turn"] == str(loaded.last_turn.turn_id)
        await AGENT.run("and?", session_id=S)
    assert program.kinds == [*WHOLE_TURN_KINDS, *WHOLE_TURN_KINDS]


@pytest.mark.behaviour("THR-59", "THR-T06")
async def test_one_lost_answer_is_asked_for_again_and_doubles_nothing() -> None:
    program = Program("hi")
    program.log.fail_after = [StoreUnavailable("lost")]
    async with program.opened():
        assert (await AGENT.run("hello", session_id=S)).reply == "hi"
    assert program.kinds == list(WHOLE_TURN_KINDS)
    assert program.steps == ["turn.started", "close", "validate", "commit", "commit", "turn.ended"]


@pytest.mark.behaviour("THR-75")
async def test_a_store_that_breaks_its_contract_is_the_cause_of_a_storage_error() -> None:
    program, broken = Program("hi"), StoreDefect("odd")
    program.log.fail_before = [broken]
    async with program.opened():
        with pytest.raises(SessionHistoryError) as raised:
            await AGENT.run("hello")
    assert (raised.value.reason, raised.value.__cause__) == ("storage", broken)


@pytest.mark.behaviour("THR-70", "THR-71", "THR-72")
async def test_two_callers_at_once_both_run_to_the_end_and_the_stale_one_is_a_conflict() -> None:
    program = Program("one", "two")
    program.model.hold()
    async with program.opened() as sessions:
        both = [asyncio.create_task(AGENT.run(f"in {n}", session_id=S)) for n in range(2)]
        await program.model.started(2)
        program.model.release()
        answers = await asyncio.gather(*both, return_exceptions=True)
        [lost] = [a for a in answers if isinstance(a, BaseException)]
        [won] = [a for a in answers if not isinstance(a, BaseException)]
        assert isinstance(lost, HistoryConflict)
        assert (await sessions.history.load(S)).prompt[-1] == said(won.reply or "")
    assert program.steps.count("validate") == 2
    assert program.steps.count("turn.ended") == 1
    assert program.kinds == list(WHOLE_TURN_KINDS)


# --- bounds and contexts ---------------------------------------------------------------------------------------------


@pytest.mark.behaviour("THR-61", "THR-62", "THR-T09")
async def test_an_input_without_room_is_refused_before_the_model_and_a_rule_makes_room() -> None:
    half = "x" * 600_000
    program = Program(*("ok" for _ in range(4)))
    async with program.opened() as sessions:
        await AGENT.run(half, session_id=S)
        with pytest.raises(HistoryFull) as raised:
            await AGENT.run(half, session_id=S)
        assert (raised.value.fields["field"], len(program.model.requests)) == ("context", 1)
        with pytest.raises(HistoryFull) as raised:
            await AGENT.run("x" * 1_048_576, session_id=S)
        assert (raised.value.fields["field"], len(program.model.requests)) == ("input", 1)
        assert len((await sessions.history.load(S)).prompt) == 2
    async with program.opened(context_rule=newest_exchanges(400_000)) as sessions:
        await AGENT.run("short", session_id=S)
        assert list((await sessions.history.load(S)).prompt) == [user("short"), said("ok")]
        await AGENT.run("more", session_id=S)
        assert (await sessions.history.load(S)).prompt[0] == user("short")
        assert [turn.message for turn in await sessions.history.turns(S)][-1] == user(half)


@pytest.mark.behaviour("THR-62")
def test_the_rule_of_the_newest_exchanges_cuts_at_a_users_message_only() -> None:
    call = ConversationMessage.assistant("", [ToolCallPart(call_id="c", name="n", arguments="{}")])
    result = ConversationMessage.tool(ToolResultPart(call_id="c", name="n", text="r" * 100))
    messages = [user("one"), said("1"), user("two"), call, result, said("2")]
    assert list(newest_exchanges(1)(messages)) == messages[2:]
    assert list(newest_exchanges(1_048_576)(messages)) == messages
    assert list(newest_exchanges(1)([said("hm")])) == [said("hm")]
    for bad in (0, 1_048_577, True):
        with pytest.raises(ConfigError):
            newest_exchanges(bad)


# --- ids, and what is not there --------------------------------------------------------------------------------------


@pytest.mark.behaviour("THR-49", "THR-73")
async def test_ids_come_from_a_generator_that_may_be_replaced_and_repeats_none_over_restarts() -> None:
    store, seen = InprocStore(), list[str]()

    async def use(turn: Turn) -> TurnOutcome:
        seen.extend([str(turn.admitted.turn_id), str(turn.admitted.run_id)])
        return turn.reply("ok")

    agent = Agent("a", "Be brief.", use=use)
    for _ in range(3):  # a program that starts again and again over one store
        program = Program(store=store)
        async with program.opened():
            seen.append((await agent.run("hi")).session_id or "")
    assert len(set(seen)) == len(seen) == 9
    numbers = itertools.count(1)
    ids = TurnIds(
        session=lambda: SessionId(f"s{next(numbers)}"),
        turn=lambda: TurnId(UUID(int=next(numbers))),
        run=lambda: RunId(f"r{next(numbers)}"),
    )
    seen.clear()
    async with Program().opened(ids=ids):
        assert (await agent.run("hi")).session_id == "s1"
    assert seen == [str(UUID(int=2)), "r3"]


@pytest.mark.behaviour("THR-73")
async def test_calls_of_two_turns_have_two_identities() -> None:
    seen: list[tuple[str, str]] = []

    @tool(name="note")
    async def note(context: ToolContext) -> str:
        """Note."""
        seen.append((context.invocation_id, context.idempotency_token))
        return "ok"

    agent = Agent("n", "Note.", tools=[note])
    program = Program(ToolCall("c", "note", "{}"), "a", ToolCall("c", "note", "{}"), "b")
    async with program.opened():
        await agent.run("one", session_id=S)
        await agent.run("two", session_id=S)
    assert len({one for pair in seen for one in pair}) == 4


@pytest.mark.behaviour("THR-48")
async def test_outside_the_block_nothing_runs_and_what_was_opened_is_fenced() -> None:
    program = Program("hi", "ho")
    async with program.opened() as sessions:
        started = asyncio.create_task(AGENT.run("hi", session_id=S))
        await started
    with pytest.raises(ConfigError):
        await AGENT.run("hi")
    for use in (sessions.history.load(S), sessions.run(AGENT, "hi")):
        with pytest.raises(HistoryFenced):
            await use
    assert len(program.model.requests) == 1


@pytest.mark.behaviour("THR-37")
async def test_persistent_sessions_have_no_scopes() -> None:
    async with Program().opened() as sessions:
        with pytest.raises(InMemoryScopeError):
            sessions.scoped()
        assert sessions.conversation_store is None

"""Running one call: whatever a handler does becomes what the model reads."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any
from uuid import UUID

import pytest

from shared.agents import Agent, ToolContext, tool
from shared.agents.tools import Handler
from shared.models.types import ToolCall
from tests.support.virtual_time import virtual_time
from tests.support.waiting import await_until
from workers.executor import BoundedExecutor
from workers.tools.calls import PlannedCall, Settled, name_calls, plan_calls
from workers.tools.execution import RESULT_MAX_BYTES, run_call

CONTEXT = ToolContext("ses_1", "owner", UUID(int=1), "run", "1.0.0:act:0", "run:call:0")
BOUND_S = 10.0


def planned(handler: Handler, timeout_s: float = BOUND_S) -> PlannedCall:
    made = tool(name="act", description="Act.", timeout_s=timeout_s)(handler)
    stored = name_calls([ToolCall("c", "act", "{}")], number=1, run_id="run", run=0, step=0, before=0)
    (plan,) = plan_calls(stored, Agent(name="a", instructions="", tools=[made]), {}, calls_left=1)
    return plan


async def run(handler: Handler, timeout_s: float = BOUND_S) -> Settled:
    executor = BoundedExecutor(2)
    try:
        return await run_call(planned(handler, timeout_s), CONTEXT, executor)
    finally:
        executor.close()


def returning(value: Any) -> Handler:
    async def act() -> Any:
        return value

    return act


def raising(error: BaseException) -> Handler:
    async def act() -> Any:
        raise error

    return act


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        ("", ""),
        (None, ""),
        (3, "3"),
        (True, "true"),
        ({"a": [1, None, "é"]}, '{"a": [1, null, "é"]}'),
        ((1, 2), "[1, 2]"),
        ("\\u0000", "\\u0000"),
        ("x" * RESULT_MAX_BYTES, "x" * RESULT_MAX_BYTES),
    ],
)
async def test_a_string_is_the_result_as_it_is_and_other_values_are_json(value: Any, text: str) -> None:
    assert await run(returning(value)) == Settled("ok", text)


@pytest.mark.parametrize("value", [object(), {1, 2}, float("nan"), b"x", {(1, 2): 3}, [10**5_000]])
async def test_a_value_that_json_cannot_hold_is_an_error(value: Any) -> None:
    settled = await run(returning(value))
    assert settled.status == "error" and "JSON" in settled.text


async def test_a_value_that_holds_itself_is_an_error() -> None:
    value: list[Any] = []
    value.append(value)
    assert (await run(returning(value))).status == "error"


@pytest.mark.parametrize("value", ["x" * (RESULT_MAX_BYTES + 1), "é" * (RESULT_MAX_BYTES // 2 + 1)])
async def test_a_result_is_bounded_in_bytes(value: str) -> None:
    settled = await run(returning(value))
    assert settled.status == "error" and str(RESULT_MAX_BYTES) in settled.text


@pytest.mark.parametrize("value", ["a\x00b", "\ud800", {"k": "\udfff"}])
async def test_what_cannot_be_stored_is_replaced_and_said(value: Any) -> None:
    settled = await run(returning(value))
    assert (settled.status, settled.replaced_characters) == ("ok", True)
    assert "\ufffd" in settled.text


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("too small"), "ValueError: too small"),
        (ValueError(), "ValueError"),
        (TimeoutError("the shop is slow"), "TimeoutError: the shop is slow"),
        (TimeoutError(), "TimeoutError"),
        (asyncio.CancelledError(), "CancelledError"),
        (SystemExit(3), "SystemExit: 3"),
        (ExceptionGroup("two", [ValueError("x")]), "ExceptionGroup: two (1 sub-exception)"),
        (Unspeakable(), "Unspeakable"),
        (ValueError("a\x00\ud800"), "ValueError: a\ufffd\ufffd"),
        (ValueError("x" * 9_000), "ValueError: " + "x" * 1_988),
    ],
)
@pytest.mark.behaviour("TLS-54")
async def test_what_a_handler_raises_is_told_to_the_model(error: BaseException, text: str) -> None:
    settled = await run(raising(error))
    assert (settled.status, settled.text) == ("error", text)


async def test_what_a_blocking_handler_raises_is_told_to_the_model_too() -> None:
    def act() -> None:
        raise KeyError("k")

    assert await run(act) == Settled("error", "KeyError: 'k'")


@virtual_time
async def test_a_handler_past_its_time_is_cancelled_and_said_to_be_late() -> None:
    cancelled: list[bool] = []

    async def act() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)

    assert await run(act, timeout_s=30) == Settled("error", "The tool did not answer within 30 s.")
    assert asyncio.get_running_loop().time() == 30
    assert cancelled == [True]


@virtual_time
async def test_a_timeout_of_the_handlers_own_within_its_time_is_not_ours() -> None:
    async def act() -> None:
        async with asyncio.timeout(1):
            await asyncio.Event().wait()

    assert await run(act, timeout_s=30) == Settled("error", "TimeoutError")


@pytest.mark.behaviour("DST-31")
async def test_a_blocking_handler_that_does_not_return_is_said_to_be_late() -> None:
    let_go = threading.Event()
    settled = await run(lambda: let_go.wait(BOUND_S), timeout_s=0.01)
    let_go.set()
    assert settled == Settled("error", "The tool did not answer within 0.01 s.")


async def test_a_blocking_handler_runs_beside_the_loop_with_the_callers_context() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("mine")

    def act() -> list[str]:
        return [variable.get(), str(threading.current_thread() is threading.main_thread())]

    assert await run(act) == Settled("ok", '["mine", "False"]')


@pytest.mark.behaviour("TLS-54")
async def test_cancelling_the_call_cancels_the_handler_and_comes_out() -> None:
    begun = asyncio.Event()
    seen: list[str] = []

    async def act() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    task = asyncio.create_task(run(act))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]


@pytest.mark.behaviour("BEY-01")
async def test_the_handler_is_given_its_token_and_its_ids() -> None:
    async def act(context: ToolContext) -> list[str]:
        return [context.session_id, context.run_id, context.invocation_id, context.idempotency_token]

    assert (await run(act)).text == '["ses_1", "run", "1.0.0:act:0", "run:call:0"]'


async def test_a_cancelled_caller_of_a_blocking_handler_leaves_at_once() -> None:
    let_go, begun = threading.Event(), threading.Event()

    def act() -> None:
        begun.set()
        let_go.wait(BOUND_S)

    task = asyncio.create_task(run(act))
    await await_until(begun.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    let_go.set()

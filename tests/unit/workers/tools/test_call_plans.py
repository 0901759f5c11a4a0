"""What becomes of a stored call: every state of the ledger, and what never runs."""

from __future__ import annotations

from typing import get_args

import pytest

from shared.agents import Agent, tool
from shared.domain.bounds import check_text
from shared.models.types import ToolCall
from shared.sessions.vocabulary import StoredCall
from shared.turns.queue import CallEntry, CallState
from workers.tools.calls import LIMIT_TEXT, UNKNOWN_TEXT, PlannedCall, Settled, name_calls, plan_calls


@tool(repeatable=True)
def read(x: int = 0) -> str:
    """Read."""
    return str(x)


@tool
def write(x: int = 0) -> str:
    """Write."""
    return str(x)


AGENT = Agent(name="one", instructions="", tools=[read, write])
RUNS = "runs"


def named(*calls: tuple[str, str], before: int = 0) -> list[StoredCall]:
    asked = [ToolCall(f"c{n}", name, arguments) for n, (name, arguments) in enumerate(calls)]
    return name_calls(asked, number=3, run_id="run", run=0, step=2, before=before)


def line(
    call: StoredCall, state: CallState, result: str | None = None, digest: str | None = None
) -> CallEntry:
    return CallEntry(
        call.invocation_id, 2, 0, call.name, digest or call.argument_digest, call.token, state, result
    )


def plan(call: StoredCall, entry: CallEntry | None = None, calls_left: int = 9) -> PlannedCall:
    ledger = {} if entry is None else {call.invocation_id: entry}
    (planned,) = plan_calls([call], AGENT, ledger, calls_left=calls_left)
    assert (planned.settled is None) == (planned.keywords is not None)
    return planned


UNKNOWN = Settled("unknown", UNKNOWN_TEXT)


@pytest.mark.parametrize(
    ("name", "state", "becomes"),
    [
        ("write", None, RUNS),
        ("write", "planned", RUNS),
        ("write", "started", UNKNOWN),
        ("write", "done", Settled("ok", "result")),
        ("write", "failed", Settled("error", "result")),
        ("write", "unknown", UNKNOWN),
        ("read", None, RUNS),
        ("read", "planned", RUNS),
        ("read", "started", RUNS),
        ("read", "done", Settled("ok", "result")),
        ("read", "failed", Settled("error", "result")),
        ("read", "unknown", UNKNOWN),
    ],
)
@pytest.mark.behaviour("BEY-01")
def test_a_settled_call_is_reused_and_a_started_one_runs_again_only_when_it_may(
    name: str, state: CallState | None, becomes: Settled | str
) -> None:
    (call,) = named((name, "{}"))
    planned = plan(call, None if state is None else line(call, state, "result"))
    assert (RUNS if planned.settled is None else planned.settled) == becomes


@pytest.mark.parametrize("state", get_args(CallState))
@pytest.mark.parametrize("name", ["read", "write"])
@pytest.mark.behaviour("BEY-01")
def test_a_ledger_line_of_other_arguments_is_never_trusted(name: str, state: CallState) -> None:
    (call,) = named((name, "{}"))
    assert plan(call, line(call, state, "result", digest="other")).settled == UNKNOWN


@pytest.mark.parametrize("state", get_args(CallState))
def test_a_result_in_the_ledger_counts_whatever_the_tools_and_limits_are_now(state: CallState) -> None:
    (call,) = named(("gone", "{"))
    settled = plan(call, line(call, state, "result"), calls_left=0).settled
    assert settled is not None
    expected = {"done": "ok", "failed": "error", "started": "unknown", "unknown": "unknown"}
    assert settled.status == expected.get(state, "error")


def test_an_unknown_tool_is_an_error_that_names_it() -> None:
    (call,) = named(("nope", "{}"))
    settled = plan(call).settled
    assert settled is not None and settled.status == "error" and "'nope'" in settled.text


@pytest.mark.parametrize("arguments", ["{", '{"x": "y"}', '{"y": 1}', "[]"])
def test_unfit_arguments_are_an_error_and_nothing_runs(arguments: str) -> None:
    (call,) = named(("write", arguments))
    settled = plan(call).settled
    assert settled is not None and settled.status == "error" and "arguments" in settled.text


@pytest.mark.behaviour("TLS-50")
def test_calls_past_the_limit_are_refused_and_those_before_it_run() -> None:
    calls = named(*[("read", "{}")] * 4)
    planned = plan_calls(calls, AGENT, {}, calls_left=2)
    assert [p.settled for p in planned] == [None, None, *[Settled("refused", LIMIT_TEXT)] * 2]


def test_a_refusal_stays_a_refusal_for_the_next_attempt() -> None:
    (call,) = named(("read", "{}"))
    assert plan(call, line(call, "failed", LIMIT_TEXT)).settled == Settled("refused", LIMIT_TEXT)


@pytest.mark.parametrize("key", ["\\u0000", "k" * 100_000])
def test_what_a_model_wrote_into_its_arguments_comes_back_storable_and_short(key: str) -> None:
    (call,) = named(("write", f'{{"{key}": 1}}'))
    settled = plan(call).settled
    assert settled is not None and settled.status == "error"
    assert check_text(settled.text, field="text", max_bytes=10_000) == settled.text
    assert settled.replaced_characters == ("\ufffd" in settled.text)


@pytest.mark.behaviour("BEY-01")
def test_each_call_has_an_id_a_digest_of_name_and_arguments_and_a_token_unique_in_the_run() -> None:
    first, second, other = named(("read", "{}"), ("read", "{}"), ("write", "{}"), before=5)
    assert [c.invocation_id for c in (first, second, other)] == [
        "3.0.2:read:0",
        "3.0.2:read:1",
        "3.0.2:write:2",
    ]
    assert [c.token for c in (first, second, other)] == ["run:call:5", "run:call:6", "run:call:7"]
    assert first.argument_digest == second.argument_digest != other.argument_digest
    (spaced,) = named(("read", "{ }"))
    assert spaced.argument_digest != first.argument_digest


def test_a_ledger_line_says_what_the_call_was_planned_as() -> None:
    (call,) = named(("read", "{}"))
    entry = plan(call).entry(2, "done", "result")
    assert entry == line(call, "done", "result")

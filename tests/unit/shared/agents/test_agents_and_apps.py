"""Agents, policies and apps, checked when they are built; and loading what a host wrote."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from shared.agents import Agent, App, Policy, load_app, tool
from shared.domain.errors import BudgetInvalid, ConfigError


@tool
def act() -> None:
    """Act."""


def agent(**given: Any) -> Agent:
    return Agent(**{"name": "one", "instructions": "Be brief."} | given)


@pytest.mark.parametrize(
    "given",
    [
        {"max_steps": 0},
        {"max_steps": 1_001},
        {"max_steps": 1.5},
        {"max_steps": True},
        {"max_steps": "3"},
        {"max_tool_calls": -1},
        {"max_tool_calls": 2.0},
        {"max_duration_s": 0},
        {"max_duration_s": float("nan")},
        {"max_duration_s": 86_401},
        {"tool_concurrency": 0},
        {"tool_concurrency": 1.5},
        {"tool_concurrency": 65},
    ],
)
def test_a_policy_out_of_its_bounds_is_refused_by_name(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refusal:
        Policy(**given)
    assert refusal.value.fields["field"] == f"policy.{next(iter(given))}"


def test_the_bounds_of_a_policy_themselves_are_taken() -> None:
    Policy(max_steps=1, max_tool_calls=0, max_duration_s=0.1, tool_concurrency=1)
    Policy(max_steps=1_000, max_tool_calls=10_000, max_duration_s=86_400, tool_concurrency=64)
    default = Policy()
    assert (default.max_steps, default.max_tool_calls, default.max_duration_s) == (32, 64, 600)


@pytest.mark.parametrize("budget", [0, -1, 1.5, True, "64000", None])
@pytest.mark.behaviour("TRN-114")
def test_a_budget_that_is_no_whole_number_of_at_least_1_is_refused(budget: Any) -> None:
    with pytest.raises(BudgetInvalid) as refusal:
        agent(budget_tokens=budget)
    assert (refusal.value.code, refusal.value.fields["field"]) == ("config.budget", "agent.one.budget_tokens")


@pytest.mark.behaviour("TRN-113")
def test_an_agents_budget_is_64_000_tokens_when_none_is_given() -> None:
    assert (agent().budget_tokens, agent(budget_tokens=1).budget_tokens) == (64_000, 1)


def test_a_body_has_to_be_callable() -> None:
    with pytest.raises(ConfigError) as refusal:
        agent(use="body")
    assert refusal.value.fields["field"] == "agent.one.use"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"name": ""}, "agent.name"),
        ({"name": "Upper"}, "agent.name"),
        ({"name": "x" * 129}, "agent.name"),
        ({"instructions": "a\x00"}, "agent.one.instructions"),
        ({"instructions": "\ud800"}, "agent.one.instructions"),
        ({"instructions": "é" * 131_073}, "agent.one.instructions"),
        ({"revision": ""}, "agent.one.revision"),
        ({"revision": " 1"}, "agent.one.revision"),
        ({"on_worker_loss": "retry"}, "agent.one.on_worker_loss"),
        ({"tools": [act, act]}, "agent.one.tools"),
    ],
)
def test_an_agent_that_cannot_be_used_is_refused_by_name(given: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        agent(**given)
    assert refusal.value.fields["field"] == field


def test_an_agent_finds_its_tools_by_name_and_keeps_its_own_list() -> None:
    tools = [act]
    made = agent(tools=tools)
    tools.clear()
    assert made.tool("act") is act
    assert made.tool("other") is None


def test_an_app_gives_its_first_agent_by_default_and_any_by_name() -> None:
    one, two = agent(), agent(name="two", revision="7")
    app = App([one, two])
    assert (app.agent(), app.agent("two"), app.revisions) == (one, two, ("1", "7"))
    with pytest.raises(ConfigError, match="three") as refusal:
        app.agent("three")
    assert refusal.value.fields["field"] == "agent"


@pytest.mark.parametrize("agents", [[], [agent(), agent(instructions="Other.")]])
def test_an_app_without_agents_or_with_two_of_one_name_is_refused(agents: list[Agent]) -> None:
    with pytest.raises(ConfigError) as refusal:
        App(agents)
    assert refusal.value.fields["field"] == "app.agents"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A working directory of a host; what was imported from it is forgotten afterwards."""
    path = list(sys.path)
    with chdir(tmp_path):
        yield tmp_path
    sys.path[:] = path
    for name in [name for name in sys.modules if name.startswith("host_app_")]:
        del sys.modules[name]


def test_an_app_is_loaded_from_a_module_of_the_working_directory(folder: Path) -> None:
    text = "from shared.agents import Agent, App\nmine = App([Agent(name='host', instructions='x')])\n"
    (folder / "host_app_one.py").write_text(text, encoding="utf-8")
    assert load_app("host_app_one:mine").agent().name == "host"
    for missing in ("host_app_one:other", "host_app_one:Agent", "host_app_one:mine.agents"):
        with pytest.raises(ConfigError) as refusal:
            load_app(missing)
        assert refusal.value.fields["field"] == "TURNKEEPER_APP"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "module",
        "module:",
        ":app",
        "no_such_module_here:app",
        "shared.nowhere:app",
        ".x:app",
        "a..b:app",
        "a b:c",
    ],
)
def test_an_app_that_is_not_there_is_a_setting_that_is_wrong(name: str, folder: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_app(name)
    assert refusal.value.fields["field"] == "TURNKEEPER_APP"


def test_what_a_hosts_module_raises_passes_unchanged(folder: Path) -> None:
    (folder / "host_app_two.py").write_text("import no_such_dependency\n", encoding="utf-8")
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        load_app("host_app_two:app")
    (folder / "host_app_three.py").write_text("1 / 0\n", encoding="utf-8")
    with pytest.raises(ZeroDivisionError):
        load_app("host_app_three:app")

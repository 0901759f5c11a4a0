"""The README tells the truth where a machine can check it: code blocks, settings, words, links."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from shared.agents import App
from shared.settings import Settings, variable_of

ROOT: Final = Path(__file__).resolve().parents[2]
README: Final = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES: Final = (
    "README.md",
    "CONTRIBUTING.md",
    *(str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs").rglob("*.md"))),
)
BLOCKS: Final = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def variables() -> dict[str, str]:
    """Every environment variable of the settings and its default as the README writes it."""
    return {variable_of(name): as_written(field.default) for name, field in Settings.model_fields.items()}


def as_written(default: object) -> str:
    match default:
        case bool():
            return str(default).lower()
        case float():
            return f"{default:g}"
        case int() | str():
            return str(default)
        case _:
            return ""  # a secret has no default


def section(title: str) -> str:
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("code", BLOCKS)
def test_every_python_block_compiles(code: str) -> None:
    compile(code, "README.md", "exec")


def test_the_host_example_is_ten_lines_that_build_an_app_with_one_agent_and_one_tool() -> None:
    (code,) = [block for block in BLOCKS if "App(" in block]
    module = ModuleType("my_module")
    exec(compile(code, "README.md", "exec"), module.__dict__)
    app = module.__dict__["app"]
    assert isinstance(app, App)
    (agent,) = app.agents
    assert agent.name == "assistant"
    assert len(agent.tools) == 1
    assert len([line for line in code.splitlines() if line]) <= 10


def test_the_configuration_table_lists_every_setting_with_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (?:`([^`]*)`)? ?\|", section("Configuration"), re.MULTILINE)
    assert dict(rows) == variables()


def test_the_two_commands_come_before_anything_else_that_can_be_typed() -> None:
    first = README.split("```sh\n")[1].split("```")[0].splitlines()
    assert [line.split("#")[0].strip() for line in first] == ["./turnkeeper dev", "./turnkeeper test"]


@pytest.mark.parametrize("path", PAGES)
def test_every_link_of_a_page_leads_to_a_file(path: str) -> None:
    page = ROOT / path
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    dead = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert dead == []


def test_every_file_of_the_tour_exists() -> None:
    named = re.findall(
        r"`((?:producer|workers|memory_pipeline|shared|tests)/[\w/.]+)`",
        section("One message through the files"),
    )
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []

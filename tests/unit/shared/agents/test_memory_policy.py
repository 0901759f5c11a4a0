"""The memory policy of an app: its bounds, and what the default assistant has."""

from __future__ import annotations

from typing import Any

import pytest

from shared.agents import App, MemoryPolicy
from shared.assistant import app
from shared.domain.errors import ConfigError


@pytest.mark.parametrize(
    "given",
    [
        {"namespace": ""},
        {"namespace": "x" * 257},
        {"namespace": "\U0001f600" * 129},
        {"namespace": "\ud800"},
        {"version": 0},
        {"version": True},
        {"version": 1.0},
        {"version": 2**53},
        {"scope": ""},
        {"scope": " private"},
        {"processor": "x" * 257},
        {"processor_version": ""},
        {"recall_items": 0},
        {"recall_items": 129},
        {"recall_bytes": 4_194_305},
        {"recall_tokens": 1_048_577},
        {"recall_timeout_s": 0},
        {"recall_timeout_s": float("nan")},
        {"recall_timeout_s": 61},
        {"semantic": 1},
        {"extraction_instructions": " \n"},
        {"extraction_instructions": "x" * 65_537},
        {"extraction_instructions": "\x00"},
    ],
)
def test_a_memory_policy_out_of_its_bounds_is_refused_by_name(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refusal:
        MemoryPolicy(**given)
    assert refusal.value.fields["field"] == f"memory.{next(iter(given))}"


def test_the_bounds_of_a_memory_policy_themselves_are_taken() -> None:
    MemoryPolicy(namespace="\U0001f600" * 128, version=2**53 - 1, recall_items=128, recall_bytes=4_194_304)
    MemoryPolicy(recall_items=1, recall_bytes=1, recall_tokens=1, recall_timeout_s=60)


def test_the_default_assistant_remembers_and_an_app_by_itself_does_not() -> None:
    assert app.memory == MemoryPolicy()
    assert "user" in MemoryPolicy().extraction_instructions
    assert App(app.agents).memory is None

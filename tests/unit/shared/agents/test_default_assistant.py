"""The default app's two tools: harmless, whatever they are asked."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from shared.agents import load_app
from shared.assistant import app, calculate, current_time
from shared.settings import DEFAULT_APP


def test_the_default_app_is_found_by_its_name() -> None:
    assert load_app(DEFAULT_APP) is app
    assert [t.name for t in app.agent().tools] == ["current_time", "calculate"]
    assert all(t.repeatable for t in app.agent().tools)


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ("1 + 2 * 3", "7"),
        ("-(2 - 5) / 2", "1.5"),
        ("7 // 2 % 2", "1"),
        ("+4", "4"),
        ("0.1 + 0.2", "0.30000000000000004"),
        ("12345678901234567890 * 10", "123456789012345678900"),
        ("1e999 - 1e999", "nan"),
    ],
)
async def test_arithmetic_is_calculated(expression: str, answer: str) -> None:
    assert await calculate.handler(expression) == answer


@pytest.mark.parametrize(
    "expression",
    [
        "2 ** 9999999",
        "__import__('os')",
        "x",
        "'a' * 9",
        "[1]",
        "1 if 1 else 2",
        "1 << 99",
        "1,2",
        "1 +",
        "(" * 200,
        "1" * 201,
    ],
)
async def test_anything_but_arithmetic_is_refused(expression: str) -> None:
    with pytest.raises((ValueError, SyntaxError, MemoryError)):
        await calculate.handler(expression)


async def test_the_time_is_told_in_a_zone() -> None:
    told = datetime.fromisoformat(await current_time.handler("Asia/Tokyo"))
    assert told.utcoffset() == timedelta(hours=9)


@pytest.mark.parametrize(
    "zone", ["", "Nowhere/City", "../etc/passwd", "/etc/passwd", "Europe", "a" * 5_000, "x\x00"]
)
async def test_a_zone_that_is_none_is_said_and_the_time_told_in_utc(zone: str) -> None:
    answer = await current_time.handler(zone)
    assert answer.startswith("unknown zone")
    assert answer.endswith("+00:00")

"""Failpoints: armed by name, fired at one hit, free otherwise."""

from __future__ import annotations

import pytest

from shared.domain.errors import ConfigError
from shared.domain.failpoints import FailpointError, Failpoints


async def test_nothing_happens_at_points_that_are_not_armed() -> None:
    points = Failpoints.parse("")
    await points.hit("turn.claimed")
    await Failpoints.parse("turn.opened=raise").hit("turn.claimed")


async def test_a_point_fires_at_its_hit_and_at_no_other() -> None:
    points = Failpoints.parse(" turn.opened=raise@2 , turn.ended=raise")
    await points.hit("turn.opened")
    with pytest.raises(FailpointError, match=r"turn\.opened"):
        await points.hit("turn.opened")
    await points.hit("turn.opened")
    with pytest.raises(FailpointError, match=r"turn\.ended"):
        await points.hit("turn.ended")


async def test_a_point_may_fire_at_every_hit() -> None:
    points = Failpoints.parse("turn.ended=raise@every")
    for _ in range(3):
        with pytest.raises(FailpointError, match=r"turn\.ended"):
            await points.hit("turn.ended")


async def test_a_test_may_arm_a_point_with_its_own_action() -> None:
    hits: list[str] = []

    async def note() -> None:
        hits.append("here")

    await Failpoints({"turn.claimed": note}).hit("turn.claimed")
    assert hits == ["here"]


@pytest.mark.parametrize(
    "text",
    [
        "nowhere=kill",
        "turn.opened",
        "turn.opened=",
        "turn.opened=explode",
        "turn.opened=kill@0",
        "turn.opened=kill@-1",
        "turn.opened=kill@²",
        "turn.opened=kill@x",
        "turn.opened=kill@every2",
        "turn.opened=kill@1@2",
        "=kill",
    ],
)
def test_what_cannot_be_armed_is_refused_and_the_variable_named(text: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        Failpoints.parse(text)
    assert refusal.value.fields["field"] == "TURNKEEPER_FAILPOINTS"


def test_an_action_under_an_unknown_name_is_refused() -> None:
    async def note() -> None: ...

    with pytest.raises(ConfigError):
        Failpoints({"turn.nowhere": note})

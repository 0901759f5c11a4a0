"""What a follower of the torture takes for wrong, event by event."""

from __future__ import annotations

from random import Random
from typing import Any

import httpx2
import pytest

from producer.dev.talk import ServerEvent
from producer.dev.torture.load.follow import Follower

PLACE = {"run": 0, "step": 0}


async def followed(*events: ServerEvent) -> Follower:
    async with httpx2.AsyncClient() as http:
        follower = Follower(turn="t", urls=["http://nowhere.invalid"], http=http, rng=Random(1))
        for event in events:
            follower.note(event)
        return follower


def record(seq: int, kind: str = "turn.started", **data: Any) -> ServerEvent:
    return ServerEvent(kind, data, str(seq))


def reply(seq: int, text: str = "all done") -> ServerEvent:
    return record(seq, "turn.reply", text=text, step=0)


def delta(text: str, kind: str = "delta") -> ServerEvent:
    return ServerEvent(kind, {**PLACE, "text": text}, "1")


def end(outcome: str = "completed") -> ServerEvent:
    return ServerEvent("end", {"status": "ended", "outcome": outcome})


async def test_a_whole_turn_has_nothing_wrong_and_is_at_its_end() -> None:
    follower = await followed(
        record(1), delta("all "), delta("done"), reply(2), record(3, "turn.ended"), end()
    )
    assert (follower.errors, follower.ended, follower.cursor) == ([], True, "3")


@pytest.mark.parametrize("again", [1, 2])
async def test_a_record_twice_or_out_of_order_is_wrong(again: int) -> None:
    assert len((await followed(record(1), record(2), record(again))).errors) == 1


async def test_a_completed_turn_without_its_reply_is_wrong_and_a_cancelled_one_is_not() -> None:
    assert len((await followed(record(1), end())).errors) == 1
    assert (await followed(record(1), end("cancelled"))).errors == []


async def test_two_replies_are_wrong() -> None:
    assert len((await followed(reply(1), reply(2), end())).errors) == 1


async def test_streamed_text_that_is_not_how_the_reply_begins_is_wrong() -> None:
    assert len((await followed(delta("all gone"), reply(2))).errors) == 1


async def test_text_whose_end_was_lost_with_the_feed_is_not_wrong() -> None:
    assert (await followed(delta("all "), reply(2))).errors == []


async def test_a_reset_voids_and_a_snapshot_replaces_what_was_streamed() -> None:
    reset = ServerEvent("reset", {"reason": "gap"}, "1")
    assert (await followed(delta("wrong"), reset, delta("all"), reply(2))).errors == []
    assert (await followed(delta("wrong"), delta("all do", "snapshot"), reply(2))).errors == []

"""The pure rules of the turn queue."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from shared.leases.fence import Fence
from shared.turns.rules import (
    OWNERS_LOOKED_AT_MAX,
    Losses,
    count_loss,
    even_share,
    fence_holds,
    is_dead,
    is_lost,
    loss_reason,
    may_take_over,
    next_to_promote,
    rotate_owners,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)
TOKEN, OTHER = UUID(int=1), UUID(int=2)
SECOND = timedelta(seconds=1)
STARTED = NOW - timedelta(days=1)


@dataclass
class Turn:
    position: int = 1
    status: str = "running"
    outcome: str | None = None
    on_worker_loss: str = "continue"
    attempts: int = 0
    suspect: bool = False
    alive_losses: int = 0
    epoch: int = 3
    token: UUID | None = TOKEN
    expires_at: datetime | None = NOW


@pytest.mark.parametrize(
    ("turn", "holds"),
    [
        (Turn(), True),
        (Turn(expires_at=NOW + SECOND), True),
        (Turn(expires_at=NOW - timedelta(microseconds=1)), False),
        (Turn(epoch=4), False),
        (Turn(epoch=2), False),
        (Turn(token=OTHER), False),
        (Turn(token=None, expires_at=None, status="ready"), False),
        (Turn(status="ended"), False),
        (None, False),
    ],
)
def test_a_fence_holds_for_the_running_row_with_its_epoch_and_token_to_the_end_of_its_lease(
    turn: Turn | None, holds: bool
) -> None:
    assert fence_holds(turn, Fence(3, TOKEN), NOW) is holds


def test_a_turn_is_lost_once_its_lease_has_passed_and_not_at_its_end() -> None:
    assert not is_lost(Turn(), NOW)
    assert is_lost(Turn(), NOW + SECOND)
    assert not is_lost(Turn(status="ready", expires_at=None), NOW + SECOND)


@pytest.mark.parametrize(
    ("turn", "dead"),
    [
        (Turn(), False),
        (Turn(on_worker_loss="interrupt"), True),
        (Turn(attempts=2), False),  # no loss of it would count
        (Turn(suspect=True, attempts=1), False),
        (Turn(suspect=True, attempts=2), True),
        (Turn(alive_losses=9, attempts=2), False),
        (Turn(alive_losses=10, attempts=2), True),
        (Turn(expires_at=NOW - timedelta(minutes=59)), False),
        (Turn(expires_at=NOW - timedelta(minutes=61)), True),
    ],
)
def test_a_lost_turn_is_dead_by_policy_by_spent_attempts_or_by_age_and_else_may_be_taken_over(
    turn: Turn, dead: bool
) -> None:
    later = NOW + SECOND
    assert is_dead(turn, later, 3, STARTED) is dead
    assert may_take_over(turn, later, 3, STARTED) is not dead


@pytest.mark.behaviour("DST-20")
def test_an_outage_of_the_store_is_no_hour_without_a_try() -> None:
    lost = Turn(expires_at=NOW - timedelta(hours=5))
    for up_for, dead in ((timedelta(minutes=59), False), (timedelta(minutes=61), True)):
        assert is_dead(lost, NOW, 3, NOW - up_for) is dead
        assert may_take_over(lost, NOW, 3, NOW - up_for) is not dead


def test_a_held_turn_is_neither_dead_nor_to_be_taken_over() -> None:
    held = Turn(on_worker_loss="interrupt", suspect=True, attempts=9, expires_at=NOW)
    assert not is_dead(held, NOW, 3, STARTED)
    assert not may_take_over(held, NOW, 3, STARTED)


@pytest.mark.parametrize(
    ("turn", "gone", "losses"),
    [
        (Turn(), True, Losses(0, True, 0)),
        (Turn(suspect=True), True, Losses(1, True, 0)),
        (Turn(alive_losses=4), True, Losses(0, True, 0)),
        (Turn(), False, Losses(0, False, 1)),
        (Turn(alive_losses=9), False, Losses(0, False, 10)),
        (Turn(alive_losses=10), False, Losses(1, False, 11)),
        (Turn(suspect=True, attempts=1), False, Losses(1, True, 1)),
    ],
)
def test_a_loss_counts_from_the_second_dead_process_or_the_eleventh_living_one(
    turn: Turn, gone: bool, losses: Losses
) -> None:
    assert count_loss(turn, holder_is_gone=gone) == losses


@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        (None, "removed"),
        (Turn(status="cancelled"), "cancelled"),
        (Turn(status="ended", outcome="cancelled"), "cancelled"),
        (Turn(status="ended", outcome="interrupted"), "interrupted"),
        (Turn(status="ended", outcome="completed"), "ended"),
        (Turn(status="expired"), "ended"),
        (Turn(status="refused"), "ended"),
        (Turn(status="running"), "lost"),
        (Turn(status="ready"), "lost"),
    ],
)
def test_a_loss_has_the_reason_that_the_holder_is_told(turn: Turn | None, reason: str) -> None:
    assert loss_reason(turn) == reason


def test_the_first_unfinished_row_is_promoted_when_none_is_live() -> None:
    queued = [Turn(position=n, status="queued") for n in (9, 4, 7)]
    assert next_to_promote([Turn(position=1, status="ended"), *queued]) is queued[1]
    for live in ("ready", "running", "waiting"):
        assert next_to_promote([*queued, Turn(position=12, status=live)]) is None
    assert next_to_promote([Turn(status="ended")]) is None
    assert next_to_promote([]) is None


def test_the_rotation_begins_behind_the_cursor_and_comes_round_to_it_once() -> None:
    assert rotate_owners(["c", "a", "b", "a"], "") == ["a", "b", "c"]
    assert rotate_owners("abc", "a") == ["b", "c", "a"]
    assert rotate_owners("abc", "bb") == ["c", "a", "b"]
    assert rotate_owners("abc", "z") == ["a", "b", "c"]
    assert len(rotate_owners(map(str, range(500)), "")) == OWNERS_LOOKED_AT_MAX


def test_an_even_share_is_rounded_up_and_shares_use_up_all_places() -> None:
    left, shares = 10, []
    for owners in (4, 3, 2, 1):
        shares.append(even_share(left, owners))
        left -= shares[-1]
    assert (shares, left) == ([3, 3, 2, 2], 0)
    assert even_share(0, 3) == 0

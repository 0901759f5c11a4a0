"""Liveness is progress: what makes a process count as stuck, and what does not."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from shared.domain.errors import BrokerUnavailable
from workers.health.liveness import LOOKS, LOOP_BLOCKED, Liveness


@dataclass
class Process:
    """A worker process in the test's hand: its loop beats at every look unless it is blocked."""

    blocked: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    wakes_taken: int = 0
    wakes_waiting: int = 0
    broker_away: bool = False
    beaten: int = 0
    asked: list[list[str]] = field(default_factory=list)

    def beats(self) -> int:
        self.beaten += not self.blocked
        return self.beaten

    def pumps(self) -> Mapping[str, Mapping[str, Any]]:
        return {"turns": self.info}

    def taken(self, queue: str) -> int:
        return self.wakes_taken

    def waiting(self, queues: Iterable[str]) -> Mapping[str, int]:
        self.asked.append(list(queues))
        if self.broker_away:
            raise BrokerUnavailable("away")
        return dict.fromkeys(self.asked[-1], self.wakes_waiting)


def looks(process: Process, number: int = LOOKS + 1, liveness: Liveness | None = None) -> list[str | None]:
    watching = liveness or Liveness(process, bound_s=60, on_stuck=lambda _reason: None)
    return [watching.look() for _ in range(number)]


@pytest.mark.behaviour("DST-30")
def test_wakes_that_wait_while_none_is_taken_make_it_stuck_after_the_bound_and_no_sooner() -> None:
    found = looks(Process(wakes_waiting=3))
    assert found[:-1] == [None] * LOOKS
    assert found[-1] == "turns: 3 wakes wait at the broker and none is taken"


@pytest.mark.behaviour("DST-30")
def test_one_wake_taken_meanwhile_begins_the_bound_anew() -> None:
    process = Process(wakes_waiting=3)
    liveness = Liveness(process, bound_s=60, on_stuck=lambda _reason: None)
    assert looks(process, LOOKS, liveness) == [None] * LOOKS
    process.wakes_taken += 1
    assert looks(process, LOOKS, liveness) == [None] * LOOKS


@pytest.mark.behaviour("DST-30")
@pytest.mark.parametrize("state", ["without_room", "draining"])
def test_a_process_that_takes_none_on_purpose_is_not_stuck(state: str) -> None:
    process = Process(wakes_waiting=3, info={state: True})
    assert looks(process) == [None] * (LOOKS + 1)
    assert process.asked[-1] == []


@pytest.mark.behaviour("DST-30")
def test_a_broker_that_is_away_owes_nothing() -> None:
    assert looks(Process(wakes_waiting=3, broker_away=True)) == [None] * (LOOKS + 1)


@pytest.mark.behaviour("DST-30")
def test_work_that_is_wanted_and_not_claimed_makes_it_stuck_a_claim_that_fails_does_not() -> None:
    process = Process(info={"owes_a_claim": True, "claims": 4, "claim_failures": 0})
    assert looks(process)[-1] == "turns: work is wanted, there is room, and nothing is claimed"
    liveness = Liveness(process, bound_s=60, on_stuck=lambda _reason: None)
    for _ in range(LOOKS + 1):
        process.info["claim_failures"] += 1
        assert liveness.look() is None
    assert looks(Process(info={"owes_a_claim": False, "claims": 4})) == [None] * (LOOKS + 1)


@pytest.mark.behaviour("DST-30")
def test_a_loop_that_beats_no_more_is_blocked() -> None:
    assert looks(Process(blocked=True), LOOKS + 2)[-1] == LOOP_BLOCKED


@pytest.mark.behaviour("DST-30")
def test_its_thread_says_once_why_the_process_is_stuck() -> None:
    told: list[str] = []
    heard = threading.Event()

    def hear(reason: str) -> None:
        told.append(reason)
        heard.set()

    Liveness(Process(blocked=True), bound_s=0.05, on_stuck=hear).start()
    assert heard.wait(10)
    assert told == [LOOP_BLOCKED]

"""Which faults there are, and which come when: a plan made of a seed, before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final


class Fault(StrEnum):
    """A kind of fault; its value is its name in the figures."""

    WORKER_KILL = "worker.kill"
    WORKER_TERM = "worker.term"
    WORKER_STOP = "worker.stop"
    UPKEEP_KILL = "upkeep.kill"
    PRODUCER_KILL = "producer.kill"
    PRODUCER_TERM = "producer.term"
    BROKER_FLUSH = "broker.flush"
    BROKER_RESTART = "broker.restart"
    POSTGRES_RESTART = "postgres.restart"
    WAKES_TRIPLED = "wakes.tripled"
    CONNECTIONS_CUT = "connections.cut"
    CONNECTIONS_DELAYED = "connections.delayed"


#: How often each kind stands in a deck. A deck is shuffled and played to its end before the next, so that no kind is rare.
DECK: Final[Mapping[Fault, int]] = {
    Fault.WORKER_KILL: 2,
    Fault.WORKER_TERM: 1,
    Fault.WORKER_STOP: 2,
    Fault.UPKEEP_KILL: 1,
    Fault.PRODUCER_KILL: 1,
    Fault.PRODUCER_TERM: 1,
    Fault.BROKER_FLUSH: 3,
    Fault.BROKER_RESTART: 1,
    Fault.POSTGRES_RESTART: 1,
    Fault.WAKES_TRIPLED: 2,
    Fault.CONNECTIONS_CUT: 4,
    Fault.CONNECTIONS_DELAYED: 3,
}

#: Seconds between the beginnings of two faults, at random between these: 500 in ten minutes, 22 to a deck.
PAUSE_MIN_S: Final = 0.6
PAUSE_MAX_S: Final = 1.8


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault to come. ``at_s`` counts from the beginning of the load.

    ``pick`` and ``mode`` (both 0 to 1) choose the victim and the variant, ``length`` (0 to 1) how long it lasts.
    """

    at_s: float
    kind: Fault
    pick: float
    mode: float
    length: float


def plan_faults(seed: int, seconds: float) -> tuple[PlannedFault, ...]:
    """Return the faults of a run, in order: the same for the same arguments, and a longer run begins like a shorter."""
    return tuple(_faults(Random(f"{seed} faults"), seconds))


def _faults(rng: Random, seconds: float) -> Iterator[PlannedFault]:
    at_s = 0.0
    while True:
        deck = [kind for kind, count in DECK.items() for _ in range(count)]
        rng.shuffle(deck)
        for kind in deck:
            at_s += rng.uniform(PAUSE_MIN_S, PAUSE_MAX_S)
            if at_s >= seconds:
                return
            yield PlannedFault(at_s, kind, rng.random(), rng.random(), rng.random())

"""Which worker processes a run on this machine has."""

from __future__ import annotations

from producer.dev.places import pools_of
from shared.agents import Agent, App, MemoryPolicy
from shared.wakes.names import QUEUES

AGENT = Agent(name="a", instructions="Be brief.")


def test_an_app_with_memory_gets_every_pool() -> None:
    pools = pools_of(App(agents=[AGENT], memory=MemoryPolicy()), turn_workers=2)
    assert sorted(pools) == sorted((*QUEUES, "turns"))


def test_an_app_without_memory_gets_no_pool_that_would_refuse_to_start() -> None:
    assert pools_of(App(agents=[AGENT]), turn_workers=1) == ("turns", "upkeep")

"""Names and bounds of wakes: what producers and workers agree on (they share no code of each other's)."""

from __future__ import annotations

from typing import Final

TURNS: Final = "turns"
ACTIVITY: Final = "activity"
REMEMBER: Final = "remember"
INDEX: Final = "index"
UPKEEP: Final = "upkeep"

#: The five queues, one per pool (DST-01). A queue's name is also its routing key on the default exchange.
QUEUES: Final = (TURNS, ACTIVITY, REMEMBER, INDEX, UPKEEP)

#: Ids that one message may carry; more of them wait for the next one (DST-27).
IDS_PER_MESSAGE: Final = 200

#: Seconds between two messages of one producer to one queue (DST-27).
MESSAGE_INTERVAL_S: Final = 0.010

#: Ids that wait in a producer for all queues; more are dropped and counted (DST-28).
WAITING_IDS_MAX: Final = 10_000


def job_name(queue: str) -> str:
    """Return the name of the one job of a queue, which takes ids only."""
    return f"turnkeeper.{queue}"

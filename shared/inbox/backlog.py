"""How much waits in all inboxes: apart from their port, for whoever shows figures and needs nothing else of inboxes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InboxBacklog:
    """What waits in all inboxes, claimed by no turn; both look at 10,000 items at most. ``oldest_s`` is the oldest's age."""

    waiting: int
    oldest_s: float

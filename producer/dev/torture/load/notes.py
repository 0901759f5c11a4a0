"""What the clients of a run wanted, and what they were told of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from producer.dev.torture.load.follow import Follower
from producer.dev.torture.load.tasks import StartedTask


@dataclass(slots=True)
class Order:
    """One admission that a client wanted, under one key: what it may come to, and what the client was told of it.

    ``effects`` is how many effects the order has when each of its calls runs once.
    """

    name: str
    session: str
    tool: str | None
    effects: int
    turns: set[str] = field(default_factory=set)
    cancelled: bool = False


@dataclass(slots=True)
class Item:
    """One delivery into a session's inbox under an id of the client's; ``is_acknowledged`` once somebody was told so."""

    name: str
    session: str
    is_acknowledged: bool = False


@dataclass(slots=True)
class Notes:
    """What the clients were told: every order, item and task by its name, and counts of answers."""

    orders: dict[str, Order] = field(default_factory=dict)
    items: dict[str, Item] = field(default_factory=dict)
    tasks: dict[str, StartedTask] = field(default_factory=dict)
    sessions: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    followers: list[Follower] = field(default_factory=list)

    @property
    def acknowledged(self) -> set[str]:
        """The turns that were acknowledged to someone."""
        return {turn for order in self.orders.values() for turn in order.turns}

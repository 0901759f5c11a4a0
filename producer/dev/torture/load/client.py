"""One client of the load over HTTP: it admits turns, repeats keys, cancels and follows, and does other things beside."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from types import TracebackType
from typing import Any, Final, Self

import httpx2

from producer.dev.torture.app import app
from producer.dev.torture.load.asking import REQUEST_BOUND_S, Door
from producer.dev.torture.load.beside import Beside
from producer.dev.torture.load.follow import Follower
from producer.dev.torture.load.notes import Notes, Order

SESSIONS_A_CLIENT: Final = 2
BURST_MAX: Final = 3
FOLLOWING_MAX: Final = 3
#: Above so many unfinished turns in the system a client admits nothing more, so that the drain has a bound.
UNFINISHED_MAX: Final = 40

TOOLS: Final = ("pay", "pay", "book", "ship")
AGENTS: Final = tuple(agent.name for agent in app.agents)


@dataclass(slots=True, kw_only=True)
class Client:
    """One client of one owner over all producers; its choices come from its own seed. A context manager.

    ``unfinished`` is asked for the backlog.
    """

    n: int
    seed: int
    key: str
    urls: Sequence[str]
    notes: Notes
    unfinished: Callable[[], int]
    is_running: bool = True
    following: set[asyncio.Task[None]] = field(default_factory=set)
    rng: Random = field(init=False)
    http: httpx2.AsyncClient = field(init=False)
    door: Door = field(init=False)
    beside: Beside = field(init=False)
    sessions: list[str] = field(default_factory=list)
    orders: int = 0

    def __post_init__(self) -> None:
        self.rng = Random(f"{self.seed} client {self.n}")

    async def __aenter__(self) -> Self:
        headers = {"Authorization": f"Bearer {self.key}"}
        self.http = httpx2.AsyncClient(headers=headers, timeout=REQUEST_BOUND_S, trust_env=False)
        self.door = Door(self.urls, self.http, self.rng, self.notes)
        self.beside = Beside(self.n, self.door, self.rng, self.notes)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self.following:
            task.cancel()
        await asyncio.gather(*self.following, return_exceptions=True)
        await self.http.aclose()

    async def run(self) -> None:
        """Make sessions, then admit turns until ``is_running`` is taken away."""
        while self.is_running and len(self.sessions) < SESSIONS_A_CLIENT:
            await self._create_session()
        while self.is_running:
            if self.unfinished() < UNFINISHED_MAX:
                for _ in range(self.rng.randint(1, BURST_MAX)):
                    await self._order()
                await self.beside.act(self.rng.choice(self.sessions))
            await asyncio.sleep(self.rng.uniform(0.1, 0.9))

    async def let_followers_end(self, bound_s: float) -> None:
        """Wait until every follower has seen its turn's end, ``bound_s`` seconds at most."""
        if self.following:
            await asyncio.wait(set(self.following), timeout=bound_s)

    async def _create_session(self) -> None:
        key = f"session-{self.n}-{len(self.sessions)}"
        answer = await self.door.ask("/v1/sessions", {}, key=key)
        if answer is not None:
            self.sessions.append(str(answer["session_id"]))
            self.notes.sessions.add(self.sessions[-1])

    async def _order(self) -> None:
        order, body = self._next_order()
        self.notes.orders[order.name] = order
        path = f"/v1/sessions/{order.session}/turns"
        answer = await self.door.ask(path, body, key=order.name, impatient=self.rng.random() < 0.15)
        if answer is None:
            return
        order.turns.add(str(answer["turn_id"]))
        if self.rng.random() < 0.2 and len(self.following) < FOLLOWING_MAX:
            self._follow(str(answer["turn_id"]))
        if self.rng.random() < 0.1:  # long after it was answered: the key still names the one turn
            again = await self.door.ask(path, body, key=order.name)
            if again is not None:
                order.turns.add(str(again["turn_id"]))
        if self.rng.random() < 0.1:
            await asyncio.sleep(self.rng.uniform(0.0, 0.6))
            await self._cancel(order, str(answer["turn_id"]))

    def _follow(self, turn: str) -> None:
        rng = Random(self.rng.random())
        follower = Follower(turn=turn, urls=self.urls, http=self.http, rng=rng)
        self.notes.followers.append(follower)
        task = asyncio.create_task(follower.run(), name=f"follow:{turn}")
        self.following.add(task)
        task.add_done_callback(self.following.discard)

    async def _cancel(self, order: Order, turn: str) -> None:
        answer = await self.door.ask(f"/v1/turns/{turn}/cancel", {}, key=None)
        if answer is not None and answer["cancelled"]:
            order.cancelled = True
            self.notes.counts["cancelled"] += 1

    def _next_order(self) -> tuple[Order, dict[str, Any]]:
        rng = self.rng
        self.orders += 1
        name = f"order-{self.n}-{self.orders}"
        tool = rng.choice(TOOLS) if rng.random() < 0.8 else None
        steps, calls = rng.choice(((1, 1), (1, 1), (2, 1), (1, 2), (3, 1)))
        directive: dict[str, Any] = {
            "reply": f"{name} is done",
            "first_token_ms": rng.choice((0, 20, 100, 400)),
        }
        if tool is not None:
            seconds = round(rng.uniform(0.0, 0.5), 3)
            directive |= {
                "tool": tool,
                "args": {"order": name, "seconds": seconds},
                "steps": steps,
                "calls": calls,
            }
        body = {
            "message": f"{name} [[offline: {json.dumps(directive)}]]",
            "agent": AGENTS[rng.random() < 0.15],
            "on_busy": rng.choices(("enqueue", "reject", "interrupt"), (17, 2, 1))[0],
            "priority": rng.choice(("normal", "normal", "interactive", "background")),
        }
        session = rng.choice(self.sessions)
        return Order(name, session, tool, steps * calls if tool else 0), body

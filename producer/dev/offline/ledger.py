"""The ledger of calls: who called, how far each call came, which are held; tests watch and hold calls through it."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from producer.dev.offline.directive import Route

CALLS_KEPT = 10_000

State: TypeAlias = Literal["running", "held", "finished", "failed", "disconnected"]
EndState: TypeAlias = Literal["finished", "failed", "disconnected"]
#: What can be counted: a state, or a group of them.
Counted: TypeAlias = Literal["started", "ended", "running", "held", "finished", "failed", "disconnected"]

ENDED: Final = frozenset({"finished", "failed", "disconnected"})


@dataclass(slots=True)
class Call:
    """One call. ``route`` is what it is for; ``step`` is its place in its turn, from 1; times are Unix seconds."""

    number: int
    session: str
    route: Route
    model: str
    streamed: bool
    messages: int
    step: int
    text: str
    started_at: float
    ended_at: float | None = None
    state: State = "running"
    tokens_sent: int = 0
    let_through: int = 0
    generation: int = 0

    def describe(self) -> dict[str, Any]:
        """Return what ``/admin/calls`` says of it."""
        return {
            name: getattr(self, name) for name in self.__slots__ if name not in ("let_through", "generation")
        }


@dataclass(frozen=True, slots=True)
class Gate:
    """Calls of ``session`` (``None``: all) stop once they sent ``after_tokens`` tokens."""

    number: int
    session: str | None
    after_tokens: int


class CallLedger:
    """Belongs to one event loop. Calls beyond the newest ``CALLS_KEPT`` stay counted when no session is asked for."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._gate_numbers = itertools.count(1)
        self._gates: list[Gate] = []
        self._generation = 0
        self._clear()

    def _clear(self) -> None:
        self._generation += 1
        self._calls: deque[Call] = deque()
        self._totals: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self._numbers = itertools.count(1)
        self.refused = 0

    async def start(
        self,
        *,
        session: str,
        route: Route = "chat",
        model: str,
        streamed: bool,
        messages: int,
        step: int,
        text: str,
    ) -> Call:
        """Enter a call that was taken."""
        number = next(self._numbers)
        call = Call(number, session, route, model, streamed, messages, step, text, time.time())
        call.generation = self._generation
        async with self._changed:
            self._calls.append(call)
            self._totals["started"] += 1
            self._totals["running"] += 1
            while len(self._calls) > CALLS_KEPT:
                self._calls.popleft()
            self._changed.notify_all()
        return call

    async def end(self, call: Call, state: EndState) -> None:
        """Close a call; the first end counts."""
        if call.state not in ENDED:
            call.ended_at = time.time()
            await self._move(call, state)

    async def pass_gates(self, call: Call) -> None:
        """Return when no gate holds the call where it stands; free when none is set."""
        if not self._gates or self._gate_of(call) is None:
            return
        await self._move(call, "held")
        async with self._changed:
            await self._changed.wait_for(lambda: self._gate_of(call) is None)
        await self._move(call, "running")

    async def hold(self, session: str | None, after_tokens: int) -> None:
        """Set the gate of a session, or of all; an earlier gate of the same makes way."""
        async with self._changed:
            self._gates = [gate for gate in self._gates if gate.session != session]
            self._gates.append(Gate(next(self._gate_numbers), session, after_tokens))
            self._changed.notify_all()

    async def release(self, session: str | None, count: int | None) -> int:
        """Let calls go on and return how many were held.

        Without ``count`` the gates go (of ``session``, or all). With it they stay, and only the ``count`` calls held
        longest pass them.
        """
        async with self._changed:
            held = [call for call in self._select(session) if call.state == "held"]
            if count is None:
                self._gates = (
                    [] if session is None else [gate for gate in self._gates if gate.session != session]
                )
            else:
                held = held[:count]
                newest = max((gate.number for gate in self._gates), default=0)
                for call in held:
                    call.let_through = newest
            self._changed.notify_all()
            return len(held)

    async def wait(self, counted: Counted, calls: int, session: str | None, timeout_s: float) -> bool:
        """Return True when that many calls are counted so, False after ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self.count(counted, session) >= calls)
        except TimeoutError:
            return False
        return True

    async def reset(self) -> None:
        """Release everything and forget calls, counts and fault counters. Calls under way end uncounted."""
        async with self._changed:
            self._gates = []
            self._clear()
            self._changed.notify_all()

    def count(self, counted: Counted, session: str | None) -> int:
        """Return how many calls are in a state, or in a group of states."""
        if session is None:
            return sum(self._totals[s] for s in ENDED) if counted == "ended" else self._totals[counted]
        states = [call.state for call in self._select(session)]
        match counted:
            case "started":
                return len(states)
            case "ended":
                return sum(state in ENDED for state in states)
            case _:
                return states.count(counted)

    def describe(self, session: str | None, limit: int) -> dict[str, Any]:
        """Return the counts, and the newest calls, oldest of them first."""
        names: tuple[Counted, ...] = ("started", "running", "held", "finished", "failed", "disconnected")
        counts = {name: self.count(name, session) for name in names}
        calls = list(self._select(session))[-limit:]
        return {"counts": counts, "refused": self.refused, "calls": [call.describe() for call in calls]}

    def meet_fault(self, key: str, times: int | None) -> bool:
        """Count a call that a fault is meant for, and say whether it meets it: only the first ``times`` do."""
        self._faults[key] += 1
        return times is None or self._faults[key] <= times

    def _select(self, session: str | None) -> Iterator[Call]:
        return (call for call in self._calls if session is None or call.session == session)

    def _gate_of(self, call: Call) -> Gate | None:
        for gate in self._gates:
            if (
                gate.number > call.let_through
                and gate.session in (None, call.session)
                and call.tokens_sent >= gate.after_tokens
            ):
                return gate
        return None

    async def _move(self, call: Call, state: State) -> None:
        async with self._changed:
            if call.generation == self._generation:
                self._totals[call.state] -= 1
                self._totals[state] += 1
            call.state = state
            self._changed.notify_all()

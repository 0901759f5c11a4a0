"""What a worker process is made of: the ports between the Celery pool and the parts that its compose root builds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from shared.settings import Settings
from shared.wakes.port import WakePublisher
from workers.health.loop_load import LoopLoad


class ConsumerGate(Protocol):
    """Stops and starts the consumer of one queue; callable from the event loop or any thread, returns at once.

    Idempotent, and the last word holds: it is applied in the hub's thread soon after, and again on every new connection
    to the broker. A queue whose gate is shut stays listed in ``inspect active_queues``.
    """

    def shut(self, queue: str) -> None: ...

    def open(self, queue: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Room:
    """How much a process takes: its places in one pool, the gate of its consumers, and whether its loop carries no more."""

    capacity: int
    gate: ConsumerGate
    is_overloaded: Callable[[], bool] = lambda: False


class QueueServer(Protocol):
    """What serves a queue in this process, on its event loop: a claim pump, or the sweeps of upkeep.

    Everything but ``info`` is called on the event loop only.
    """

    def offer(self, ids: Sequence[str]) -> None:
        """Take a wake: ids to look at first, or none. Never blocks, never raises."""
        ...

    async def serve(self) -> None:
        """Work until drained or stopped. Returning earlier, or raising, ends the process."""
        ...

    async def drain(self, timeout_s: float) -> None:
        """Take nothing new, go on with what is held for ``timeout_s`` seconds, then cancel the rest and await it."""
        ...

    def stop_now(self) -> None:
        """Take nothing new and cancel everything held."""
        ...

    def info(self) -> Mapping[str, Any]:
        """Return JSON values for ``inspect stats``, among them ``held``, ``capacity`` and ``ids``. From any thread.

        ``owes_a_claim`` says that work is wanted and there is room, ``claims`` and ``claim_failures`` count what was tried,
        ``without_room`` says that the consumer is shut: liveness is judged by them (DST-30).
        """
        ...


@dataclass(slots=True)
class Health:
    """Why the process is not fit to go on, if so; written once, read from any thread."""

    unfit: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """The parts of one worker process, alive inside the context manager that built them.

    ``pumps`` serves queues by name. ``services`` are loops that run from start to the end of the drain (renewals, polls,
    ``last_seen``); one that returns or raises earlier makes the process drain and exit with a failure. So does setting
    ``leave``, for a part that finds its process no longer fit (lost threads). ``load`` is measured while the parts are
    alive; ``health`` says why a process leaves.
    """

    pumps: Mapping[str, QueueServer]
    wakes: WakePublisher
    services: Sequence[Callable[[], Awaitable[None]]] = ()
    leave: asyncio.Event = field(default_factory=asyncio.Event)
    load: LoopLoad = field(default_factory=LoopLoad)
    health: Health = field(default_factory=Health)


class BuildWorker(Protocol):
    """The compose function named by ``app.conf.turnkeeper_compose``; called on the process's event loop.

    Entering may wait a bounded time for what it needs, and raises a typed error when the worker must not start. Leaving
    closes the parts after everything was drained.
    """

    def __call__(
        self, settings: Settings, *, queues: frozenset[str], capacity: int, gate: ConsumerGate
    ) -> AbstractAsyncContextManager[WorkerParts]: ...

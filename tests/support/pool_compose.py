"""The compose function of a worker process under test: pumps whose works live in ``tests.support.pool_world``.

Included by ``celery -A workers worker -I tests.support.pool_compose``, it points the app at itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from shared.domain.errors import SchemaOutOfRange
from shared.settings import Settings
from shared.wakes.celery_publisher import CeleryWakePublisher
from tests.support.pool_compose_names import WORLD_VARIABLE
from workers.celery import app
from workers.parts import ConsumerGate, WorkerParts
from workers.pump import Pump

app.conf.turnkeeper_compose = f"{__name__}:build_worker"


class FarWorld:
    """The worker's end of the socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._calls = count()
        self._answers: dict[int, asyncio.Future[list[str]]] = {}
        self._held: dict[str, asyncio.Event] = {}
        self.leave = asyncio.Event()

    def tell(self, op: str, **fields: Any) -> None:
        self._writer.write(json.dumps({"op": op, **fields}).encode() + b"\n")

    async def claim(self, queue: str, n: int, hints: Sequence[str]) -> list[str]:
        call = next(self._calls)
        answer = self._answers[call] = asyncio.get_running_loop().create_future()
        self.tell("claim", queue=queue, n=n, hints=list(hints), call=call)
        ids: list[str] = await answer
        return ids

    async def run(self, work: str) -> None:
        done = self._held[work] = asyncio.Event()
        self.tell("started", id=work)
        try:
            await done.wait()
        except asyncio.CancelledError:
            self.tell("cancelled", id=work)
            await self._writer.drain()
            raise
        self.tell("ended", id=work)

    async def listen(self) -> None:
        while line := await self._reader.readline():
            note = json.loads(line)
            match note["op"]:
                case "claimed":
                    self._answers.pop(note["call"]).set_result(note["ids"])
                case "release":
                    self._held[note["id"]].set()
                case "leave":
                    self.leave.set()
                case "block":
                    asyncio.get_running_loop().call_soon(time.sleep, 3_600)  # as no host should


@asynccontextmanager
async def build_worker(
    settings: Settings, *, queues: frozenset[str], capacity: int, gate: ConsumerGate
) -> AsyncIterator[WorkerParts]:
    reader, writer = await asyncio.open_unix_connection(os.environ[WORLD_VARIABLE])
    hello = json.loads(await reader.readline())
    if hello["start_failure"]:
        raise SchemaOutOfRange(hello["start_failure"])
    world = FarWorld(reader, writer)
    wakes = CeleryWakePublisher(settings.broker_url.get_secret_value())

    def make_pump(queue: str) -> Pump[str]:
        async def claim(n: int, hints: Sequence[str]) -> Sequence[str]:
            return await world.claim(queue, n, hints)

        def ring() -> None:
            world.tell("ring", queue=queue)

        return Pump(
            queue=queue,
            capacity=capacity,
            claim=claim,
            run=world.run,
            name=str,
            ring=ring,
            gate=gate,
            unasked_s=settings.unasked_claim_s,
        )

    pumps = {queue: make_pump(queue) for queue in queues}
    try:
        yield WorkerParts(pumps=pumps, wakes=wakes, services=[world.listen], leave=world.leave)
    finally:
        wakes.close(1.0)
        world.tell("closed")
        await writer.drain()
        writer.close()

"""Clients that post a turn and read its events on the same request, to the terminal one."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from benchmarks.harness.client import EVENTS, Connection, post
from benchmarks.harness.owners import Place
from benchmarks.turn.app import REPLY

#: The offline model answers what the model in the process does.
MESSAGE: Final = f"What do you make of this? [[offline: {json.dumps({'reply': REPLY})}]]"
ENDED_WELL: Final = b'"outcome":"completed"'
OK: Final = 200


@dataclass(slots=True)
class TurnClient:
    """One client, one connection; its turns go through sessions of its own, one after the other.

    ``failed`` counts answers that were no completed turn.
    """

    connection: Connection
    requests: Iterator[bytes]
    done: int = 0
    failed: int = 0

    async def take_turn(self) -> None:
        """Post a turn and read its events to the last one."""
        answer = await self.connection.ask(next(self.requests))
        # The terminal event is the last one, and the stream ends with it.
        end = answer.body[answer.body.rfind(b"event: end") :]
        if answer.status == OK and ENDED_WELL in end:
            self.done += 1
        else:
            self.failed += 1


@dataclass(slots=True)
class Crowd:
    """The clients of one block."""

    clients: list[TurnClient] = field(default_factory=list)

    @property
    def failed(self) -> int:
        """Turns that did not come to their end as they should."""
        return sum(client.failed for client in self.clients)

    @property
    def done(self) -> int:
        """Turns that did."""
        return sum(client.done for client in self.clients)


@asynccontextmanager
async def open_crowd(port: int, places: Sequence[Place], *, clients: int, agent: str) -> AsyncIterator[Crowd]:
    """Connect ``clients`` clients, the sessions shared out between them; at the end their connections are dropped."""
    crowd = Crowd()
    try:
        for n in range(clients):
            own = places[n::clients]
            requests = itertools.cycle([turn_request(place, agent) for place in own])
            crowd.clients.append(TurnClient(await Connection.open(port), requests))
        yield crowd
    finally:
        for client in crowd.clients:
            client.connection.close()


def turn_request(place: Place, agent: str, *, accept: str = EVENTS) -> bytes:
    """Return the request that admits a turn in a session of somebody's."""
    body = json.dumps({"message": MESSAGE, "agent": agent}).encode()
    return post(f"/v1/sessions/{place.session}/turns", body, key=place.key, accept=accept)

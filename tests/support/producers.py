"""Producers that tests run in their own event loop: the whole application behind a real socket, over real Postgres."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
from fastapi import FastAPI

from producer.app import create_app
from producer.compose import producer_parts
from producer.parts import ProducerParts
from producer.server import ProducerServer, make_server
from producer.traffic import Traffic
from shared.agents import App
from shared.domain.failpoints import Failpoints
from shared.domain.ids import OwnerId, TurnId, WorkerId
from shared.owners.keys import new_key
from shared.owners.postgres import PostgresApiKeys
from shared.sessions.vocabulary import TurnEnded, TurnReply, TurnStarted, UserMessage, draft_of
from shared.settings import Settings, load_settings
from shared.turns.queue import Claim, ClaimRequest, Ending
from shared.wakes.inproc import InprocWakes
from shared.wakes.port import WakePublisher
from tests.support.small_app import app as small_app
from tests.support.waiting import await_until

WORKER = WorkerId("turns@test:1:1:aa")
CLOSE_WITHIN_S = 20.0


@dataclass
class Producer:
    """A running producer: its address, its parts, and what it rang."""

    url: str
    parts: ProducerParts
    wakes: WakePublisher
    server: ProducerServer
    serving: asyncio.Task[None]
    application: FastAPI

    async def key_for(self, owner: str) -> str:
        """Create an API key of an owner."""
        key = new_key()
        await PostgresApiKeys(self.parts.database).add(key, OwnerId(owner), "test")
        return key.text

    def client(self, key: str | None = None, **options: Any) -> httpx2.AsyncClient:
        """Return an HTTP client of this producer; close it after use."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx2.AsyncClient(
            base_url=self.url, headers=headers, timeout=30.0, trust_env=False, **options
        )


@asynccontextmanager
async def running_producer(
    database_url: str,
    *,
    redis_url: str = "",
    broker_url: str = "redis://127.0.0.1:1/0",
    wakes: WakePublisher | None = None,
    failpoints: Failpoints | None = None,
    app: App = small_app,
    drain_s: float = 10.0,
    **settings: Any,
) -> AsyncIterator[Producer]:
    """Run a producer; without ``wakes`` a publisher that only remembers."""
    bell: WakePublisher = wakes if wakes is not None else InprocWakes()
    chosen = producer_settings(database_url, redis_url=redis_url, broker_url=broker_url, **settings)
    traffic = Traffic()
    listener = socket.create_server(("127.0.0.1", 0))
    application = create_app(
        lambda: producer_parts(chosen, traffic, app=app, wakes=bell, failpoints=failpoints)
    )
    server = make_server(application, traffic, host="127.0.0.1", port=0, drain_s=drain_s)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await await_until(lambda: server.started or serving.done(), within_s=20.0, what="a started producer")
        if serving.done():
            serving.result()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        yield Producer(url, application.state.parts, bell, server, serving, application)
    finally:
        traffic.begin_drain()
        server.should_exit = True
        await asyncio.wait_for(asyncio.shield(serving), CLOSE_WITHIN_S)


@asynccontextmanager
async def calling(
    database_url: str, *, owner: str = "ann", **options: Any
) -> AsyncIterator[tuple[Producer, httpx2.AsyncClient]]:
    """Run a producer and yield it with a client that has a key of ``owner``."""
    async with AsyncExitStack() as stack:
        producer = await stack.enter_async_context(running_producer(database_url, **options))
        client = producer.client(await producer.key_for(owner))
        yield producer, await stack.enter_async_context(client)


async def await_status(client: httpx2.AsyncClient, path: str, status: int, *, within_s: float = 30.0) -> None:
    """Ask until the answer has this status."""
    async with asyncio.timeout(within_s):
        while True:
            if (await client.get(path)).status_code == status:
                return


def producer_settings(database_url: str, *, redis_url: str, broker_url: str, **settings: Any) -> Settings:
    """Return settings of a producer under test; nothing of the process's environment."""
    urls = {"DATABASE_URL": database_url, "FEED_URL": redis_url, "CELERY_BROKER_URL": broker_url}
    # Tests write as fast as they can; those of the rate set their own.
    quick = {"env": "test", "follower_poll_s": 0.05, "writes_per_s": 1e5, "writes_burst": 10**6} | settings
    return load_settings({name: url for name, url in urls.items() if url}, **quick)


async def create_session(client: httpx2.AsyncClient, **fields: Any) -> str:
    """Create a session over HTTP and return its id."""
    response = await client.post("/v1/sessions", json=fields)
    assert response.status_code == 201, response.text
    session_id: str = response.json()["session_id"]
    return session_id


async def claim_turn(parts: ProducerParts, turn_id: str | None = None) -> Claim:
    """Claim a turn as a worker does."""
    request = ClaimRequest(worker=WORKER, places=1, revisions=("1", "2"), lease_s=60.0)
    [claim] = await parts.queue.claim(request)
    assert turn_id is None or str(claim.turn_id) == turn_id
    return claim


async def open_turn(parts: ProducerParts, claim: Claim) -> None:
    """Open a claimed turn as a worker does."""
    started = TurnStarted(
        turn_id=str(claim.turn_id),
        run_id=claim.run_id,
        entry=f"{claim.run_id}:user",
        origin="user",
        user_message=UserMessage(text=str((claim.message or {}).get("text"))),
    )
    await parts.queue.open(claim, f"{claim.fence.token}:open", [draft_of(started)])


async def end_turn(parts: ProducerParts, claim: Claim, text: str) -> TurnId | None:
    """Reply to and end an open turn as a worker does; return the turn that became ready."""
    drafts = [draft_of(TurnReply(outcome="completed", text=text)), draft_of(TurnEnded(reason="completed"))]
    done = await parts.queue.end(claim, f"{claim.fence.token}:end", drafts, Ending("completed"))
    return done.promoted

"""One wake on its way to a Redis broker without kombu: the message that kombu would store, over a connection of the event loop.

Kombu's own publish takes a thread, which waits for the interpreter while the loop works, and ten times the processor time.
"""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import orjson
from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from shared.domain.errors import BrokerUnavailable
from shared.wakes.broker import EMBED, TRANSIENT, message_headers

_SOCKET: Final = "redis+socket"


def is_plain_redis(url: str) -> bool:
    """Whether a broker URL names one Redis or Valkey server and says nothing that kombu alone understands (TLS, sentinels)."""
    parts = urlsplit(url)
    if parts.scheme == _SOCKET:
        return set(parse_qs(parts.query)) <= {"virtual_host"}
    return parts.scheme == "redis" and not parts.query


class RedisSender:
    """Sends one message at a time over one connection; belongs to one event loop.

    A send takes at most ``bound_s`` seconds. A connection that went stale while at rest (a broker restarted) is replaced
    once within them; nothing is tried again on one that is new (DST-05).
    """

    def __init__(self, url: str, *, bound_s: float) -> None:
        self._bound_s = bound_s
        pool: Any = ConnectionPool.from_url(_client_url(url), protocol=2, retry=Retry(NoBackoff(), 0))
        self._connection = pool.make_connection()

    async def send(self, queue: str, ids: Sequence[str]) -> None:
        """Publish the job of ``queue`` with ``ids``. Raises ``BrokerUnavailable``; whether it arrived is then unknown."""
        command = self._connection.pack_command("LPUSH", queue, encode_message(queue, ids))
        try:
            async with asyncio.timeout(self._bound_s):
                if not self._connection.is_connected:
                    return await self._exchange(command)
                try:
                    await self._exchange(command)
                except Exception:
                    await self._exchange(command)
        except (
            Exception
        ) as error:  # the adapter's edge: uvloop has a RuntimeError for a connection that was reset
            raise BrokerUnavailable(f"wake not published: {type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """Drop the connection; the next send opens another."""
        await self._connection.disconnect()

    async def _exchange(self, command: Sequence[bytes]) -> None:
        try:
            await self._connection.send_packed_command(command, check_health=False)
            await self._connection.read_response()
        except BaseException:
            # An answer that was not read would be taken for that of the next wake.
            await self._connection.disconnect(nowait=True)
            raise


def encode_message(queue: str, ids: Sequence[str]) -> bytes:
    """Return a wake as kombu stores it in the list of its queue."""
    wake_id = str(uuid.uuid4())
    return orjson.dumps(
        {
            "body": base64.b64encode(orjson.dumps([[ids], {}, EMBED])).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": message_headers(queue, wake_id, len(ids)),
            "properties": {
                "correlation_id": wake_id,
                "reply_to": "",
                "delivery_mode": TRANSIENT,
                "delivery_info": {"exchange": "", "routing_key": queue},
                "priority": 0,
                "body_encoding": "base64",
                "delivery_tag": wake_id,
            },
        }
    )


def _client_url(url: str) -> str:
    """Return a broker's URL as the client spells it."""
    parts = urlsplit(url)
    if parts.scheme != _SOCKET:
        return url
    database = parse_qs(parts.query).get("virtual_host", ["0"])[0].strip("/")
    return f"unix://{parts.path}?db={database}"

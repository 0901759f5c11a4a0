"""What trouble does to a broker, done on purpose: everything lost, and wakes delivered once more. For the torture run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import redis
from kombu.exceptions import KombuError

from shared.domain.errors import BrokerUnavailable
from shared.wakes.broker import Connection, KombuSender, declared_queues

BOUND_S: Final = 2.0


class BrokerMeddler:
    """Meddles with the broker at ``url``, past every publisher and worker. Blocks; belongs to one thread at a time.

    Each method raises ``BrokerUnavailable`` when the broker does not answer in time.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._sender = KombuSender(url, bound_s=BOUND_S)

    def flush_server(self) -> None:
        """Empty a whole Redis or Valkey server: its queues, its bindings and the feed. Only for a server of our own."""
        try:
            with redis.Redis.from_url(
                self._url, socket_timeout=BOUND_S, socket_connect_timeout=BOUND_S
            ) as client:
                client.flushall()
        except redis.RedisError as error:
            raise BrokerUnavailable(f"not flushed: {error}") from error

    def purge_queues(self) -> None:
        """Drop every message that waits in our queues, on any broker."""
        connection = Connection(self._url, connect_timeout=BOUND_S)
        try:
            connection.ensure_connection(max_retries=0, timeout=BOUND_S)
            for queue in declared_queues(self._url):
                # A queue that nobody declared yet is as good as empty; its error closes the channel.
                with suppress(*connection.channel_errors), connection.channel() as channel:
                    queue(channel).purge()
        except (KombuError, *connection.connection_errors) as error:
            raise BrokerUnavailable(f"the broker is away: {error}") from error
        finally:
            connection.release()

    def deliver(self, queue: str, ids: Sequence[str]) -> None:
        """Send one wake, as a message of its own."""
        self._sender.send(queue, ids)

    def close(self) -> None:
        """Drop the connection."""
        self._sender.close()

"""One wake on the wire: the queues as both sides declare them, and a bounded publish through kombu.

Messages go to the default exchange by queue name: a named direct exchange looks its bindings up in the broker and drops
messages silently once a flush took them (core 9).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from kombu import connection as kombu_connection
from kombu import entity, messaging
from kombu.exceptions import KombuError

from shared.domain.errors import BrokerUnavailable
from shared.wakes.names import QUEUES, job_name

# kombu says that it is typed and leaves most signatures bare: what we call of it is taken as untyped, here and once.
Connection: Final[Any] = kombu_connection.Connection
Exchange: Final[Any] = entity.Exchange
Queue: Final[Any] = entity.Queue
Producer: Final[Any] = messaging.Producer

#: Seconds that a publish may take.
PUBLISH_BOUND_S: Final = 0.25
#: What Celery finds behind the arguments of a job (protocol 2), and how a message says that no disk need keep it.
EMBED: Final = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
TRANSIENT: Final = 1

_AMQP_SCHEMES: Final = ("amqp", "amqps", "pyamqp")


def is_amqp(url: str) -> bool:
    """Whether a broker URL names RabbitMQ (or another AMQP broker)."""
    return url.partition("://")[0] in _AMQP_SCHEMES


def declared_queues(url: str) -> tuple[Any, ...]:
    """Return the five queues (of kombu) as worker and publisher declare them: equal arguments, or RabbitMQ refuses the second.

    They are consumed without acknowledgements: a delivered wake is gone from the broker (law 4). Each one would cost the
    worker two more transactions in Redis, which keep nothing that the database does not know.
    """
    arguments = {"x-queue-type": "quorum"} if is_amqp(url) else None
    return tuple(
        Queue(
            name,
            exchange=Exchange(""),
            routing_key=name,
            durable=True,
            no_ack=True,
            queue_arguments=arguments,
        )
        for name in QUEUES
    )


class KombuSender:
    """Sends one message at a time over one connection; belongs to one thread.

    Each step on a socket takes at most ``bound_s`` seconds, nothing is tried again on a connection that is new, and a
    connection that went stale while at rest (a broker restarted) is replaced once within the same bound (DST-05).
    """

    def __init__(self, broker_url: str, *, bound_s: float) -> None:
        self._url = broker_url
        self._bound_s = bound_s
        self._amqp = is_amqp(broker_url)
        self._queues = {queue.name: queue for queue in declared_queues(broker_url)}
        self._connection: Any = None
        self._producer: Any = None

    def send(self, queue: str, ids: Sequence[str]) -> None:
        """Publish the job of ``queue`` with ``ids``. Raises ``BrokerUnavailable``; whether it arrived is then unknown."""
        began = time.monotonic()
        was_open = self._producer is not None
        try:
            try:
                self._publish(queue, ids)
            except Exception:
                self.close()
                if not was_open or time.monotonic() - began >= self._bound_s:
                    raise
                self._publish(queue, ids)
        except (
            Exception
        ) as error:  # the adapter's edge: each driver raises its own kinds, up to plain KeyError
            self.close()
            raise BrokerUnavailable(f"wake not published: {type(error).__name__}: {error}") from error

    def count_waiting(self, queue: str) -> int:
        """Return how many messages of a queue wait for a consumer. Raises ``BrokerUnavailable``."""
        try:
            self._open()
            with self._connection.channel() as channel:
                try:
                    return int(channel.queue_declare(queue, passive=True).message_count)
                except self._connection.channel_errors:
                    return 0  # Redis has no empty lists, and RabbitMQ no queue that nobody has declared yet
        except Exception as error:  # as in ``send``
            self.close()
            raise BrokerUnavailable(f"queue not looked at: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Drop the connection; the next send opens another."""
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            with suppress(OSError, KombuError, *connection.connection_errors, *connection.channel_errors):
                connection.collect(socket_timeout=self._bound_s)

    def _publish(self, queue: str, ids: Sequence[str]) -> None:
        producer = self._open()
        wake_id = str(uuid.uuid4())
        declare = [self._queues[queue]] if self._amqp else []
        producer.publish(
            ([list(ids)], {}, EMBED),
            exchange="",
            routing_key=queue,
            declare=declare,
            serializer="json",
            delivery_mode=TRANSIENT,
            retry=False,
            headers=message_headers(queue, wake_id, len(ids)),
            correlation_id=wake_id,
            reply_to="",
        )

    def _open(self) -> Any:
        if self._producer is None:
            connection = Connection(
                self._url, connect_timeout=self._bound_s, transport_options=self._transport_options()
            )
            self._connection = connection
            connection.ensure_connection(max_retries=0)
            self._producer = Producer(connection.channel(), auto_declare=False)
        return self._producer

    def _transport_options(self) -> dict[str, Any]:
        if self._amqp:
            return {"read_timeout": self._bound_s, "write_timeout": self._bound_s}
        return {"socket_timeout": self._bound_s, "socket_connect_timeout": self._bound_s}


def waiting_wakes(broker_url: str, queues: Iterable[str], *, bound_s: float) -> dict[str, int]:
    """Return how many messages of each queue wait at the broker for a consumer; a queue that is not there has none.

    Opens a connection of its own, each step on it bounded by ``bound_s`` seconds; blocks. Raises ``BrokerUnavailable``.
    """
    sender = KombuSender(broker_url, bound_s=bound_s)
    try:
        return {queue: sender.count_waiting(queue) for queue in queues}
    finally:
        sender.close()


def message_headers(queue: str, wake_id: str, ids: int) -> dict[str, Any]:
    """Return what Celery's worker, its events and Flower read of a message (protocol 2); ids stay out of their views."""
    return {
        "lang": "py",
        "task": job_name(queue),
        "id": wake_id,
        "root_id": wake_id,
        "parent_id": None,
        "group": None,
        "eta": None,
        "expires": None,
        "retries": 0,
        "timelimit": [None, None],
        "argsrepr": f"<{ids} ids>",
        "kwargsrepr": "{}",
        "origin": "turnkeeper",
        "ignore_result": True,
    }

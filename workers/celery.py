"""The Celery app, the one singleton of the product: ``celery -A workers worker -Q turns`` finds it here."""

from __future__ import annotations

from typing import Any, Final

from celery import Celery, signals

from shared.domain.errors import ConfigError
from shared.settings import Settings, load_settings
from shared.telemetry.logs import configure_logs
from shared.wakes.broker import declared_queues, is_amqp
from shared.wakes.names import TURNS
from workers.jobs import register_jobs
from workers.pool import ConsumerStep, PoolStep

POOL: Final = "workers.pool:TurnkeeperPool"
REDIS_TRANSPORT: Final = "workers.redis_transport:Transport"
COMPOSE: Final = "workers.compose:build_worker"

#: Seconds that the worker waits for a Redis that stopped answering, before it connects anew.
BROKER_SILENCE_S: Final = 10.0


class TurnkeeperApp(Celery):  # type: ignore[misc]  # Celery publishes no types
    """A Celery app that knows the settings it was made with."""

    settings: Settings

    def connection_for_write(self, url: str | None = None, **options: Any) -> Any:
        """Return a connection for publishing and for ``inspect``, ``control`` and ``status``."""
        self._must_know_a_broker(url)
        return super().connection_for_write(url, **options)

    def connection_for_read(self, url: str | None = None, **options: Any) -> Any:
        """Return a connection for consuming; on Redis one whose wakes take no acknowledgement (decision 0024)."""
        self._must_know_a_broker(url)
        connection = super().connection_for_read(url, **options)
        if connection.transport_cls in ("redis", "rediss"):
            connection.transport_cls = REDIS_TRANSPORT
        return connection

    def _must_know_a_broker(self, url: str | None) -> None:
        """Raise ``ConfigError`` rather than let Celery ask the broker that it takes by default."""
        if not url and not self.conf.broker_url:
            raise ConfigError("CELERY_BROKER_URL is not set", field="CELERY_BROKER_URL")


def make_app(settings: Settings) -> TurnkeeperApp:
    """Build the app: five queues on the default exchange, our pool, wakes acknowledged on receipt, no results."""
    url = settings.broker_url.get_secret_value()
    app = TurnkeeperApp("turnkeeper", set_as_current=False)
    app.settings = settings
    app.conf.update(_configuration(settings, url))
    app.conf.task_queues = declared_queues(url)
    if url:
        app.conf.broker_url = url
    app.steps["worker"].add(PoolStep)
    app.steps["consumer"].add(ConsumerStep)
    register_jobs(app)
    return app


def _configuration(settings: Settings, url: str) -> dict[str, Any]:
    silence = {
        "socket_timeout": BROKER_SILENCE_S,
        "socket_connect_timeout": BROKER_SILENCE_S,
        "socket_keepalive": True,
    }
    return {
        "turnkeeper_compose": COMPOSE,
        # The pool, and how many turns a process holds.
        "worker_pool": POOL,
        "worker_concurrency": settings.turns_capacity,
        "worker_prefetch_multiplier": 1,
        "worker_enable_prefetch_count_reduction": False,
        "worker_soft_shutdown_timeout": 0.0,
        "worker_enable_soft_shutdown_on_idle": False,
        # A wake is acknowledged on receipt, carries JSON, and has no result (law 4, DST-22, DST-23).
        "task_acks_late": False,
        "task_ignore_result": True,
        "task_store_errors_even_if_ignored": False,
        "result_backend": None,
        "accept_content": ["json"],
        "task_serializer": "json",
        "result_serializer": "json",
        "event_serializer": "json",
        # Queues: the five of ours and no others, on the default exchange.
        "task_create_missing_queues": False,
        "task_default_queue": TURNS,
        "task_default_exchange": "",
        "task_default_routing_key": TURNS,
        # The broker may go away and come back at any time.
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_transport_options": {} if is_amqp(url) else silence,
        "worker_cancel_long_running_tasks_on_connection_loss": True,
        # Telemetry is ours; Celery's events are switched on by -E (DST-34).
        "worker_hijack_root_logger": False,
        "worker_send_task_events": False,
        "task_send_sent_event": False,
        "enable_utc": True,
    }


app: Final = make_app(load_settings())


@signals.celeryd_init.connect  # type: ignore[untyped-decorator]  # Celery publishes no types
def _refuse_without_a_broker(instance: Any, **_options: Any) -> None:
    """End a worker that was told of no broker, before Celery looks at what kind of one it is."""
    if not instance.app.conf.broker_url:
        raise SystemExit("the worker is refused: CELERY_BROKER_URL is not set")


@signals.setup_logging.connect  # type: ignore[untyped-decorator]  # Celery publishes no types
def _use_our_logs(**_options: Any) -> None:
    """Log in the form and at the level of the settings; with a receiver here Celery sets up none of its own (OPS-10)."""
    configure_logs(app.settings.log_format, app.settings.log_level)

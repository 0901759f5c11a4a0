"""The Celery pool: jobs run inline in the hub's thread, the work they wake runs on the process's one event loop.

Boot: Celery starts the pool before it consumes → :class:`workers.process.LoopProcess` builds the parts on the loop →
:class:`ConsumerStep` attaches each new consumer to the gate → wakes are offered to the pumps. Stop: the first signal drains
while Celery closes its consumer, ``on_stop`` waits for the drain; a second signal stops at once.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from celery import bootsteps, signals
from celery.concurrency.base import BasePool, apply_target
from celery.utils.imports import symbol_by_name
from celery.worker import state

from shared.domain.collection import started_uncollected
from shared.domain.errors import ConfigError, TurnkeeperError
from shared.wakes.broker import waiting_wakes
from shared.wakes.names import QUEUES
from workers.gate import HubGate
from workers.health.liveness import LOOP_BLOCKED, Liveness
from workers.jobs import check_jobs, wake_jobs
from workers.parts import BuildWorker, WorkerParts
from workers.process import CLOSE_S, STOP_NOW_S, LoopProcess

_log: Final = logging.getLogger(__name__)

EX_FAILURE: Final = 1
#: Seconds that Celery has for its own end once a stop at once is complete.
LEAVE_S: Final = 5.0
#: Seconds beyond the drain bound within which cancelled work must have cleaned up.
_DRAIN_SLACK_S: Final = 10.0
#: Seconds for each step of a look at the broker's queues.
_LOOK_BOUND_S: Final = 5.0


class TurnkeeperPool(BasePool):  # type: ignore[misc]  # Celery publishes no types
    """One event loop beside Celery's hub. ``limit`` (``-c``) is the capacity that the compose function is given."""

    signal_safe = False  # a stop waits, which a signal handler must not begin
    body_can_be_buffer = True
    task_join_will_block = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.gate = HubGate()
        self._process: LoopProcess | None = None
        self._liveness: Liveness | None = None
        self._settings = self.app.settings
        self._signals = 0
        self._hub: Any = None

    # --- life ------------------------------------------------------------------------------------------------

    def on_start(self) -> None:
        """Build the parts; on failure log why and end the worker with a failure before it consumes."""
        hear_stop_signals(self._on_signal)
        # Most of the code is loaded here: Celery's own and the app's are all that was needed before.
        with started_uncollected():
            self._process = self._start_process()
        for job in wake_jobs(self.app).values():
            job.connect(self._process)
        watched = _WatchedPool(self.app, self._process)
        self._liveness = Liveness(watched, bound_s=self._settings.liveness_s, on_stuck=self._on_stuck)
        self._liveness.start()

    def _start_process(self) -> LoopProcess:
        served = frozenset(self.app.amqp.queues.consume_from) & frozenset(QUEUES)
        build: BuildWorker = symbol_by_name(self.app.conf.turnkeeper_compose)

        def build_parts() -> AbstractAsyncContextManager[WorkerParts]:
            return build(self._settings, queues=served, capacity=self.limit, gate=self.gate)

        # Set before it has started: a stop signal meanwhile is its to hear.
        self._process = process = LoopProcess(
            build_parts, drain_s=self._settings.drain_s, on_unfit=self._on_unfit, after_stop=_leave_by_force
        )
        try:
            process.start(look=state.maybe_shutdown)
        except TurnkeeperError as error:
            self._process = None
            _log.critical("the worker cannot start: %s: %s", error.code, error, extra={"code": error.code})
            raise SystemExit(EX_FAILURE) from error
        return process

    def register_with_event_loop(self, hub: Any) -> None:
        """Called for every new connection, before its queues are consumed."""
        self._hub = hub
        self.gate.attach_hub(hub)

    def on_close(self) -> None:
        """Celery begins a warm or cold stop: claim no more while it closes its consumer."""
        if self._process is not None:
            self._process.begin_drain()

    def on_stop(self) -> None:
        """Wait for the drain; or, when a cold stop or a second signal asked for it, stop at once.

        Celery also calls this from the signal handler of a cold stop, possibly while it waits here already.
        """
        process = self._process
        if process is None:
            return
        if self._is_cold():
            process.stop_now()
        else:
            process.begin_drain()
        bound_s = self._settings.drain_s + _DRAIN_SLACK_S + CLOSE_S
        if not process.wait_ended(STOP_NOW_S + CLOSE_S if self._is_cold() else bound_s):
            _log.error("the event loop did not end in time; leaving without it")
        self._detach()

    def on_terminate(self) -> None:
        """End a cold stop: at once."""
        if self._process is not None:
            self._process.stop_now()
            self._process.wait_ended(STOP_NOW_S + CLOSE_S)
        self._detach()

    def terminate_job(self, pid: int, signal: Any = None) -> None:
        """Do nothing: a job is over when its ids are offered, and revoking it does nothing to a turn (core 9)."""

    def _detach(self) -> None:
        if self._liveness is not None:
            self._liveness.stop()
        self.gate.detach()
        for job in wake_jobs(self.app).values():
            job.connect(None)

    # --- work ------------------------------------------------------------------------------------------------

    def on_apply(
        self,
        target: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        callback: Callable[..., Any] | None = None,
        accept_callback: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        """Run the job here and now: all it does is to offer its ids."""
        apply_target(target, args, kwargs, callback, accept_callback, **options)

    def _get_info(self) -> dict[str, Any]:
        info: dict[str, Any] = super()._get_info()
        jobs = {queue: dict(job.counts) for queue, job in wake_jobs(self.app).items()}
        held = self._process.info() if self._process is not None else {}
        return {**info, "processes": [os.getpid()], **held, "jobs": jobs}

    # --- stops -----------------------------------------------------------------------------------------------

    def _on_signal(self, **_: Any) -> None:
        """Celery took a stop signal (in a signal handler of the main thread): the second one means now."""
        self._signals += 1
        if (process := self._process) is None:
            return
        if self._signals > 1:
            process.stop_now()
        else:
            process.begin_drain()
        # The hub looks at the signal when its poll returns. This handler may hold the hub's lock: the loop wakes it.
        process.call(self._wake_hub)

    def _is_cold(self) -> bool:
        return state.should_terminate is not None and state.should_terminate is not False

    def _on_unfit(self, reason: str) -> None:
        """The loop cannot go on: stop warm, and exit with a failure so that a supervisor starts another."""
        _log.critical("the worker leaves: %s", reason)
        state.should_stop = EX_FAILURE
        self._wake_hub()

    def _on_stuck(self, reason: str) -> None:
        """Called by the liveness thread: leave in order as far as that is possible, and without it if it is not."""
        process = self._process
        if reason == LOOP_BLOCKED or process is None:
            _log.critical("the worker leaves at once: %s", reason)
            os._exit(EX_FAILURE)  # nothing of it can end in order; its leases pass
        process.note_unfit(reason)
        self._on_unfit(reason)
        # The hub may be what is stuck.
        process.begin_drain()
        process.wait_ended(self._settings.drain_s + _DRAIN_SLACK_S + CLOSE_S)
        _leave_by_force()

    def _wake_hub(self) -> None:
        if (hub := self._hub) is not None:
            hub.call_soon(lambda: None)


def hear_stop_signals(receiver: Callable[..., None]) -> None:
    """Have ``receiver`` called, in the signal handler, for every stop signal that Celery takes."""
    # A second signal can interrupt the first one while it holds this lock: the plain one it comes with would then wait
    # for itself, and the worker would never stop.
    signals.worker_shutting_down.lock = threading.RLock()
    signals.worker_shutting_down.connect(receiver, weak=False)


def _leave_by_force() -> None:
    """End the process if Celery does not: a silent broker can hold its shutdown up, and nothing of ours is left to lose."""
    time.sleep(LEAVE_S)
    os._exit(EX_FAILURE)


class _WatchedPool:
    """A :class:`workers.health.liveness.Watched`: one Celery app and the loop beside its hub."""

    def __init__(self, app: Any, process: LoopProcess) -> None:
        self._app = app
        self._process = process
        self._broker_url = app.settings.broker_url.get_secret_value()

    def beats(self) -> int:
        return self._process.beats

    def pumps(self) -> Mapping[str, Mapping[str, Any]]:
        pumps: dict[str, dict[str, Any]] = self._process.info()["pumps"]
        return pumps

    def taken(self, queue: str) -> int:
        return sum(wake_jobs(self._app)[queue].counts.values())

    def waiting(self, queues: Iterable[str]) -> Mapping[str, int]:
        return waiting_wakes(self._broker_url, queues, bound_s=_LOOK_BOUND_S)


class PoolStep(bootsteps.Step):  # type: ignore[misc]  # Celery publishes no types
    """Refuses a worker that would lose work: another pool, a broker without a hub, foreign tasks (core 9)."""

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        try:
            check_worker(worker, autoscale=bool(options.get("autoscale")))
        except ConfigError as error:
            _log.critical("the worker is refused: %s", error)
            raise SystemExit(EX_FAILURE) from error


class ConsumerStep(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery publishes no types
    """Checks the tasks and hands each new consumer to the pool's gate, before anything is consumed."""

    requires = ("celery.worker.consumer.mingle:Mingle",)

    def start(self, consumer: Any) -> None:
        try:
            check_jobs(consumer.app)
        except ConfigError as error:
            _log.critical("the worker is refused: %s", error)
            raise SystemExit(EX_FAILURE) from error
        consumer.pool.gate.attach(consumer)


def check_worker(worker: Any, *, autoscale: bool = False) -> None:
    """Raise ``ConfigError`` unless this Celery worker can run ours."""
    if autoscale:
        raise ConfigError("this pool has a fixed capacity: use -c, not --autoscale", field="autoscale")
    pool = worker.pool_cls
    if not (isinstance(pool, type) and issubclass(pool, TurnkeeperPool)):
        raise ConfigError(
            f"this app runs only under its own pool, not {getattr(pool, '__module__', pool)}: leave -P out",
            field="pool",
        )
    if not worker.app.settings.broker_url.get_secret_value():
        raise ConfigError("CELERY_BROKER_URL is not set", field="CELERY_BROKER_URL")
    if not worker.use_eventloop:
        raise ConfigError("the broker must be Redis, Valkey or RabbitMQ", field="CELERY_BROKER_URL")
    check_jobs(worker.app)

"""A worker's own HTTP port: ``/metrics`` for Prometheus, ``/healthz`` for a supervisor (SHD-20, DST-30)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app

from shared.domain.errors import ConfigError
from workers.health.loop_load import LoopLoad
from workers.metrics.collector import PartsCollector
from workers.parts import Health, QueueServer


def health_of(
    health: Health, load: LoopLoad, pumps: Mapping[str, QueueServer], *, silent_max_s: float
) -> tuple[bool, dict[str, Any]]:
    """Return whether this process is fit, and what it holds by pool. From any thread.

    A draining process is fit: its supervisor has nothing to do but wait. An overloaded one is, too.
    """
    silent_s = load.silent_s()
    reason = health.unfit
    if reason is None and silent_s > silent_max_s:
        reason = f"the event loop has been silent for {silent_s:.0f} s"
    infos = {pool: pump.info() for pool, pump in pumps.items()}
    return reason is None, {
        "status": "ok" if reason is None else "unfit",
        "reason": reason,
        "draining": any(info.get("draining", False) for info in infos.values()),
        "overloaded": load.is_overloaded,
        "lag_s": round(load.lag_s, 3),
        "busy": any(info["held"] for info in infos.values()),
        "pools": {pool: {"held": info["held"], "capacity": info["capacity"]} for pool, info in infos.items()},
    }


def serve_metrics(
    collector: PartsCollector, health: Callable[[], tuple[bool, dict[str, Any]]], host: str, port: int
) -> Callable[[], None]:
    """Serve both at an address, in threads of their own, and return what stops it; does nothing for port 0.

    Raises ``ConfigError`` when nothing can listen there.
    """
    if port == 0:
        return lambda: None
    registry = CollectorRegistry()
    registry.register(collector)
    metrics = make_wsgi_app(registry)

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/healthz":
            found: Iterable[bytes] = metrics(environ, start_response)
            return found
        fit, report = health()
        start_response("200 OK" if fit else "503 Service Unavailable", [("Content-Type", "application/json")])
        return [json.dumps(report).encode()]

    try:
        server = make_server(host, port, answer, _Server, _Silent)
    except OSError as error:
        raise ConfigError(
            f"the metrics cannot listen at {host}:{port}: {error.strerror}", field="TURNKEEPER_METRICS_PORT"
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join(timeout=1.0)

    return stop


class _Server(ThreadingMixIn, WSGIServer):
    """A request a thread: a slow scrape holds up no look at the health."""

    daemon_threads = True


class _Silent(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Log no line a request."""

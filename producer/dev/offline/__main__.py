"""Runs the offline model server: ``python -m producer.dev.offline --host 127.0.0.1 --port 8080``."""

from __future__ import annotations

import argparse
import logging
import socket

import uvicorn

from producer.dev.offline.server import OfflineOptions, build_server

#: Longer than clients keep idle connections, so that none is closed under a request that was just sent.
KEEP_ALIVE_S = 75
BACKLOG = 4096


def main() -> None:
    """Serve until SIGINT or SIGTERM; the first line on stdout is ``listening <base URL>`` once connections are taken."""
    defaults = OfflineOptions()
    parser = argparse.ArgumentParser(
        prog="python -m producer.dev.offline", description="The offline model server."
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 = a free one")
    parser.add_argument("--delay-ms", type=float, default=defaults.delay_ms, help="wait between tokens")
    parser.add_argument("--model", default=defaults.model, help="the name in /v1/models")
    parser.add_argument("--api-key", default=defaults.api_key, help="refuse requests without this key")
    arguments = parser.parse_args()
    options = OfflineOptions(arguments.delay_ms, arguments.model, arguments.api_key)
    config = uvicorn.Config(
        build_server(options),
        log_level="error",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=1,
    )
    logging.getLogger("uvicorn.error").addFilter(_is_no_wanted_cut)
    family = socket.AF_INET6 if ":" in arguments.host else socket.AF_INET
    listener = socket.create_server((arguments.host, arguments.port), family=family, backlog=BACKLOG)
    host = f"[{arguments.host}]" if family == socket.AF_INET6 else arguments.host
    print(f"listening http://{host}:{listener.getsockname()[1]}/v1", flush=True)
    uvicorn.Server(config).run(sockets=[listener])


def _is_no_wanted_cut(record: logging.LogRecord) -> bool:
    return "returned without completing response" not in record.getMessage()


if __name__ == "__main__":
    main()

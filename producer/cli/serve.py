"""``turnkeeper serve``: run the producer."""

from __future__ import annotations

from typing import Annotated

import typer

from producer.app import create_app
from producer.compose import producer_parts
from producer.server import make_server
from producer.traffic import Traffic
from shared.domain.collection import started_uncollected
from shared.settings import load_settings
from shared.telemetry.logs import configure_logs


def command(
    host: Annotated[str | None, typer.Option("--host", help="Address to listen at.")] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65_535, help="Port; 0 takes a free one.")
    ] = None,
) -> None:
    """Serve the HTTP interface; SIGTERM or Ctrl-C drains: no new admissions, what is in flight ends, then it exits.

    One process, one core: run several behind one address for more.
    """
    settings = load_settings()
    configure_logs(settings.log_format, settings.log_level)
    traffic = Traffic()
    with started_uncollected():
        server = make_server(
            create_app(lambda: producer_parts(settings, traffic)),
            traffic,
            host=host or settings.host,
            port=settings.port if port is None else port,
            drain_s=settings.drain_s,
        )
    server.run()

"""``turnkeeper dev``: run everything on this machine (OPS-01)."""

from __future__ import annotations

from typing import Annotated

import typer

from producer.dev.run import DevOptions, run_dev
from shared.settings import load_settings


def command(
    fresh: Annotated[bool, typer.Option("--fresh", help="Remove the data of earlier runs first.")] = False,
    port: Annotated[
        int | None,
        typer.Option("--port", min=1, max=65_535, help="The producer's port; the next free one if taken."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, max=256, help="Turn worker processes; one a core by default."),
    ] = None,
) -> None:
    """Start servers, migrations, producer, workers and Flower; Ctrl-C stops them.

    DATABASE_URL, CELERY_BROKER_URL and FEED_URL name real servers instead of embedded ones; OPENAI_API_KEY or
    OPENAI_BASE_URL a real model instead of the offline one.
    """
    run_dev(DevOptions(fresh=fresh, port=port, workers=workers), load_settings(), say=_say)


def _say(line: str) -> None:
    print(line, flush=True)

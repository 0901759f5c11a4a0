"""``turnkeeper torture``: the proof that no law breaks while every part is killed, cut and restarted (BEY-10)."""

from __future__ import annotations

import json
import logging
import secrets
from pathlib import Path
from typing import Annotated, Final

import typer

from producer.dev.torture.report import Report
from producer.dev.torture.run import TortureOptions, run_torture
from shared.settings import load_settings

FAILED_STATUS: Final = 1
SEED_MAX: Final = 2**32


def command(
    seconds: Annotated[
        float, typer.Option("--seconds", min=5, max=86_400, help="How long load and faults go on.")
    ] = 60.0,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Repeats the plan of faults; a random one by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="End with one line of JSON: every figure.")] = False,
    workers: Annotated[int, typer.Option("--workers", min=2, max=64, help="Turn worker processes.")] = 3,
    broker: Annotated[
        str,
        typer.Option(
            "--broker",
            help="A Redis or RabbitMQ to use instead of an embedded one: a database or virtual host that nobody else uses."
            " Its queues are purged, and it is never stopped.",
        ),
    ] = "",
    home: Annotated[
        Path | None, typer.Option("--home", help="Folder for servers and logs; a temporary one by default.")
    ] = None,
) -> None:
    """Run the system on servers of its own, under load, while all of it is killed, stopped, flushed, cut and restarted.

    Exit status 1 when anything acknowledged was lost, anything was doubled, or a turn stayed held for too long.
    """
    options = TortureOptions(
        seconds=seconds,
        seed=secrets.randbelow(SEED_MAX) if seed is None else seed,
        broker_url=broker,
        home=home,
        workers=workers,
    )
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)  # that the database goes away is no news here
    report = run_torture(options, load_settings(), say=_say)
    _tell(report)
    if as_json:
        print(json.dumps(report.figures()), flush=True)
    if status := status_of(report):
        raise typer.Exit(status)


def status_of(report: Report) -> int:
    """Return the exit status of a run: 0 for one that held."""
    return FAILED_STATUS if report.failures else 0


def _tell(report: Report) -> None:
    for name, figure in report.figures().items():
        if name != "failures":
            _say(f"{name:<24} {figure}")
    for finding in report.findings():
        _say(f"  {finding}")
    _say("\n".join(f"FAILED: {line}" for line in report.failures) or "every law held")


def _say(line: str) -> None:
    print(line, flush=True)

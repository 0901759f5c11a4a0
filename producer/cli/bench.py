"""``turnkeeper bench``: measure the system beside baselines, in a checkout; without a name the benchmarks are listed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from shared.domain.errors import ConfigError

ROOT: Final = Path(__file__).resolve().parents[2]


def command(
    name: Annotated[str, typer.Argument(help="Which one; without it they are listed.")] = "",
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds", help="Time to measure in all, beside starting up; the benchmark's own by default."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="End with one line of JSON: every figure.")] = False,
) -> None:
    """Start servers and processes of its own, measure the subject and its baselines in turn, and report ratios.

    Leave the machine alone meanwhile. Exit status 1 when the run was not sound, whatever its figures are.
    """
    if not (ROOT / "benchmarks").is_dir():
        raise ConfigError("benchmarks run in a checkout only", field="bench")
    # No part of the installed package: found through the checkout as the working directory.
    os.chdir(ROOT)
    told = [*([name] if name else []), *(["--seconds", f"{seconds:g}"] if seconds is not None else [])]
    arguments = [*told, *(["--json"] if as_json else [])]
    os.execv(sys.executable, [sys.executable, "-m", "benchmarks", *arguments])

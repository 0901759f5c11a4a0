"""Runs one benchmark in this checkout: ``python -m benchmarks turn --seconds 30 --json``; without a name it lists them."""

from __future__ import annotations

import argparse
import json
import logging
import sys

from benchmarks.catalogue import BENCHMARKS, SECONDS_MAX, SECONDS_MIN, Wish, find_run
from shared.domain.errors import InvalidInput, TurnkeeperError

FAILED_STATUS = 1
USAGE_STATUS = 2
INTERRUPTED_STATUS = 130


def main(arguments: list[str] | None = None) -> int:
    """Run what is named and return the exit status: 1 when the run was not sound, 2 for a typed error, 130 for Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="turnkeeper bench", description="Measure the system beside baselines."
    )
    parser.add_argument("name", nargs="?", default="", help="which; without one they are listed")
    parser.add_argument("--seconds", type=float, default=None, help="time to measure in all")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON: every figure")
    told = parser.parse_args(arguments)
    if not told.name:
        print(listing())
        return 0
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    try:
        return _run(told.name, told.seconds, as_json=told.json)
    except TurnkeeperError as error:
        print(f"turnkeeper: {error.message} [{error.code}]", file=sys.stderr)
        return USAGE_STATUS
    except KeyboardInterrupt:
        return INTERRUPTED_STATUS


def listing() -> str:
    """Return every benchmark with what it measures, one a line."""
    width = max(map(len, BENCHMARKS))
    return "\n".join(f"  {name:<{width}}  {summary}" for name, summary in BENCHMARKS.items())


def _run(name: str, seconds: float | None, *, as_json: bool) -> int:
    if seconds is not None and not SECONDS_MIN <= seconds <= SECONDS_MAX:
        bound = f"{SECONDS_MIN:g} to {SECONDS_MAX:g}"
        raise InvalidInput("out of bounds", field="--seconds", bound=bound)
    report = find_run(name)(Wish(seconds), _say)
    _say(report.table())
    if as_json:
        print(json.dumps(report.figures()), flush=True)
    return FAILED_STATUS if report.defects else 0


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())

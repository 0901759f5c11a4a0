"""The benchmarks by name, what each is told, and where it is found."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from benchmarks.harness.report import Report
from producer.dev.places import Say
from shared.domain.errors import InvalidInput

BENCHMARKS: Final[Mapping[str, str]] = {
    "admission": "Turns admitted over HTTP, durable before they are answered, beside a plain FastAPI route.",
    "agent-turn": "A turn of eight tool calls, step by step, beside the same requests and tools without durability.",
    "pools": "One worker process beside two, under the same load.",
    "streams": "Streaming turns of one worker, each followed by a reader, beside a raw reader of the same streams.",
    "turn": "One-step turns over HTTP, end to end, beside empty Celery jobs and bare commits.",
    "recovery": "A killed worker's turn, resumed by a fresh process, behind 1,000, 10,000 and 100,000 records.",
    "sweep": "A sweep with 16 turns owed where 1,000 turns have ended and where 100,000 have.",
    "fairness": "An owner of 10 turns, and one who comes by, beside another's 10,000.",
    "growth": "Admission and claim where 1,000 turns have ended and where 1,000,000 have.",
}
#: Below this a block has no time to hold anything.
SECONDS_MIN: Final = 0.5
SECONDS_MAX: Final = 3_600.0


@dataclass(frozen=True, slots=True)
class Wish:
    """What the caller wants. ``seconds`` is the time measured in all, over all blocks; None is the benchmark's own."""

    seconds: float | None = None

    def seconds_or(self, default_s: float) -> float:
        """Return the time to measure in all."""
        return default_s if self.seconds is None else self.seconds


Run = Callable[[Wish, Say], Report]


def find_run(name: str) -> Run:
    """Import a benchmark and return its ``run``; raise ``InvalidInput`` for one that there is not."""
    if name not in BENCHMARKS:
        raise InvalidInput(f"no benchmark {name!r}", field="name", bound=", ".join(BENCHMARKS))
    run: Run = importlib.import_module(module_of(name)).run
    return run


def module_of(name: str) -> str:
    """Return the module of a benchmark."""
    return f"benchmarks.{name.replace('-', '_')}.run"

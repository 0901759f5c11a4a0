"""Measures streaming turns at rising numbers of readers beside the raw reader of the same streams, then far above the cap."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import uvloop

from benchmarks.catalogue import Wish
from benchmarks.harness.arms import Arm, Measured, in_turn
from benchmarks.harness.machine import machine_note
from benchmarks.harness.owners import Place, make_places, open_database
from benchmarks.harness.processes import Usage, cpu_between, usage_of
from benchmarks.harness.report import Report, Target
from benchmarks.harness.site import POSTGRES, VALKEY, Site, open_site
from benchmarks.harness.stores import PostgresCounts
from benchmarks.harness.system import System, wait_until_idle
from benchmarks.streams.programs import read_by_threads, read_raw, read_turns, start_model
from benchmarks.streams.readers import BEGIN, CLIENTS_PER_S
from producer.dev.places import Say
from shared.settings import Settings

APP: Final = "benchmarks.streams.app:app"
SECONDS: Final = 40.0
ROUNDS: Final = 2
OWNERS: Final = 64
TOKENS: Final = 50
TOKEN_MS: Final = 20.0
LEVELS: Final = (100, 200, 400)
OFFERED: Final = (1_000, 2_000)
#: How far a turn's text may be drawn out, in the 99th of a hundred turns, for its worker to be said to carry it.
STRETCH_MAX: Final = 1.3
#: After the last client has begun.
WARM_S: Final = 1.5
LET_END_S: Final = 6.0
#: How long what was offered above the cap may take until all of it is done.
IDLE_BOUND_S: Final = 60.0
#: Shares of the time: every level has a block of either arm in each round.
OFFERED_SHARE: Final = 0.1
THREADS_SHARE: Final = 0.1
MIB_KB: Final = 1024**2 / 1000

TARGETS: Final = (
    Target("ratio_cpu_per_token", floor=4.0, aim=2.5, at_most=True),
    Target("ratio_streams_to_threads", floor=3.0, aim=6.0),
    Target("kb_per_stream", floor=100.0, aim=60.0, at_most=True),
    Target("lag_p99_ms", floor=120.0, aim=60.0, at_most=True),
)


def run(wish: Wish, say: Say) -> Report:
    """Start everything, measure, stop everything and report; for the main thread."""
    seconds = wish.seconds_or(SECONDS)
    with open_site() as site:
        machine = machine_note(site.home)
        say(f"servers are up in {site.home}")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            streams = runner.run(_measure(site, seconds, say))
        return streams.report(seconds, machine, site.troubles)


@dataclass(slots=True)
class Streams:
    """What the blocks of one run came to. ``memory`` is (streams at once, MiB of the worker) of each block with readers."""

    measured: Measured = field(default_factory=Measured)
    memory: list[tuple[float, float]] = field(default_factory=list)
    failed: int = 0
    turns: int = 0

    def report(self, seconds: float, machine: Mapping[str, Any], troubles: Sequence[str]) -> Report:
        """Return the report; what is said "at the cap" is of the highest level that is carried."""
        cap = self.cap()
        median = self.measured.median
        defects = [f"{self.failed} turns failed"] if self.failed else []
        return Report(
            benchmark="streams",
            seconds=seconds,
            machine=machine,
            repeats=self.measured.repeats(),
            ratios={
                "cap_readers": cap,
                "cpu_us_per_token": median(f"cpu_us_per_token_{cap}"),
                "ratio_cpu_per_token": self.measured.ratio(
                    f"cpu_us_per_token_{cap}", f"raw_cpu_us_per_token_{cap}"
                ),
                "streams_a_core": median(f"streams_a_core_{cap}"),
                "ratio_streams_to_threads": self.measured.ratio(
                    f"streams_a_core_{cap}", "threads_turns_per_s_a_core"
                ),
                "kb_per_stream": self.kb_per_stream(),
                "lag_p50_ms": median(f"lag_p50_ms_{cap}"),
                "lag_p99_ms": median(f"lag_p99_ms_{cap}"),
            },
            counts={"turns": self.turns, "failed_turns": self.failed},
            targets=TARGETS,
            notes=[
                f"carried: the text of 99 in 100 turns takes less than {STRETCH_MAX} times as long as the model needs;"
                f" the cap is the highest of {LEVELS} readers whose turns are, the lowest if none"
            ],
            defects=[*troubles, *defects],
        )

    def cap(self) -> int:
        """Return the highest level whose turns are not drawn out; the lowest when all are."""
        carried = [n for n in LEVELS if self.measured.median(f"stretch_p99_{n}") < STRETCH_MAX]
        return max(carried, default=LEVELS[0])

    def kb_per_stream(self) -> float:
        """Return by how much the worker grew for each stream more, between the fewest and the most at once."""
        first_round = self.memory[: len(LEVELS)]
        (few, small), (many, large) = min(first_round), max(first_round)
        return (large - small) * MIB_KB / (many - few) if many > few else 0.0


async def _measure(site: Site, seconds: float, say: Say) -> Streams:
    streams = Streams()
    async with open_database(site) as database:
        places = await make_places(database, owners=OWNERS, sessions=6 * OFFERED[-1])
    url = await asyncio.to_thread(start_model, site, tokens=TOKENS, token_ms=TOKEN_MS, first_ms=TOKEN_MS)
    system = System(site, APP, model_url=url)
    port = await asyncio.to_thread(system.start_producer)
    await asyncio.to_thread(partial(system.start_worker, turns_capacity=2 * OFFERED[-1]))
    say("producer, worker and model are up")
    length = seconds * (1 - OFFERED_SHARE * len(OFFERED) - THREADS_SHARE) / (2 * ROUNDS * len(LEVELS))
    block = partial(_read_turns, streams, site, port, places)
    arms = [
        arm
        for n in LEVELS
        for arm in (
            Arm(f"raw reader, {n}", partial(_read_raw, site, url, n)),
            Arm(f"turns, {n} readers", partial(block, n, LET_END_S)),
        )
    ]
    for number, arm in enumerate(in_turn(arms, ROUNDS), start=1):
        figures = await arm.measure(length)
        streams.measured.add(figures)
        say(f"  {number:>2}/{ROUNDS * len(arms)}  {_line(arm.name, figures)}")
    await asyncio.to_thread(system.stop, "worker")
    await asyncio.to_thread(system.start_worker, "worker-at-cap")
    for n in OFFERED:
        figures = await _offer(site, partial(block, n, 0.0), seconds * OFFERED_SHARE)
        streams.measured.add({f"{name.removesuffix(f'_{n}')}_{n}_offered": v for name, v in figures.items()})
        say(f"  {_line(f'turns, {n} offered', figures)}")
    await asyncio.to_thread(system.stop, "worker-at-cap")
    threads = await asyncio.to_thread(read_by_threads, site, url, max(2.0, seconds * THREADS_SHARE))
    streams.measured.add(threads)
    say(f"  {_line('celery threads', threads)}")
    return streams


async def _read_raw(site: Site, url: str, n: int, seconds: float) -> Mapping[str, float]:
    seen = await read_raw(site, url, n, warm_s=_warm_s(n), seconds=seconds)
    return {
        f"raw_cpu_us_per_token_{n}": seen["cpu_us_per_token"],
        f"raw_stretch_p99_{n}": _stretch(seen["spans_s"]["p99"]),
    }


async def _read_turns(
    streams: Streams,
    site: Site,
    port: int,
    places: Sequence[Place],
    n: int,
    let_end_s: float,
    seconds: float,
    *,
    on_end: Callable[[], None] = lambda: None,
) -> Mapping[str, float]:
    """Run one block of so many readers; every figure is named after them."""
    looks: list[dict[str, Usage]] = []
    offset = streams.turns % len(places)

    def look(mark: str) -> None:
        looks.append(usage_of(site.pids()))
        if mark != BEGIN:
            on_end()

    seen = await read_turns(
        site, port, [*places[offset:], *places[:offset]], n,
        warm_s=_warm_s(n), seconds=seconds, let_end_s=let_end_s, on_mark=look,
    )  # fmt: skip
    before, after = looks
    worker = next(name for name in after if name.startswith("worker"))
    if let_end_s:
        streams.failed += seen["failures"]  # far above the cap a busy producer may refuse
    streams.turns += seen["turns"]
    streams.memory.append((seen["streaming_max"], after[worker].rss_mib))
    used_s = cpu_between(before, after)
    tokens = max(1, seen["tokens"])
    carried = seen["tokens"] / seen["seconds"] * TOKEN_MS / 1000
    figures = {
        "cpu_us_per_token": 1e6 * used_s[worker] / tokens,
        "stretch_p99": _stretch(seen["spans_s"]["p99"]),
        "lag_p99_ms": seen["lags_ms"]["p99"],
        "lag_p50_ms": seen["lags_ms"]["p50"],
        "streams": carried,
        "streams_a_core": carried * seen["seconds"] / max(1e-3, used_s[worker]),
        "turns_per_s": seen["turns"] / seen["seconds"],
        "refused": seen["failures"],
        "first_token_p50_s": seen["waits_s"]["p50"],
        "producer_us_per_token": 1e6 * used_s["producer"] / tokens,
        "servers_us_per_token": 1e6 * (used_s[POSTGRES] + used_s[VALKEY]) / tokens,
        "tokens_per_delta": tokens / max(1, seen["frames"]),
    }
    return {f"{name}_{n}": value for name, value in figures.items()}


async def _offer(site: Site, block: Callable[..., Any], seconds: float) -> Mapping[str, float]:
    """Offer more than the worker takes: its figures, and how many turns the database owed meanwhile."""
    owed: list[int] = []
    with PostgresCounts(site.database_url) as counts:
        await wait_until_idle(counts, IDLE_BOUND_S)
        figures: Mapping[str, float] = await block(
            seconds, on_end=lambda: owed.append(counts.waiting_turns())
        )
    return {**figures, "owed": owed[0], "capacity": Settings.model_fields["turns_capacity"].default}


def _warm_s(clients: int) -> float:
    return clients / CLIENTS_PER_S + WARM_S


def _stretch(span_s: float) -> float:
    """Return how much longer a text took than the model needs; its first token was due after one interval."""
    return (span_s + TOKEN_MS / 1000) / (TOKENS * TOKEN_MS / 1000)


def _line(name: str, figures: Mapping[str, float]) -> str:
    first = ", ".join(f"{figure} {value:,.2f}" for figure, value in list(figures.items())[:4])
    return f"{name:<24} {first}"

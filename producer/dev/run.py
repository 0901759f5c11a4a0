"""``turnkeeper dev``: everything on this machine, started in order, watched, stopped in order (OPS-01, OPS-02)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from producer.dev.places import Places, Say, open_places, pools_of
from producer.dev.programs import kept_processes, start_programs
from producer.dev.stop_signals import stop_signals, wait_for_stop
from shared.agents import load_app
from shared.database.embedded.home import HomeLock
from shared.database.migrate import migrate
from shared.settings import Settings


@dataclass(frozen=True, slots=True)
class DevOptions:
    """What the command line decides; the rest are settings. ``workers`` None: one turn worker a core."""

    fresh: bool = False
    port: int | None = None
    workers: int | None = None


def run_dev(options: DevOptions, settings: Settings, *, say: Say) -> None:
    """Run until SIGINT or SIGTERM, then stop what was started; a second signal kills instead of waiting.

    Raises ``HomeInUse`` beside another run on the same home folder, ``ConfigError`` when the app cannot be loaded or a
    server program is missing, and ``ProcessFailed`` when a part does not become ready.
    """
    if options.port is not None:
        settings = settings.model_copy(update={"port": options.port})
    home = Path(settings.home).resolve()
    pools = pools_of(load_app(settings.app), turn_workers=options.workers or core_count())
    lock = HomeLock(home, "dev")
    lock.acquire()
    with ExitStack() as stack:
        stack.callback(lock.release)
        kill = stack.enter_context(stop_signals())
        try:
            places = open_places(stack, settings, home=home, fresh=options.fresh, pools=pools, say=say)
            migrate(places.database_url)
            processes = stack.enter_context(kept_processes(places, say=say))
            kill.append(processes.kill)
            if places.offline_port:
                say("no OPENAI_API_KEY or OPENAI_BASE_URL: an offline model answers, by simple rules")
            start_programs(processes, places, settings, pools=pools)
            _announce(places, pools, say)
            wait_for_stop()
        except KeyboardInterrupt:
            say("stopping (once more: at once)")


def core_count() -> int:
    """Return the number of cores this process may use."""
    # Not on macOS, where the count of the machine's cores has to do.
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _announce(places: Places, pools: Sequence[str], say: Say) -> None:
    counted = ", ".join(f"{count} {pool}" for pool, count in Counter(pools).items())
    say(f"producer  {places.producer_url}  (API: /docs)")
    say(f"Flower    {places.flower_url}")
    say(f"workers   {counted}; logs in {places.home / 'logs'}")
    say("ready: ./turnkeeper chat in another terminal; Ctrl-C stops everything")

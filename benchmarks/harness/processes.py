"""What processes use: CPU seconds and memory, with all their children, from the system's own books."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import psutil

MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one process with its children: CPU seconds since its start, and the memory it holds now."""

    cpu_s: float
    rss_mib: float


def usage_of(pids: Mapping[str, int]) -> dict[str, Usage]:
    """Return the usage of each named process tree; one that has ended is left out."""
    return {name: usage for name, pid in pids.items() if (usage := _usage(pid)) is not None}


def own_usage() -> Usage:
    """Return this process's own usage, children left out: the load and the counting."""
    times, memory = psutil.Process(os.getpid()).cpu_times(), psutil.Process(os.getpid()).memory_info()
    return Usage(times.user + times.system, memory.rss / MIB)


def cpu_between(before: Mapping[str, Usage], after: Mapping[str, Usage]) -> dict[str, float]:
    """Return the CPU seconds that each process used between two looks."""
    return {name: after[name].cpu_s - usage.cpu_s for name, usage in before.items() if name in after}


def _usage(pid: int) -> Usage | None:
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return None
    cpu = rss = 0.0
    for process in family:
        try:
            with process.oneshot():
                times = process.cpu_times()
                cpu += times.user + times.system
                if process is root:  # what children used that have ended
                    cpu += times.children_user + times.children_system
                rss += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return Usage(cpu, rss / MIB)

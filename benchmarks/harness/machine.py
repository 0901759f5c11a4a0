"""A note of the machine that a run was measured on: absolute figures hold for it alone."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.harness.quantiles import median

WRITES: Final = 100
WRITE_BYTES: Final = 8_192
GIB: Final = 2**30


def machine_note(home: Path) -> dict[str, Any]:
    """Return cores, memory, versions, the load before the run, and what a durable write takes in ``home``."""
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "processor": _processor(),
        "memory_gib": round(psutil.virtual_memory().total / GIB, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
        "fsync_ms": round(durable_write_ms(home), 3),
    }


def durable_write_ms(folder: Path) -> float:
    """Return the median of writing 8 kB and waiting until the disk has them, in milliseconds."""
    block = os.urandom(WRITE_BYTES)
    taken: list[float] = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(WRITES):
            began = time.perf_counter()
            file.write(block)
            file.flush()
            os.fsync(file.fileno())
            taken.append(time.perf_counter() - began)
    return median(taken) * 1e3


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())

"""``run.json`` in the home folder: where a running ``turnkeeper dev`` has its parts, for ``chat`` and ``status``."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

NAME: Final = "run.json"
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class RunFile:
    """What the file holds. The URLs carry passwords: the file is its owner's alone. ``processes``: name → pid, log."""

    pid: int
    started_at: float
    producer_url: str
    flower_url: str
    database_url: str
    broker_url: str
    feed_url: str
    offline_model_url: str
    processes: dict[str, dict[str, int | str]] = field(default_factory=dict)
    version: int = VERSION


def write_run_file(home: Path, content: RunFile) -> None:
    """Replace the file in one step."""
    unfinished = home / f"{NAME}.unfinished"
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(asdict(content), file, indent=2)
    unfinished.replace(home / NAME)


def read_run_file(home: Path) -> RunFile | None:
    """Return what runs in ``home``, or None: no file, one of another version, or its supervisor is gone."""
    try:
        raw = json.loads((home / NAME).read_text())
        content = RunFile(**raw)
    except (OSError, ValueError, TypeError):
        return None
    return content if content.version == VERSION and _is_alive(content) else None


def remove_run_file(home: Path) -> None:
    """Remove the file; nothing happens when there is none."""
    (home / NAME).unlink(missing_ok=True)


def process_start() -> float:
    """Return when this process started, as ``RunFile.started_at`` wants it: seconds since the epoch."""
    return _create_time(os.getpid())


def _is_alive(content: RunFile) -> bool:
    try:
        return abs(_create_time(content.pid) - content.started_at) < 1.0
    except ProcessLookupError:
        return False


def _create_time(pid: int) -> float:
    """Return when a process started; raise ``ProcessLookupError`` when it cannot be looked at."""
    import psutil  # noqa: PLC0415 - a command looks at a process only where a file names one

    try:
        return psutil.Process(pid).create_time()
    except psutil.Error as error:
        raise ProcessLookupError(pid) from error

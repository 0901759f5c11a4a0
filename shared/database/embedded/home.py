"""The home folder: who holds it, and server programs that a dead holder left running in it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Collection
from pathlib import Path
from typing import IO, Final

import psutil

from shared.domain.errors import ConfigError, HomeInUse, ProcessFailed

ENDING_GRACE_S: Final = 2.0
LEFTOVER_GRACE_S: Final = 20.0


class HomeLock:
    """The exclusive claim of one process on ``home``, held through ``<name>.lock``; the kernel drops it with us."""

    def __init__(self, home: Path, name: str) -> None:
        self._path = home / f"{name}.lock"
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        """Take the lock or raise ``HomeInUse`` that names the holder's process id."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = self._path.open("a+")
        except OSError as error:
            raise ConfigError(
                f"{self._path.parent} cannot be written: {error.strerror}", field="home"
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            file.close()
            raise HomeInUse(
                f"{self._path.parent} is in use by process {holder}: stop it first, or choose another home folder",
                pid=holder,
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        self._file = file

    def release(self) -> None:
        """Give the lock back; nothing happens when it is not held."""
        if self._file is not None:
            self._file.close()
            self._file = None


def find_leftovers(folder: Path, programs: Collection[str]) -> list[psutil.Process]:
    """Return the processes whose program has one of the names and whose working folder is ``folder``."""
    return [process for process in psutil.process_iter() if _lives_in(process, folder.resolve(), programs)]


def stop_leftovers(folder: Path, programs: Collection[str], signum: signal.Signals) -> list[int]:
    """Stop server programs left running in ``folder``; return the process ids of those found.

    Those of a supervisor that just died are ending already: they get ``ENDING_GRACE_S`` seconds before ``signum``, and
    SIGKILL ``LEFTOVER_GRACE_S`` seconds after it. Raises ``ProcessFailed`` when one does not end.
    """
    found = find_leftovers(folder, programs)
    _, left = psutil.wait_procs(found, timeout=ENDING_GRACE_S)
    for step in (signum, signal.SIGKILL):
        for process in left:
            _signal_inside(folder, process, step)
        _, left = psutil.wait_procs(left, timeout=LEFTOVER_GRACE_S)
    if left:
        raise ProcessFailed(
            f"process {left[0].pid} of an earlier run in {folder} does not end", pid=left[0].pid
        )
    return [process.pid for process in found]


def _lives_in(process: psutil.Process, folder: Path, programs: Collection[str]) -> bool:
    try:
        return Path(process.exe()).name in programs and Path(process.cwd()) == folder
    except (psutil.Error, OSError):
        return False


def _signal_inside(folder: Path, process: psutil.Process, signum: signal.Signals) -> None:
    """Signal a process, but look once more right before: a wrong choice would stop a stranger's database."""
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError):
        if os.path.samefile(folder, process.cwd()):
            process.send_signal(signum)  # psutil compares the start time: no process id is taken twice

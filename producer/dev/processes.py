"""Keeps programs running: each in its own process group with its own log, started again with backoff when it ends."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from shared.database.embedded.child import Child
from shared.domain.errors import ConfigError, ProcessFailed

BACKOFF_MAX_S: Final = 30.0
SETTLED_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Program:
    """What to run. ``env`` is laid over ours (``None`` removes a name); ``grace_s`` is the time to end when asked."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str | None] = field(default_factory=dict)
    stop_signal: signal.Signals = signal.SIGTERM
    grace_s: float = 30.0
    restart: bool = True


class Processes:
    """The running programs of one supervisor; a context manager that stops them all, the last started first.

    Logs are ``<logs>/<name>.log``, emptied at the first start of a name. A program with ``restart`` that ends by itself
    is started again after ``backoff_s`` seconds, doubled each time up to ``BACKOFF_MAX_S``, and ``say`` is told.
    ``on_change`` is called after every start (from any thread). All methods may be called from any thread.
    """

    def __init__(
        self,
        logs: Path,
        *,
        say: Callable[[str], None],
        on_change: Callable[[], None] | None = None,
        backoff_s: float = 0.5,
    ) -> None:
        self._logs = logs
        self._say = say
        self._on_change = on_change
        self._backoff_s = backoff_s
        self._kept: dict[str, _Kept] = {}

    def start(self, program: Program) -> Child:
        """Start a program and return its child; raise ``ConfigError`` when its name runs already."""
        known = self._kept.get(program.name)
        if known is not None and known.child.is_running:
            raise ConfigError(f"a program named {program.name} runs already", field="name")
        log = self._logs / f"{program.name}.log"
        if known is None:
            log.unlink(missing_ok=True)
        kept = _Kept(program, log, say=self._say, on_change=self._changed, backoff_s=self._backoff_s)
        self._kept[program.name] = kept
        kept.start()
        return kept.child

    def child(self, name: str) -> Child:
        """Return the current run of a program; it changes when the program is started again."""
        return self._kept[name].child

    def children(self) -> list[Child]:
        """Return the current run of every program, in the order of their first start."""
        return [kept.child for kept in tuple(self._kept.values())]

    def stop(self, names: Collection[str] | None = None) -> None:
        """Stop the named programs (all by default) at once and wait: each gets its signal, its grace, then SIGKILL."""
        kept = [k for k in reversed(tuple(self._kept.values())) if names is None or k.program.name in names]
        for one in kept:
            one.ask_to_stop()
        for one in kept:
            one.wait_stopped()

    def kill(self) -> None:
        """Kill every program's process group now; safe in a signal handler."""
        for one in list(self._kept.values()):
            one.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _changed(self) -> None:
        if self._on_change is not None:
            self._on_change()


class _Kept:
    """One program over its runs."""

    def __init__(
        self,
        program: Program,
        log: Path,
        *,
        say: Callable[[str], None],
        on_change: Callable[[], None],
        backoff_s: float,
    ) -> None:
        self.program = program
        self._log = log
        self._say = say
        self._on_change = on_change
        self._backoff_s = self._first_backoff_s = backoff_s
        self._stopping = threading.Event()
        # Reentrant: a signal handler that kills may interrupt a stop in the same thread.
        self._turn = threading.RLock()
        self._began_at = 0.0
        self._kill_at: float | None = None
        self.child = self._new_child()

    def start(self) -> None:
        self._began_at = time.monotonic()
        self.child.start()
        self._on_change()

    def ask_to_stop(self) -> None:
        with self._turn:
            self._stopping.set()
            self._kill_at = time.monotonic() + self.program.grace_s
            self.child.send_signal(self.program.stop_signal)

    def wait_stopped(self) -> None:
        if not self.child.is_running:
            return
        if self.child.wait(max(0.0, (self._kill_at or 0.0) - time.monotonic())) is None:
            self._say(f"{self.program.name} did not end within {self.program.grace_s:g} s: killed")
            self.child.kill()

    def kill(self) -> None:
        with self._turn:
            self._stopping.set()
            self.child.send_kill()

    def _new_child(self) -> Child:
        program = self.program
        return Child(program.name, program.argv, log=self._log, env=program.env, on_exit=self._ended)

    def _ended(self, status: int) -> None:
        """Runs in the ended child's thread: the next run's own thread takes over from it."""
        if self._stopping.is_set():
            return
        if not self.program.restart:
            self._say(f"{self.program.name} ended with status {status} (log: {self._log})")
            return
        if time.monotonic() - self._began_at > SETTLED_S:
            self._backoff_s = self._first_backoff_s
        self._say(
            f"{self.program.name} ended with status {status}; starting it again in {self._backoff_s:g} s (log: {self._log})"
        )
        self._stopping.wait(self._backoff_s)
        self._backoff_s = min(self._backoff_s * 2, BACKOFF_MAX_S)
        with self._turn:
            if self._stopping.is_set():
                return
            self.child = self._new_child()
            try:
                self.start()
            except ProcessFailed as error:
                self._say(f"{error.message}; not tried again")

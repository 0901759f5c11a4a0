"""How far a long command is: a bar with rate and remaining time on a terminal, plain lines elsewhere; always on stderr (OPS-11)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

LINE_EVERY_S: Final = 2.0

#: Told how many of how many are done; a total of None is not known.
Show = Callable[[int, int | None], None]


@contextmanager
def showing(
    what: str, unit: str, *, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
) -> Iterator[Show]:
    """Show one long piece of work while the block runs."""
    to = sys.stderr if stream is None else stream
    if to.isatty():
        with _bar(to) as progress:
            task = progress.add_task(what, total=None, unit=unit)
            yield lambda done, total: progress.update(task, completed=done, total=total)
        return
    lines = _Lines(what, unit, to, clock)
    yield lines.show
    lines.end()


class _Rate(ProgressColumn):
    """Units a second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f} {task.fields['unit']}/s")


def _bar(stream: TextIO) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(file=stream), transient=True)


class _Lines:
    """Prints a line now and then, and one at the end."""

    def __init__(self, what: str, unit: str, stream: TextIO, clock: Callable[[], float]) -> None:
        self._what, self._unit, self._stream, self._clock = what, unit, stream, clock
        self._begun = self._last = clock()
        self._shown: tuple[int, int | None] | None = None
        self._now: tuple[int, int | None] = (0, None)

    def show(self, done: int, total: int | None) -> None:
        self._now = (done, total)
        if self._clock() - self._last >= LINE_EVERY_S:
            self._last = self._clock()
            self._print()

    def end(self) -> None:
        if self._now != self._shown and self._now[0]:
            self._print()

    def _print(self) -> None:
        self._shown = done, total = self._now
        rate = done / max(self._clock() - self._begun, 1e-3)
        of = "" if total is None else f" of {total}"
        left = "" if total is None or total <= done or not rate else f", {(total - done) / rate:.0f} s left"
        print(f"{self._what}: {done}{of} {self._unit}, {rate:.0f}/s{left}", file=self._stream, flush=True)

"""What a process has in flight: turns begun and open, background tasks; and waiting until there is none (SHD-01 to 18)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Protocol

from shared.domain.ids import SessionId

#: How often an idle process is looked for.
LOOK_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class TurnInFlight:
    """A turn whose scope is open here. ``since`` is this process's clock once its begin was stored."""

    session: SessionId
    turn: int
    since: datetime


@dataclass(frozen=True, slots=True)
class TurnsInFlight:
    """The turns of one ``Sessions`` at one moment: how many are beginning, and the open ones, oldest first."""

    beginning: int = 0
    open: Sequence[TurnInFlight] = ()


class TurnActivity(Protocol):
    """Counts the turns of this process's ``Sessions``: not those of another process over the same log."""

    @property
    def current(self) -> TurnsInFlight:
        """Read what is in flight now.

        A begin counts from the moment it is asked for until its writer is handed over or it failed (and what it stored
        is closed); then the turn counts as open until its scope closes, ended or not.
        """
        ...


class BackgroundTaskActivity(Protocol):
    """Counts the background work of this process's runner, from hand-over to its end."""

    @property
    def running(self) -> int:
        """Read how many tasks run now."""
        ...


@dataclass(frozen=True, slots=True)
class ProcessActivity:
    """What a process has in flight; ``busy`` when it is anything."""

    open_turns: int
    beginning_turns: int
    running_tasks: int

    @property
    def busy(self) -> bool:
        """Whether anything is in flight."""
        return self.open_turns + self.beginning_turns + self.running_tasks > 0


def process_activity(
    turns: TurnActivity | Sequence[TurnActivity] | None = None, tasks: BackgroundTaskActivity | None = None
) -> ProcessActivity:
    """Read what is in flight at one moment, of one ``Sessions`` or of several; a port that is not there counts nothing."""
    each = turns if isinstance(turns, Sequence) else [] if turns is None else [turns]
    current = [activity.current for activity in each]
    return ProcessActivity(
        open_turns=sum(len(now.open) for now in current),
        beginning_turns=sum(now.beginning for now in current),
        running_tasks=0 if tasks is None else tasks.running,
    )


async def await_idle(look: Callable[[], ProcessActivity], timeout: float) -> ProcessActivity:
    """Wait until nothing is in flight at one moment, at most ``timeout`` seconds; return what is in flight then."""
    deadline = asyncio.get_running_loop().time() + timeout
    while (activity := look()).busy:
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            break
        await asyncio.sleep(min(LOOK_S, left))
    return activity


@dataclass(slots=True)
class CountedTurns:
    """Implements :class:`TurnActivity`: the count that a ``Sessions`` keeps of its own turns."""

    _beginning: int = 0
    _open: dict[object, TurnInFlight] = field(default_factory=dict)

    @property
    def current(self) -> TurnsInFlight:
        """See the port."""
        return TurnsInFlight(self._beginning, tuple(self._open.values()))

    @contextmanager
    def beginning(self) -> Iterator[None]:
        """Count a begin for the block."""
        self._beginning += 1
        try:
            yield
        finally:
            self._beginning -= 1

    @contextmanager
    def open(self, session: SessionId, turn: int) -> Iterator[None]:
        """Count an open turn for the block, also beside the session's next one."""
        key = object()
        self._open[key] = TurnInFlight(session, turn, datetime.now(UTC))
        try:
            yield
        finally:
            del self._open[key]

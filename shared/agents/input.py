"""What enters a turn while it runs: steering and follow-ups, and the queue that a caller puts them into (THR-79, THR-90 to 92)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from shared.domain.bounds import check_text
from shared.domain.errors import CommandsFull

#: Commands that may wait in one queue.
COMMANDS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class TurnCommand:
    """A text for the model: ``steering`` enters at the next step, a ``follow-up`` where the agent would have stopped."""

    kind: Literal["steering", "follow-up"]
    text: str


class TurnInputHook(Protocol):
    """Where a running turn asks for what is to enter it. Belongs to the turn's event loop; no call waits.

    **Nothing is lost.** What was taken is either named to :meth:`entered`, once it is recorded, or waits again after
    :meth:`release`, which ends the turn's use of the hook.
    """

    def take_steering(self) -> Sequence[TurnCommand]:
        """Return all steering that waits, oldest first. Asked after each complete model response and its tool batch."""
        ...

    def take_follow_up(self) -> TurnCommand | None:
        """Return the oldest follow-up. Asked only where the agent would stop, and not when a bound stops it."""
        ...

    def entered(self, commands: Sequence[TurnCommand]) -> None:
        """Hear that these are recorded."""
        ...

    def release(self) -> int:
        """Let what was taken and never entered wait again, at its place; return how many commands wait."""
        ...


class TurnCommands:
    """A queue of commands for turns that run in this process; any task of the event loop may send.

    At most 64 wait, those included that a turn has taken and not recorded; a text has at most 1 MiB of UTF-8. What a turn leaves waiting stays for the next one that is given
    a hook of this queue.
    """

    def __init__(self) -> None:
        self._queue = _Queue()

    @property
    def waiting(self) -> Sequence[TurnCommand]:
        """What waits, in the order it was sent."""
        return tuple(self._queue.waiting.values())

    def steer(self, text: str) -> None:
        """Send a text that enters after the model's next complete response. Raises ``CommandsFull``, ``InvalidInput``."""
        self._send(TurnCommand("steering", text))

    def follow_up(self, text: str) -> None:
        """Send a text for when the agent would stop. Raises ``CommandsFull``, ``InvalidInput``."""
        self._send(TurnCommand("follow-up", text))

    def _send(self, command: TurnCommand) -> None:
        check_text(command.text, field=command.kind)
        if len(self._queue.waiting) + len(self._queue.taken) >= COMMANDS_MAX:
            raise CommandsFull(
                f"{COMMANDS_MAX} commands wait already", field="commands", bound=f"<= {COMMANDS_MAX}"
            )
        self._queue.waiting[next(self._queue.places)] = command


def to_turn_input_hook(commands: TurnCommands) -> TurnInputHook:
    """Return the hook of one turn that takes its input from a queue. Two turns at once never take the same command."""
    return _QueueHook(commands._queue)


@dataclass(slots=True)
class _Queue:
    """Commands by the place at which they were sent, which a command keeps when it is given back; taken ones count too."""

    waiting: dict[int, TurnCommand] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)
    places: Iterator[int] = field(default_factory=itertools.count)


class _QueueHook:
    """Takes from a queue and puts back what never entered."""

    def __init__(self, queue: _Queue) -> None:
        self._queue = queue
        self._taken: dict[int, TurnCommand] = {}

    def take_steering(self) -> Sequence[TurnCommand]:
        """See the port."""
        return self._take([at for at, one in self._queue.waiting.items() if one.kind == "steering"])

    def take_follow_up(self) -> TurnCommand | None:
        """See the port."""
        found = [at for at, one in self._queue.waiting.items() if one.kind == "follow-up"][:1]
        return next(iter(self._take(found)), None)

    def entered(self, commands: Sequence[TurnCommand]) -> None:
        """See the port."""
        for at in [at for at, one in self._taken.items() if any(one is it for it in commands)]:
            del self._taken[at]
            self._queue.taken.discard(at)

    def release(self) -> int:
        """See the port."""
        self._queue.waiting = dict(sorted({**self._queue.waiting, **self._taken}.items()))
        self._queue.taken -= self._taken.keys()
        self._taken = {}
        return len(self._queue.waiting)

    def _take(self, places: Sequence[int]) -> list[TurnCommand]:
        taken = {at: self._queue.waiting.pop(at) for at in places}
        self._taken.update(taken)
        self._queue.taken |= taken.keys()
        return list(taken.values())

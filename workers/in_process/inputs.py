"""Steering and follow-ups on their way from a caller's hook into a running turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from shared.agents import TurnCommand, TurnInputHook
from shared.conversations import ConversationMessage
from shared.domain.errors import TurnkeeperError
from shared.host.endings import HostFailure
from workers.in_process.journal import ConversationJournal
from workers.turns.progress import Progress

T = TypeVar("T")


class HookInputs:
    """Implements :class:`workers.turns.loop.StepInputs` over a caller's hook; one object a turn.

    The hook hears that commands entered right after they are recorded and before anything else can fail, so that none is
    lost and none enters twice.
    """

    def __init__(self, hook: TurnInputHook, journal: ConversationJournal, run_id: str) -> None:
        self._hook = hook
        self._journal = journal
        self._run_id = run_id
        self._taken: Sequence[TurnCommand] = ()

    def take(self, *, stopping: bool) -> bool:
        """See the port. Steering goes first; a follow-up enters alone, so that each is answered."""
        self._taken = tuple(_of_the_host(self._hook.take_steering))
        if not self._taken and stopping:
            follow_up = _of_the_host(self._hook.take_follow_up)
            self._taken = () if follow_up is None else (follow_up,)
        return bool(self._taken)

    async def enter(self, progress: Progress) -> Progress:
        """See the port."""
        taken, self._taken = self._taken, ()
        update = await self._journal.record([ConversationMessage.user(command.text) for command in taken])
        _of_the_host(lambda: self._hook.entered(taken))
        for command in taken:
            progress = progress.after_context(f"{self._run_id}:{progress.entries}", command.text)
        await self._journal.tell(update)
        return progress

    def release(self) -> int:
        """Let go of the hook; return how many commands wait."""
        return _of_the_host(self._hook.release)


def _of_the_host(call: Callable[[], T]) -> T:
    """Call a hook of the host's: what it raises is its own."""
    try:
        return call()
    except TurnkeeperError:
        raise
    except Exception as error:
        raise HostFailure(error) from error

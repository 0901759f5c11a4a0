"""What a turn has recorded: its message, its context entries and runs, its one reply (TRN-126 to TRN-133)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from shared.agents.turn import RunResult
from shared.domain.bounds import check_text
from shared.domain.errors import TurnClosed, TurnkeeperError, TurnUnstarted
from shared.host.endings import TurnOutcome
from shared.models.types import AssistantMessage
from shared.sessions.vocabulary import MemorySection, Payload, TurnReply, TurnStarted
from workers.turns.journal import StepJournal
from workers.turns.progress import Progress, TurnRef

#: Where an event of the turn goes: its name and what it says. The bus's place; nobody listens by default.
Publish = Callable[[str, Payload], Awaitable[None]]
#: Takes the turn's stored message into a memory of the host's; called again when it failed.
TakeMessage = Callable[[TurnStarted], Awaitable[None]]


async def publish_to_nobody(name: str, payload: Payload) -> None:
    """Publish nothing."""


async def take_nowhere(started: TurnStarted) -> None:
    """Keep nothing: the transcript is folded from the log alone."""


class TurnMemory:
    """The turn's own state over the log; one object an attempt.

    ``progress`` holds the conversation with the turn's message, and where the turn stands; ``results`` the runs that an
    earlier attempt stored, ``contexts`` how many context entries. Order: :meth:`persist_message` once, then runs and context entries, then
    :meth:`persist_reply` once.
    """

    def __init__(
        self,
        turn: TurnRef,
        started: TurnStarted,
        progress: Progress,
        journal: StepJournal,
        *,
        results: Sequence[RunResult | TurnkeeperError] = (),
        contexts: int = 0,
        take_message: TakeMessage = take_nowhere,
        publish: Publish = publish_to_nobody,
    ) -> None:
        self.turn = turn
        self.started = started
        self.progress = progress
        self._journal = journal
        self._results = tuple(results)
        self._contexts_stored = contexts
        self._take_message = take_message
        self._publish = publish
        self._next_run = 0
        self._held_back: list[str] = []
        self._has_message = False
        #: What the recorded reply says; None until there is one.
        self.replied: TurnOutcome | None = None

    @property
    def number(self) -> int:
        """The turn's number."""
        return self.progress.number

    async def persist_message(self) -> None:
        """Show the stored message to memory, then publish ``turn.started``; a second call does nothing.

        A call that failed may be made again. Context entries that waited are recorded right after.
        """
        if self._has_message:
            return
        await self._take_message(self.started)
        self._has_message = True
        await self._publish("turn.started", self.started)
        waiting, self._held_back = self._held_back, []
        for text in waiting:
            await self.context(text)

    async def context(self, text: str) -> None:
        """Record a context entry; before the message it waits, and is recorded right after it (TRN-129)."""
        check_text(text, field="context")
        self._refuse_closed()
        if not self._has_message:
            self._held_back.append(text)
            return
        if self._contexts_stored > 0:  # an earlier attempt recorded this one
            self._contexts_stored -= 1
            return
        entry = f"{self.turn.run_id}:{self.progress.entries}"
        await self._journal.append([MemorySection(entry=entry, run_id=self.turn.run_id, text=text)])
        self.progress = self.progress.after_context(entry, text)

    def start_run(self) -> int:
        """Return the ordinal of the turn's next run, counted from 0. Raises ``TurnClosed`` after the reply."""
        if not self._has_message:
            raise TurnUnstarted("a run needs the turn's message recorded first", run_id=self.turn.run_id)
        self._refuse_closed()
        run, self._next_run = self._next_run, self._next_run + 1
        return run

    def stored_run(self, run: int) -> RunResult | TurnkeeperError | None:
        """Return what an earlier attempt stored of a run that ended."""
        return self._results[run] if run < len(self._results) else None

    async def persist_reply(self, outcome: TurnOutcome) -> None:
        """Record ``turn.reply``, then publish ``turn.ended``; nothing without a message, nothing the second time."""
        if not self._has_message or self.replied is not None:
            return
        reply = self.reply_of(outcome)
        await self._journal.append([reply])
        self.replied = outcome
        await self._publish("turn.ended", reply)

    def reply_of(self, outcome: TurnOutcome) -> TurnReply:
        """Return the reply's record. One that the last run's model said word for word names its step (TRN-13)."""
        messages = self.progress.transcript.messages
        last = next((r for r in reversed(self._results) if isinstance(r, RunResult)), None)
        said = isinstance(messages[-1], AssistantMessage) and last is not None and last.text == outcome.reply
        place = (last.run or None, last.step) if said and last is not None else (None, None)
        return TurnReply(outcome=outcome.outcome, text=outcome.reply, run=place[0], step=place[1])

    def note_run(self, result: RunResult | TurnkeeperError, progress: Progress) -> None:
        """Remember a run that ended and was stored."""
        self._results = (*self._results, result)
        self.progress = progress.after_run()

    def note_spent(self, usages: Sequence[dict[str, int]], calls: int) -> None:
        """Count what a step that never became whole has used up."""
        self.progress = replace(
            self.progress, usages=(*self.progress.usages, *usages), calls=self.progress.calls + calls
        )

    def _refuse_closed(self) -> None:
        if self.replied is not None:
            raise TurnClosed("the turn's reply is recorded", run_id=self.turn.run_id, reason="ended")

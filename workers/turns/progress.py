"""Where a turn stands, as pure values: whole steps so far, and what a run or the turn leaves to be committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shared.agents.turn import RunResult
from shared.domain.ids import OwnerId, RunId, SessionId, TurnId
from shared.models.types import Usage
from shared.sessions.vocabulary import MemoryMessage, MemoryToolResult, Payload, TurnEnded
from shared.turns.queue import CallEntry, Ending
from workers.context.transcript import Transcript


@dataclass(frozen=True, slots=True)
class TurnRef:
    """Which turn it is: of whom, in which session, under which run id."""

    session_id: SessionId
    owner: OwnerId
    turn_id: TurnId
    run_id: RunId


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the turn stands after whole steps: pure state, replaced step by step.

    ``run`` is the ordinal of the run that is next or under way, ``step`` and ``run_calls`` count within it. ``calls`` and
    ``entries`` count over the turn, so that tokens and memory entries of two runs never meet; ``usages`` too.
    """

    transcript: Transcript
    number: int
    run: int = 0
    step: int = 0
    run_calls: int = 0
    calls: int = 0
    entries: int = 1
    usages: tuple[dict[str, int], ...] = ()

    @property
    def usage(self) -> dict[str, int]:
        """The turn's totals."""
        return sum_usage(self.usages)

    def after_step(
        self, message: MemoryMessage, results: Sequence[MemoryToolResult], usage: dict[str, int]
    ) -> Progress:
        """Return where a whole step leads."""
        return replace(
            self,
            transcript=self.transcript.with_step(message, results),
            step=self.step + 1,
            run_calls=self.run_calls + len(results),
            calls=self.calls + len(results),
            entries=self.entries + 1 + len(results),
            usages=(*self.usages, usage),
        )

    def after_context(self, entry: str, text: str) -> Progress:
        """Return where a context entry leads."""
        return replace(self, transcript=self.transcript.with_context(entry, text), entries=self.entries + 1)

    def after_run(self) -> Progress:
        """Return where the next run of the step loop begins."""
        return replace(self, run=self.run + 1, step=0, run_calls=0)


@dataclass(frozen=True, slots=True)
class RunTail:
    """What a run leaves uncommitted: the records that make its last step whole, its result, and where it stands then."""

    payloads: tuple[Payload, ...]
    result: RunResult
    progress: Progress
    calls: tuple[CallEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class Closing:
    """The closing commit: its records and the row's ending."""

    payloads: tuple[Payload, ...]
    ending: Ending
    calls: tuple[CallEntry, ...] = ()

    def kept_whole(self, collected: Sequence[Payload]) -> Closing:
        """Return the closing commit of a whole turn: with all that it collected, or with its end alone (THR-58)."""
        if self.ending.outcome in ("completed", "partial"):
            return replace(self, payloads=(*collected, *self.payloads), calls=())
        return replace(self, payloads=tuple(p for p in self.payloads if isinstance(p, TurnEnded)), calls=())


def usage_fields(usage: Usage) -> dict[str, int]:
    """Return a usage as it is stored."""
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
    }


def sum_usage(usages: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return the totals of several stored usages."""
    return {name: sum(u.get(name, 0) for u in usages) for name in usage_fields(Usage())}

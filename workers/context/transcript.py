"""The transcript: memory records folded into messages. Pure; every prompt is rebuilt from the log alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shared.domain.errors import CorruptRecord
from shared.models.types import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from shared.sessions.records import Record
from shared.sessions.vocabulary import (
    MemoryMessage,
    MemorySection,
    MemoryToolResult,
    TurnReply,
    TurnStarted,
    read_stored,
)


@dataclass(frozen=True, slots=True)
class Transcript:
    """The messages, and the first and the last memory entry that they hold (``since``, ``through``)."""

    messages: tuple[Message, ...] = ()
    through: str = ""
    since: str = ""

    @property
    def recipe(self) -> dict[str, Any]:
        """How these messages are made from the log: whole turns in order, from the entry ``since`` on."""
        return {"name": "window", "version": 1, "since": self.since}

    def followed_by(self, later: Transcript) -> Transcript:
        """Return this transcript with another one behind it."""
        return Transcript(
            (*self.messages, *later.messages), later.through or self.through, self.since or later.since
        )

    def with_user(self, entry: str, text: str) -> Transcript:
        """Return the transcript after a user's message."""
        return self._with((UserMessage(text),), entry)

    def with_context(self, entry: str, text: str) -> Transcript:
        """Return the transcript after a context entry of the host, which the model reads as a message of its own."""
        return self.with_user(entry, text)

    def with_step(self, message: MemoryMessage, results: Sequence[MemoryToolResult]) -> Transcript:
        """Return the transcript after a whole step: an assistant message and the result of each of its calls.

        Raises ``CorruptRecord`` unless every call has its result and every result its call (law 11).
        """
        if [c.call_id for c in message.calls] != [r.call_id for r in results]:
            raise CorruptRecord(
                "a step's calls and results do not pair", run=message.run_id, step=message.step
            )
        calls = tuple(ToolCall(c.call_id, c.name, c.arguments) for c in message.calls)
        tail = [ToolMessage(r.call_id, r.name, r.text) for r in results]
        through = results[-1].entry if results else message.entry
        return self._with((AssistantMessage(message.text, calls), *tail), through, since=message.entry)

    def with_reply(self, text: str) -> Transcript:
        """Return the transcript after a reply that no step wrote; it is no memory entry of its own."""
        return replace(self, messages=(*self.messages, AssistantMessage(text)))

    def _with(self, messages: Sequence[Message], through: str, *, since: str = "") -> Transcript:
        return Transcript((*self.messages, *messages), through, self.since or since or through)


def fold(records: Iterable[Record], start: Transcript | None = None) -> Transcript:
    """Fold memory records, in seq order, onto ``start``. A row that does not decode fails; nothing is skipped (SES-160)."""
    state = _Folding(start or Transcript())
    for record in records:
        match record.kind:
            case "turn.started":
                state.settle()
                started = read_stored(TurnStarted, record)
                state.transcript = state.transcript.with_user(started.entry, started.user_message.text)
            case "memory.message":
                state.settle()
                state.pending, state.since = read_stored(MemoryMessage, record), record
            case "memory.tool-result":
                state.since = state.since or record
                state.results.append(read_stored(MemoryToolResult, record))
            case "memory.section":
                state.settle()
                section = read_stored(MemorySection, record)
                state.transcript = state.transcript.with_context(section.entry, section.text)
            case "turn.reply":
                state.settle()
                state.add_host_reply(read_stored(TurnReply, record))
            case _:
                continue
    state.settle()
    return state.transcript


@dataclass(slots=True)
class _Folding:
    transcript: Transcript
    pending: MemoryMessage | None = None
    results: list[MemoryToolResult] = field(default_factory=list)
    #: The first record of the step that is being collected.
    since: Record | None = None

    def settle(self) -> None:
        """Close the step that was being collected; its first record is named when calls and results do not pair."""
        if self.since is None:
            return
        where = {"session": self.since.session_id, "seq": self.since.seq}
        if self.pending is None:
            raise CorruptRecord("a tool result without its call", **where, entry=self.results[0].entry)
        try:
            self.transcript = self.transcript.with_step(self.pending, self.results)
        except CorruptRecord as error:
            raise CorruptRecord(error.message, **where, **error.fields) from error
        self.pending, self.results, self.since = None, [], None

    def add_host_reply(self, reply: TurnReply) -> None:
        """Show a reply that no step of the model wrote (TRN-13); a failed one without text is never shown (RSM-34)."""
        if reply.step is None and reply.text:
            self.transcript = self.transcript.with_reply(reply.text)

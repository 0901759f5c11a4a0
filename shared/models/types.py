"""Values that pass between the step loop and a model: messages, tool declarations, requests, responses, usage.

All are frozen. Texts that come from a model are storable: NUL and lone surrogates are U+FFFD already (decision 22).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

#: A provider's count above this is taken as this: it keeps every sum far inside 64 bits.
TOKENS_MAX = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asked for; ``arguments`` is the model's own JSON text, unchecked and never re-encoded."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class SystemMessage:
    text: str


@dataclass(frozen=True, slots=True)
class UserMessage:
    text: str


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    text: str
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """The result of the call ``call_id``; ``text`` is what the model reads."""

    call_id: str
    name: str
    text: str


Message: TypeAlias = SystemMessage | UserMessage | AssistantMessage | ToolMessage


@dataclass(frozen=True, slots=True)
class ToolDeclaration:
    """A tool as the model sees it; ``parameters`` is a JSON Schema of an object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One call of a model.

    ``tool_choice`` is ``auto``, ``none``, ``required`` or the name of a declared tool. ``cache_key`` lets a provider
    route the calls of one session to one prompt cache. ``None`` leaves a choice to the provider.
    """

    model: str
    messages: tuple[Message, ...]
    tools: tuple[ToolDeclaration, ...] = ()
    tool_choice: str = "auto"
    temperature: float | None = None
    max_output_tokens: int | None = None
    cache_key: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What a response cost in tokens. ``input_tokens`` includes both cache counts, ``output_tokens`` the reasoning.

    Build it with :func:`token_usage`, which holds the invariants; adding two usages keeps them.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Input plus output (USE-08)."""
        return self.input_tokens + self.output_tokens

    @property
    def uncached_input_tokens(self) -> int:
        """Input that neither came from a prompt cache nor was written to one (USE-15)."""
        return self.input_tokens - self.cache_read_tokens - self.cache_write_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )


def token_usage(
    *,
    input_tokens: object = 0,
    output_tokens: object = 0,
    cache_read_tokens: object = 0,
    cache_write_tokens: object = 0,
    reasoning_tokens: object = 0,
) -> Usage:
    """Return the usage that counts of any origin stand for (USE-09 to USE-14).

    A count that is no whole number, or below 0, is 0; one above ``TOKENS_MAX`` is that. An input below its cache
    counts is raised to their sum, an output below its reasoning to the reasoning.
    """
    cache_read, cache_write = _count(cache_read_tokens), _count(cache_write_tokens)
    reasoning = _count(reasoning_tokens)
    return Usage(
        input_tokens=max(_count(input_tokens), cache_read + cache_write),
        output_tokens=max(_count(output_tokens), reasoning),
        cache_read_tokens=cache_read,
        cache_write_tokens=cache_write,
        reasoning_tokens=reasoning,
    )


def _count(value: object) -> int:
    return min(max(value, 0), TOKENS_MAX) if isinstance(value, int) and not isinstance(value, bool) else 0


@dataclass(frozen=True, slots=True)
class ModelResponse:
    """A complete answer.

    ``finish_reason`` is the provider's word: ``stop``, ``tool_calls``, ``length``, ``content_filter`` or another.
    ``model`` is the model that answered, as the provider names it. Call ids are unique within the response.
    ``usage`` is all zero when the provider reported none. ``replaced_characters`` says that the provider sent
    characters that cannot be stored and that stand as U+FFFD now.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = field(default_factory=Usage)
    finish_reason: str = "stop"
    model: str = ""
    replaced_characters: bool = False


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next piece of the answer's text, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    response: ModelResponse


ModelEvent: TypeAlias = TextDelta | Finished

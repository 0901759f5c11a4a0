"""Native messages of a conversation: text, reasoning, files, tool calls and results, each with its provider's options.

Values are frozen through and through. Two messages are the same when their canonical JSON is: the order of an option's keys
does not count, every value does, and a call's arguments are the model's own text, letter by letter (THR-T10).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import islice
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from shared.domain.bounds import check_json
from shared.domain.canonical import canonical_json
from shared.domain.errors import HistoryEncoding, InvalidInput, SessionHistoryDiverged
from shared.domain.ids import SessionId


def _frozen(value: Any) -> Any:
    match value:
        case Mapping():
            return MappingProxyType({key: _frozen(inner) for key, inner in value.items()})
        case list() | tuple():
            return tuple(_frozen(inner) for inner in value)
        case _:
            return value


def _thawed(value: Any) -> Any:
    match value:
        case Mapping():
            return {key: _thawed(inner) for key, inner in value.items()}
        case tuple():
            return [_thawed(inner) for inner in value]
        case _:
            return value


#: What a provider attached to a part or a message and wants back unchanged: a JSON object, kept as it came.
ProviderOptions = Annotated[
    Mapping[str, Any], AfterValidator(_frozen), PlainSerializer(_thawed, return_type=dict[str, Any])
]


class _Value(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, hide_input_in_errors=True, ser_json_inf_nan="constants"
    )

    options: ProviderOptions = Field(default_factory=lambda: MappingProxyType({}))

    @model_serializer(mode="wrap")
    def _without_the_unset(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what says nothing, so that it can never make two equal messages differ."""
        return {k: v for k, v in serialize(self).items() if v is not None and not (k == "options" and not v)}


class TextPart(_Value):
    """What was said, or what a system message orders."""

    kind: Literal["text"] = "text"
    text: str


class ReasoningPart(_Value):
    """What a model thought before it answered, as its provider gave it."""

    kind: Literal["reasoning"] = "reasoning"
    text: str


class FilePart(_Value):
    """A file: its media type and its content, a URL or base64 text."""

    kind: Literal["file"] = "file"
    media_type: str
    data: str
    name: str | None = None


class ToolCallPart(_Value):
    """A call that the model asked for; ``arguments`` is the model's own JSON text, unchecked and never encoded again."""

    kind: Literal["tool-call"] = "tool-call"
    call_id: str
    name: str
    arguments: str


class ToolResultPart(_Value):
    """What the model reads as the result of the call ``call_id``."""

    kind: Literal["tool-result"] = "tool-result"
    call_id: str
    name: str
    text: str
    status: Literal["ok", "error", "unknown", "refused"] = "ok"


Part: TypeAlias = TextPart | ReasoningPart | FilePart | ToolCallPart | ToolResultPart

#: Which parts a message of each role may hold.
_PARTS: Mapping[str, tuple[str, ...]] = {
    "system": ("text",),
    "user": ("text", "file"),
    "assistant": ("text", "reasoning", "file", "tool-call"),
    "tool": ("tool-result",),
}


class ConversationMessage(_Value):
    """One complete message. A tool message holds results of calls that the assistant message before it asked for."""

    v: Literal[1] = 1
    role: Literal["system", "user", "assistant", "tool"]
    parts: tuple[Annotated[Part, Field(discriminator="kind")], ...]

    @classmethod
    def user(cls, text: str) -> ConversationMessage:
        """Return a user's message."""
        return cls(role="user", parts=(TextPart(text=text),))

    @classmethod
    def assistant(
        cls, text: str, calls: Sequence[ToolCallPart] = (), *, reasoning: str = ""
    ) -> ConversationMessage:
        """Return a model's message; parts without content are left out."""
        thought = (ReasoningPart(text=reasoning),) if reasoning else ()
        said = (TextPart(text=text),) if text or not calls else ()
        return cls(role="assistant", parts=(*thought, *said, *calls))

    @classmethod
    def tool(cls, *results: ToolResultPart) -> ConversationMessage:
        """Return the results of calls."""
        return cls(role="tool", parts=results)

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def calls(self) -> tuple[ToolCallPart, ...]:
        """The calls that it asks for."""
        return tuple(part for part in self.parts if isinstance(part, ToolCallPart))

    @property
    def results(self) -> tuple[ToolResultPart, ...]:
        """The results that it brings."""
        return tuple(part for part in self.parts if isinstance(part, ToolResultPart))

    @cached_property
    def encoded(self) -> bytes:
        """Its canonical JSON in UTF-8: what bounds count and what decides whether two messages are the same.

        Raises ``HistoryEncoding`` for what cannot be stored: NUL, lone surrogates, numbers that are not finite.
        """
        value = self.model_dump(mode="json")
        try:
            check_json(value, field="message")
        except InvalidInput as error:
            raise HistoryEncoding(error.message, field=error.field, bound=error.bound) from error
        return canonical_json(value).encode()

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy; what the original was encoded to is not its own."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("encoded", None)
        return copied


#: A conversation as a model is shown it and as a caller hands it on: whole messages, oldest first.
Prompt: TypeAlias = tuple[ConversationMessage, ...]


def decode_message(text: str | bytes) -> ConversationMessage:
    """Return the message of its canonical JSON. Raises pydantic's ``ValidationError`` for what is none."""
    return ConversationMessage.model_validate_json(text)


def check_whole(messages: Sequence[ConversationMessage], *, after: int = 0) -> None:
    """Raise ``HistoryEncoding`` unless messages are whole and each call has its one result at once (law 11, THR-14).

    ``after`` is the number of messages that stand before them, and end with no open call; places are counted over all.
    """
    open_calls: set[str] = set()
    for place, message in enumerate(messages, after):
        _check_parts(message, place)
        results = [part.call_id for part in message.results]
        if message.role == "tool":
            if len(set(results)) != len(results) or not set(results) <= open_calls:
                raise _broken("a tool result answers no open call", place, "one result a call")
            open_calls -= set(results)
            continue
        if open_calls:
            raise _broken("a tool batch is not finished", place, "a result for every call")
        calls = [part.call_id for part in message.calls]
        if len(set(calls)) != len(calls):
            raise _broken("two calls of a message share an id", place, "ids unique in a message")
        open_calls = set(calls)
    if open_calls:
        raise _broken("a tool batch is not finished", after + len(messages) - 1, "a result for every call")


def check_prefix(
    session_id: SessionId,
    recorded: Sequence[ConversationMessage],
    messages: Sequence[ConversationMessage],
) -> None:
    """Raise ``SessionHistoryDiverged`` unless the recorded messages stand unchanged at the beginning of these."""
    for place, (known, given) in enumerate(zip(recorded, islice(messages, len(recorded)), strict=False)):
        if known is not given and known.encoded != given.encoded:
            raise SessionHistoryDiverged(
                "the update rewrites what is recorded", session=session_id, field=f"messages/{place}"
            )
    if len(messages) < len(recorded):
        raise SessionHistoryDiverged(
            "the update does not hold all that is recorded", session=session_id, field="messages"
        )


def _check_parts(message: ConversationMessage, place: int) -> None:
    if not message.parts:
        raise _broken("a message has no parts", place, ">= 1 part")
    allowed = _PARTS[message.role]
    for part in message.parts:
        if part.kind not in allowed:
            raise _broken(f"a {message.role} message holds no {part.kind}", place, ", ".join(allowed))


def _broken(text: str, place: int, bound: str) -> HistoryEncoding:
    return HistoryEncoding(text, field=f"messages/{place}", bound=bound)

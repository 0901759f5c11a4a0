"""Directives: what a test writes into a user message to shape one answer, ``[[offline: {…}]]``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError

from producer.dev.offline.requests import RequestRefused

#: What a request is for: words, a value of a schema, or vectors.
Route: TypeAlias = Literal["chat", "structured", "embeddings"]

OPENING = "[[offline:"
CLOSING = "]]"

TOKENS_MAX = 100_000
WAIT_MAX_MS = 600_000


def _any_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a text")
    return value


#: Unlike pydantic's own, lone surrogates included: a test may want them sent.
AnyText = Annotated[str, PlainValidator(_any_text)]
Milliseconds = Annotated[float, Field(ge=0, le=WAIT_MAX_MS)]
Tokens = Annotated[int, Field(ge=0, le=TOKENS_MAX)]


class Directive(BaseModel):
    """How one answer is to be. Nothing said: an ordinary answer.

    For which request: ``on`` is "chat" (the default), "structured" (an answer of a JSON Schema), "embeddings" or "all".
    The words of one user reach all three in turn; what shapes his chat must not break what is made of it later.
    What is answered:
      ``reply``           this text (NUL and lone surrogates allowed: they are sent as they are)
      ``tokens``          a text of so many tokens
      ``tool, args``      a call of this tool, declared or not, in each of the first ``steps`` (1) steps of the turn,
                          ``calls`` (1) of them side by side; then the answer
    When:
      ``first_token_ms``  wait before the response's headers
      ``delay_ms``        wait between tokens (instead of the server's)
    What goes wrong, one of:
      ``fail``            an HTTP status, "400" to "599", with ``retry_after_s`` as ``Retry-After``
      ``hang``            never an answer, not even headers
      ``cut_after``       the connection is closed after so many tokens
      ``hang_after``      silence after so many tokens
      ``error_after``     an error object in the stream after so many tokens
      ``garbage_after``   an event that is no JSON after so many tokens
    The last two need a stream; an answer that is sent whole does without them.
    How often: only at step ``at_step`` of the turn, and only for the first ``fail_times`` such calls. Calls are
    counted in the server's process by ``key``, by default the directive's own text.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    on: Literal["chat", "structured", "embeddings", "all"] = "chat"
    reply: AnyText | None = None
    tokens: Annotated[int, Field(ge=1, le=TOKENS_MAX)] | None = None
    tool: str | None = None
    args: dict[str, Any] = Field(default_factory=dict)
    steps: int = Field(1, ge=1, le=1000)
    calls: int = Field(1, ge=1, le=128)
    first_token_ms: Milliseconds = 0
    delay_ms: Milliseconds | None = None
    fail: Annotated[int, Field(ge=400, le=599)] | None = None
    retry_after_s: Annotated[float, Field(ge=0, le=600)] | None = None
    hang: bool = False
    cut_after: Tokens | None = None
    hang_after: Tokens | None = None
    error_after: Tokens | None = None
    garbage_after: Tokens | None = None
    fail_times: Annotated[int, Field(ge=0)] | None = None
    at_step: Annotated[int, Field(ge=1)] | None = None
    key: str = ""

    @property
    def has_fault(self) -> bool:
        """Say whether anything is to go wrong."""
        after = (self.fail, self.cut_after, self.hang_after, self.error_after, self.garbage_after)
        return self.hang or any(value is not None for value in after)

    def without_faults(self) -> Directive:
        """Return the same answer with nothing going wrong."""
        calm = {name: None for name in ("fail", "cut_after", "hang_after", "error_after", "garbage_after")}
        return self.model_copy(update={**calm, "hang": False})


def split_directive(text: str, route: Route = "chat") -> tuple[str, Directive]:
    """Return the text without its directives, and the first of them that is for ``route``.

    One that cannot be read raises ``RequestRefused`` in a chat; to the other routes it is text like any other.
    """
    chosen: Directive | None = None
    start = text.find(OPENING)
    while start >= 0:
        try:
            directive, after = _read_directive(text[start + len(OPENING) :].lstrip())
        except RequestRefused:
            if route == "chat":
                raise
            break
        text = f"{text[:start]}{after}".strip()
        if chosen is None and directive.on in (route, "all"):
            chosen = directive
        start = text.find(OPENING)
    return text, chosen or Directive()


def _read_directive(rest: str) -> tuple[Directive, str]:
    """Return the directive that ``rest`` opens with, and what follows its closing."""
    try:
        fields, length = json.JSONDecoder().raw_decode(rest)
        if not rest[length:].lstrip().startswith(CLOSING):
            raise ValueError(f"the object is not followed by {CLOSING}")
        directive = Directive.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise _refused(f"{_place(first['loc'])}{first['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise _refused(str(error)) from error
    if not directive.key:
        directive = directive.model_copy(update={"key": rest[:length]})
    return directive, rest[length:].lstrip().removeprefix(CLOSING)


def _place(loc: Sequence[int | str]) -> str:
    return f"{'.'.join(map(str, loc))}: " if loc else ""


def _refused(reason: str) -> RequestRefused:
    return RequestRefused(
        f"The offline directive cannot be used: {reason}", param="messages", code="offline_directive"
    )

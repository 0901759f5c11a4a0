"""Models in this process that answer from a script: for unit tests, conformance checks and benchmarks."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

import orjson
from pydantic import BaseModel

from shared.models.embeddings import EmbedderProfile, Embeddings, check_texts, unit_vectors
from shared.models.structured import StructuredAnswer, T, read_structured
from shared.models.types import Finished, ModelEvent, ModelRequest, ModelResponse, TextDelta, ToolCall, Usage

Asked = TypeVar("Asked")
Step = TypeVar("Step")

_PIECES = re.compile(r"\S+\s*|\s+")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """One answer. ``fail_with`` is raised after ``fail_after`` deltas (0: before the first), instead of the end."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = field(default_factory=Usage)
    finish_reason: str = ""
    model: str = "scripted"
    replaced_characters: bool = False
    fail_with: BaseException | None = None
    fail_after: int = 0

    def response(self) -> ModelResponse:
        """Return the answer as the stream's end carries it."""
        return ModelResponse(
            text=self.text,
            calls=self.calls,
            usage=self.usage,
            finish_reason=self.finish_reason or ("tool_calls" if self.calls else "stop"),
            model=self.model,
            replaced_characters=self.replaced_characters,
        )


#: A text, calls, an error to raise, or a whole reply; a callable makes one of these from the request.
Script: TypeAlias = str | ToolCall | BaseException | ScriptedReply
ScriptStep: TypeAlias = Script | Callable[[ModelRequest], Script]


class ScriptEnded(AssertionError):
    """The model was called more often than its script has steps."""


class _Watched(Generic[Asked]):
    """What tests see and hold of a scripted model. ``requests`` holds what was asked, in order."""

    def __init__(self) -> None:
        self._released = asyncio.Event()
        self._released.set()
        self._begun = asyncio.Condition()
        self.requests: list[Asked] = []

    def hold(self) -> None:
        """Keep every answer back before it goes on."""
        self._released.clear()

    def release(self) -> None:
        """Let the answers go on."""
        self._released.set()

    async def started(self, calls: int = 1, *, timeout_s: float = 5.0) -> None:
        """Return when ``calls`` calls in all have begun; raise ``TimeoutError`` when they do not."""
        async with asyncio.timeout(timeout_s), self._begun:
            await self._begun.wait_for(lambda: len(self.requests) >= calls)

    async def _enter(self) -> None:
        """Let those who wait for a call look again."""
        async with self._begun:
            self._begun.notify_all()


class ScriptedModel(_Watched[ModelRequest]):
    """Answers call n with step n of ``steps``; a lone callable answers every call.

    Tests wait for signals: :meth:`started` for a call to begin, :meth:`hold` keeps answers back before their next
    event until :meth:`release`. ``cancelled`` counts streams left early.
    """

    def __init__(self, steps: Iterable[ScriptStep] | Callable[[ModelRequest], Script]) -> None:
        super().__init__()
        self._steps: Iterator[ScriptStep] = _forever(steps) if callable(steps) else iter(steps)
        self.cancelled = 0

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Yield the next step's answer, a word at a time; the port's contract holds."""
        reply = self._next_reply(request)
        await self._enter()
        ended = False
        try:
            for count, piece in enumerate(_PIECES.findall(reply.text)):
                await self._released.wait()
                if reply.fail_with is not None and count >= reply.fail_after:
                    break
                yield TextDelta(piece)
            await self._released.wait()
            ended = True
            if reply.fail_with is not None:
                raise reply.fail_with
            yield Finished(reply.response())
        finally:
            self.cancelled += not ended

    def _next_reply(self, request: ModelRequest) -> ScriptedReply:
        self.requests.append(request)
        step = _next_of(self._steps, len(self.requests))
        script = step(request) if callable(step) else step
        match script:
            case str():
                return ScriptedReply(text=script)
            case ToolCall():
                return ScriptedReply(calls=(script,))
            case BaseException():
                return ScriptedReply(fail_with=script)
            case _:
                return script


#: A value of the type asked for, its JSON text, its members, or an error to raise.
StructuredScript: TypeAlias = BaseModel | str | dict[str, Any] | BaseException
StructuredStep: TypeAlias = StructuredScript | Callable[[ModelRequest], StructuredScript]


class ScriptedStructuredModel(_Watched[ModelRequest]):
    """A ``StructuredModel`` that answers call n with step n; a lone callable answers every call.

    Texts and members are read as a provider's answer is: what is not of the type raises ``ModelOutputInvalid``.
    """

    def __init__(self, steps: Iterable[StructuredStep] | Callable[[ModelRequest], StructuredScript]) -> None:
        super().__init__()
        self._steps: Iterator[StructuredStep] = _forever(steps) if callable(steps) else iter(steps)

    async def complete(self, request: ModelRequest, schema: type[T]) -> StructuredAnswer[T]:
        """Return the next step's answer; the port's contract holds."""
        self.requests.append(request)
        step = _next_of(self._steps, len(self.requests))
        script = step(request) if callable(step) else step
        await self._enter()
        await self._released.wait()
        if isinstance(script, BaseException):
            raise script
        if isinstance(script, BaseModel):
            script = script.model_dump_json()
        text = script if isinstance(script, str) else orjson.dumps(script).decode()
        return StructuredAnswer(read_structured(text, schema), Usage(), "scripted")


class ScriptedEmbedder(_Watched[tuple[str, ...]]):
    """An ``Embedder`` whose vectors ``vector_of`` makes: by default of a text's words, so that like texts are near.

    ``failures`` are raised first, one a call.
    """

    def __init__(
        self,
        *,
        dimensions: int = 64,
        revision: str = "1",
        vector_of: Callable[[str], Sequence[float]] | None = None,
        failures: Iterable[BaseException] = (),
    ) -> None:
        super().__init__()
        self._profile = EmbedderProfile("scripted", "words", revision, dimensions)
        self._vector_of = vector_of or self._count_words
        self._failures = iter(failures)

    @property
    def profile(self) -> EmbedderProfile:
        """The identity of the vectors."""
        return self._profile

    async def embed(self, texts: Sequence[str]) -> Embeddings:
        """Return the vectors of ``texts``; the port's contract holds."""
        check_texts(texts)
        self.requests.append(tuple(texts))
        await self._enter()
        await self._released.wait()
        if (failure := next(self._failures, None)) is not None:
            raise failure
        rows = [list(self._vector_of(text)) for text in texts]
        return Embeddings(unit_vectors(rows, count=len(texts), profile=self._profile))

    def _count_words(self, text: str) -> list[float]:
        vector = [0.0] * self._profile.dimensions
        for word in _WORD.findall(text.casefold()) or [text]:
            place = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "big")
            vector[place % len(vector)] += 1.0
        return vector


def _next_of(steps: Iterator[Step], call: int) -> Step:
    try:
        return next(steps)
    except StopIteration:
        raise ScriptEnded(f"call {call} has no step in the script") from None


def _forever(step: Step) -> Iterator[Step]:
    while True:
        yield step

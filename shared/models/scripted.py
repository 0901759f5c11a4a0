"""A ``ChatModel`` in this process that answers from a script: for unit tests, conformance checks and benchmarks."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from shared.models.types import Finished, ModelEvent, ModelRequest, ModelResponse, TextDelta, ToolCall, Usage

_PIECES = re.compile(r"\S+\s*|\s+")


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


class ScriptedModel:
    """Answers call n with step n of ``steps``; a lone callable answers every call.

    Tests wait for signals: :meth:`started` for a call to begin, :meth:`hold` keeps answers back before their next
    event until :meth:`release`. ``requests`` holds every request in order, ``cancelled`` counts streams left early.
    """

    def __init__(self, steps: Iterable[ScriptStep] | Callable[[ModelRequest], Script]) -> None:
        self._steps: Iterator[ScriptStep] = _forever(steps) if callable(steps) else iter(steps)
        self._released = asyncio.Event()
        self._released.set()
        self._begun = asyncio.Condition()
        self.requests: list[ModelRequest] = []
        self.cancelled = 0

    def hold(self) -> None:
        """Keep every answer back before its next event."""
        self._released.clear()

    def release(self) -> None:
        """Let the answers go on."""
        self._released.set()

    async def started(self, calls: int = 1, *, timeout_s: float = 5.0) -> None:
        """Return when ``calls`` calls in all have begun; raise ``TimeoutError`` when they do not."""
        async with asyncio.timeout(timeout_s), self._begun:
            await self._begun.wait_for(lambda: len(self.requests) >= calls)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Yield the next step's answer, a word at a time; the port's contract holds."""
        reply = self._next_reply(request)
        async with self._begun:
            self._begun.notify_all()
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
        try:
            step = next(self._steps)
        except StopIteration:
            raise ScriptEnded(f"call {len(self.requests)} has no step in the script") from None
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


def _forever(step: Callable[[ModelRequest], Script]) -> Iterator[ScriptStep]:
    while True:
        yield step

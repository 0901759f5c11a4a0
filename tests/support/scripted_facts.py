"""A structured model with answers by the user's text, which counts what it was asked and can be made to fail or wait."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TypeVar

from pydantic import BaseModel

from memory_pipeline.remembering.extraction import Extraction, Fact
from shared.domain.errors import TurnkeeperError
from shared.models.structured import StructuredAnswer
from shared.models.types import ModelRequest, Usage, UserMessage

T = TypeVar("T", bound=BaseModel)


def fact(subject: str, statement: str, quote: str) -> Fact:
    """One fact of a model's answer."""
    return Fact(subject=subject, statement=statement, quote=quote)


class ScriptedFacts:
    """Implements :class:`shared.models.structured.StructuredModel`: the facts of a text, none for any other text.

    ``failures`` are raised first, one a call. While ``may_answer`` is cleared, calls wait; ``asked`` holds every text.
    """

    def __init__(self, facts: Mapping[str, Sequence[Fact]] | None = None) -> None:
        self.facts = dict(facts or {})
        self.failures: list[TurnkeeperError] = []
        self.asked: list[str] = []
        self.requests: list[ModelRequest] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def complete(self, request: ModelRequest, schema: type[T]) -> StructuredAnswer[T]:
        last = request.messages[-1]
        text = last.text if isinstance(last, UserMessage) else ""
        self.asked.append(text)
        self.requests.append(request)
        await self.may_answer.wait()
        if self.failures:
            raise self.failures.pop(0)
        answer = Extraction(facts=list(self.facts.get(text, ())))
        return StructuredAnswer(schema.model_validate(answer.model_dump()), Usage(), "scripted")

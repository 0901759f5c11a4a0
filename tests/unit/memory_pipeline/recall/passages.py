"""Passages, sources and documents of a few words, for the tests of this folder."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from memory_pipeline.recall.values import Found, Lookup, RecallSource
from memory_pipeline.store.documents import Attribution, Content, Passage, SourceReference


def attribution(speaker: str = "ann", **given: Any) -> Attribution:
    """Who said something, with ids that are made of the speaker."""
    standard: dict[str, Any] = {
        "origin_id": f"{speaker}:1",
        "speaker": speaker,
        "locator": f"session/{speaker}/records/1",
        "activity_at": 1_000,
        "interpretation": f"{speaker} said so",
    }
    return Attribution(**standard | given)


def content(text: str, *attributions: Attribution, **given: Any) -> Content:
    """A content; one speaker unless given."""
    standard: dict[str, Any] = {"recorded_at": 2_000, "extracted_at": 3_000}
    return Content(text=text, attributions=attributions or (attribution(),), **standard | given)


def passage(
    text: str = "Ann likes tea.",
    *attributions: Attribution,
    source: str = "profile",
    revision: str | None = "1",
    passage_id: str = "document",
    authority: str | None = None,
    **given: Any,
) -> Passage:
    """A passage of one source."""
    return Passage(
        authority=authority,
        source=SourceReference(id=source, locator=f"memory/{source}", revision=revision),
        passage_id=passage_id,
        content=content(text, *attributions, **given),
    )


def reading(lookup: Lookup) -> Callable[[], Awaitable[Lookup]]:
    """A reader that answers at once."""

    async def read() -> Lookup:
        return lookup

    return read


def source_of(
    answer: Lookup | Sequence[Passage], *, name: str = "one", essential: bool = False
) -> RecallSource:
    """A source that answers a lookup, or that it found these passages."""
    lookup = Found(tuple(answer)) if isinstance(answer, Sequence) else answer
    return RecallSource(name, essential, reading(lookup))


class HangingReader:
    """A reader that never answers; ``finished`` says that its finalizer ran."""

    def __init__(self) -> None:
        self.finished = False

    async def __call__(self) -> Lookup:
        try:
            await asyncio.Event().wait()
        finally:
            self.finished = True
        raise AssertionError("nothing sets the event")

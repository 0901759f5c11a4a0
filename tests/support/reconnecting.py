"""Clients that lose their connection wherever a test wants, come back with their cursor, and are judged by the whole."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2

from tests.support.sse import Frame, FrameDecoder

TRIES_MAX = 2_000


@dataclass(slots=True)
class Story:
    """What one client was told over all its connections, by the rules that clients follow.

    A record comes once and in order; a ``reset`` voids the text, a ``snapshot`` replaces it, a ``delta`` adds to it. A
    reset of the cursor (``after``) sets the cursor.
    """

    cursor: str | None = None
    text: str = ""
    records: list[Frame] = field(default_factory=list)
    replies: list[tuple[str | None, str]] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    end: Frame | None = None
    connections: int = 0
    retries: list[int] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        """The seqs of all records, in the order they came."""
        return [int(frame.id) for frame in self.records]

    def of(self, event: str) -> list[dict[str, Any]]:
        """The data of all events of a name."""
        return [frame.data for frame in self.frames if frame.event == event]

    def take(self, frame: Frame) -> bool:
        """Take an event in; say whether it is news: text that is held already says nothing new."""
        before = (self.cursor, self.text, self.end)
        self._take(frame)
        return before != (self.cursor, self.text, self.end)

    def _take(self, frame: Frame) -> None:
        self.frames.append(frame)
        self.cursor = frame.id or self.cursor
        match frame.event:
            case "delta":
                assert frame.data["offset"] == len(self.text), "a delta that does not continue the text"
                self.text += frame.data["text"]
            case "snapshot":
                self.text = frame.data["text"]
            case "reset":
                self.text = ""
            case "end":
                self.end = frame
            case "admitted":
                pass
            case _:
                self._take_record(frame)

    def _take_record(self, frame: Frame) -> None:
        assert frame.id, f"{frame.event} without an id"
        self.records.append(frame)
        if frame.event == "turn.started":
            self.text = ""
        if frame.event == "turn.reply":
            self.replies.append((frame.data.get("text"), self.text))


@asynccontextmanager
async def connected(
    client: httpx2.AsyncClient,
    path: str,
    *,
    method: str = "GET",
    retries: list[int] | None = None,
    **options: Any,
) -> AsyncIterator[AsyncIterator[Frame]]:
    """Open a stream and lend its events; ``retries`` collects the reconnection times that it is told."""

    async def events(response: httpx2.Response) -> AsyncIterator[Frame]:
        decoder = FrameDecoder(retries)
        async for chunk in response.aiter_bytes():
            for frame in decoder.feed(chunk):
                yield frame

    async with client.stream(method, path, **options) as response:
        assert response.status_code == 200, (await response.aread()).decode()
        yield events(response)


async def follow(
    clients: Sequence[httpx2.AsyncClient],
    path: str,
    *,
    cuts: Sequence[int] = (),
    by_query: bool = False,
    is_over: Callable[[Story], object] = lambda story: story.end,
    story: Story | None = None,
) -> Story:
    """Follow a stream until ``is_over``, over the clients by turns.

    The n-th connection is lost after ``cuts[n]`` events that are news, the last number counts for all later ones; 0, as
    without any, is never. A connection that the server ends is followed by the next. The cursor goes as ``?after=`` or ``Last-Event-ID``.
    """
    story = story if story is not None else Story()
    for client, cut in zip(itertools.cycle(clients), _for_ever(cuts), strict=False):
        if is_over(story):
            return story
        assert story.connections < TRIES_MAX, "it never ends"
        story.connections += 1
        where = ("params", "after") if by_query else ("headers", "Last-Event-ID")
        options: dict[str, Any] = {} if story.cursor is None else {where[0]: {where[1]: story.cursor}}
        async with connected(client, path, retries=story.retries, **options) as frames:
            taken = 0
            async for frame in frames:
                taken += story.take(frame)
                if (cut and taken >= cut) or is_over(story):
                    break
    raise AssertionError("not reached")


def _for_ever(cuts: Sequence[int]) -> itertools.chain[int]:
    return itertools.chain(cuts, itertools.repeat(cuts[-1] if cuts else 0))


async def all_of(*stories: Any, within_s: float = 180.0) -> list[Story]:
    """Let clients follow beside each other, for a bounded time."""
    async with asyncio.timeout(within_s):
        return list(await asyncio.gather(*stories))

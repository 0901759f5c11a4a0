"""A follower of one turn: reads its events to the end, over every lost connection and on any producer, and checks them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

import httpx2

from producer.dev.talk import ServerEvent

#: Shorter than a turn may take and longer than the producer's keep-alive comments are apart.
SILENCE_S: Final = 20.0
PAUSE_S: Final = 0.2

_DROPPED: Final = (httpx2.TransportError, httpx2.StreamError)


@dataclass(slots=True, kw_only=True)
class Follower:
    """Follows one turn. ``errors`` names what a reader must never meet; a follower that has not ``ended`` waits still.

    Each record comes once and in order, whichever producer sends it. A reply comes once, and what was streamed of its step
    since the last reset is how it begins: the end of the text may be lost with the live feed, but nothing of it may be wrong.
    """

    turn: str
    urls: Sequence[str]
    http: httpx2.AsyncClient
    rng: Random
    ended: bool = False
    replies: int = 0
    connections: int = 0
    cursor: str | None = None
    errors: list[str] = field(default_factory=list)
    _texts: dict[tuple[int, int], str] = field(default_factory=dict)

    async def run(self) -> None:
        """Follow until the end was seen; a cancellation leaves it unseen."""
        while not self.ended:
            try:
                async for event in self._connect():
                    self.note(event)
            except _DROPPED:
                await asyncio.sleep(PAUSE_S * self.rng.random())

    def note(self, event: ServerEvent) -> None:
        """Take one event and check it against those before."""
        match event.event:
            case "delta" | "snapshot":
                place = (int(event.data["run"]), int(event.data["step"]))
                before = self._texts.get(place, "") if event.event == "delta" else ""
                self._texts[place] = before + str(event.data["text"])
            case "reset":
                self._texts.clear()
            case "end":
                self.ended = True
                if event.data.get("outcome") == "completed" and self.replies != 1:
                    self.errors.append(
                        f"turn {self.turn} completed with {self.replies} replies for its reader"
                    )
            case "problem":
                pass  # the producer cannot go on: the next one can
            case _:
                self._note_record(event)

    async def _connect(self) -> AsyncIterator[ServerEvent]:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": self.cursor} if self.cursor else {})
        url = f"{self.rng.choice(self.urls)}/v1/turns/{self.turn}/events"
        self.connections += 1
        async with self.http.stream("GET", url, headers=headers, timeout=SILENCE_S) as response:
            if not response.is_success:
                await asyncio.sleep(PAUSE_S)
                return
            async for event in httpx2.EventSource(response):
                if event.data:
                    yield ServerEvent(event.event, json.loads(event.data), event.id or None)
                if self.ended:
                    return

    def _note_record(self, event: ServerEvent) -> None:
        if event.id is None:
            self.errors.append(f"turn {self.turn}: a record {event.event} without an id")
            return
        if self.cursor is not None and int(event.id) <= int(self.cursor):
            self.errors.append(f"turn {self.turn}: record {event.id} came after {self.cursor}")
        self.cursor = event.id
        if event.event == "turn.reply":
            self.replies += 1
            streamed = self._texts.get((0, int(event.data.get("step") or 0)), "")
            if not str(event.data.get("text") or "").startswith(streamed):
                self.errors.append(f"turn {self.turn}: what was streamed is not how its reply begins")

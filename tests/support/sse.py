"""Reads server-sent events as their specification says, over a real HTTP client."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx2


@dataclass(frozen=True, slots=True)
class Frame:
    """One event: its own id ("" for none), name and decoded data."""

    id: str
    event: str
    data: Any


class FrameDecoder:
    """Splits the bytes of a stream into its events.

    Unlike a browser's, an event without an id has none here, and ``retries`` keeps what reconnection times were told.
    """

    def __init__(self, retries: list[int] | None = None) -> None:
        self.retries = retries if retries is not None else []
        self._rest = b""
        self._fields: dict[str, str] = {}

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """Yield the events that the next bytes complete."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for raw in lines:
            line = raw.removesuffix(b"\r").decode()
            if not line:
                yield from self._dispatch()
            elif not line.startswith(":"):
                name, _, value = line.partition(":")
                self._take(name, value.removeprefix(" "))

    def _take(self, name: str, value: str) -> None:
        if name == "data" and "data" in self._fields:
            value = f"{self._fields['data']}\n{value}"
        if name == "retry":
            self.retries.append(int(value))
        self._fields[name] = value

    def _dispatch(self) -> Iterator[Frame]:
        fields, self._fields = self._fields, {}
        if "data" in fields:
            yield Frame(fields.get("id", ""), fields.get("event", "message"), json.loads(fields["data"]))


def frames_of(chunks: Iterable[bytes]) -> Iterator[Frame]:
    """Yield the events of a whole stream; comments are passed over, and an event that is cut off counts for nothing."""
    decoder = FrameDecoder()
    for chunk in chunks:
        yield from decoder.feed(chunk)


def read_frames(
    client: httpx2.Client, path: str, *, body: Any = None, last_event_id: str | None = None
) -> list[Frame]:
    """Read a stream to its end; with a body it is POSTed."""
    headers = {"Accept": "text/event-stream"}
    if last_event_id is not None:
        headers["Last-Event-ID"] = last_event_id
    method = "GET" if body is None else "POST"
    with client.stream(method, path, json=body, headers=headers) as answer:
        assert answer.status_code == 200, answer.read().decode()
        return list(frames_of(answer.iter_bytes()))

"""Reads server-sent events as a browser would, over a real HTTP client."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx2


@dataclass(frozen=True, slots=True)
class Frame:
    """One event: its id ("" for none), name and decoded data."""

    id: str
    event: str
    data: Any


def frames_of(lines: Iterable[str]) -> Iterator[Frame]:
    """Yield the events of a stream's lines; comments are passed over."""
    fields: dict[str, str] = {}
    for line in lines:
        if not line:
            if "data" in fields:
                data = json.loads(fields["data"])
                yield Frame(fields.get("id", ""), fields.get("event", "message"), data)
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")


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
        return list(frames_of(answer.iter_lines()))

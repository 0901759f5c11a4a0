"""Reading a producer's event stream as its clients do."""

from __future__ import annotations

import json

import httpx2

from producer.dev.talk import ServerEvent, read_events


def test_text_with_every_kind_of_line_end_stays_one_event() -> None:
    text = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg"
    data = json.dumps({"text": text}, ensure_ascii=False)
    body = f": open\n\nid: 3\nevent: turn.reply\ndata: {data}\n\nretry: 1000\n\nevent: end\ndata: {{}}\n\n"
    response = httpx2.Response(
        200,
        headers={"Content-Type": "text/event-stream; charset=utf-8"},
        content=body.encode(),
        request=httpx2.Request("GET", "http://here"),
    )
    assert list(read_events(response)) == [
        ServerEvent("turn.reply", {"text": text}, "3"),
        ServerEvent("end", {}, "3"),
    ]

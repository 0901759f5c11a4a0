"""What the SSE projection lets out, and how its response behaves towards readers, slow ones and a closing process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import pytest

from producer.sse import CHUNK_BYTES, EventStream, project
from producer.traffic import Closing
from shared.domain.errors import CorruptRecord
from shared.domain.ids import SessionId, new_turn_id
from shared.feed.entries import (
    DeltaEvent,
    EndEvent,
    FollowEvent,
    RecordEvent,
    ResetEvent,
    SnapshotEvent,
)
from shared.feed.follow import Events
from shared.sessions.records import Record, draft
from shared.sessions.vocabulary import (
    CLIENT_KINDS,
    JOURNAL_KINDS,
    SCHEMAS,
    TurnStarted,
    UserMessage,
    draft_of,
)
from tests.support.following import Frame, frames_of

SECRET = "s3cr3t"


def record(kind: str, data: dict[str, Any], *, seq: int = 7) -> RecordEvent:
    made = draft(kind, data)
    return RecordEvent(
        Record(SessionId("ses_1"), seq, 3, kind, datetime(2026, 1, 2, tzinfo=UTC), made.text, made.digest)
    )


def frame(event: FollowEvent, **options: str) -> Frame:
    sent = project(event, **options)
    assert sent is not None
    [found] = frames_of(sent.decode())
    return found


@pytest.mark.behaviour("API-05")
def test_a_record_is_named_by_its_seq_and_kind_and_holds_its_payload() -> None:
    shown = frame(record("turn.reply", {"outcome": "completed", "text": 'a\n"b"\u2028', "v": 1}))
    assert (shown.id, shown.event) == (7, "turn.reply")
    assert shown.data == {
        "seq": 7,
        "turn": 3,
        "at": "2026-01-02T00:00:00+00:00",
        "outcome": "completed",
        "text": 'a\n"b"\u2028',
        "v": 1,
    }


def test_no_payload_of_ours_has_a_field_that_the_frame_puts_before_it() -> None:
    fields = {
        name for kind, schema in SCHEMAS.items() if kind in CLIENT_KINDS for name in schema.model_fields
    }
    assert not fields & {"seq", "turn", "at"}


@pytest.mark.behaviour("API-05")
def test_text_resets_and_the_end_carry_no_id() -> None:
    turn_id = new_turn_id()
    shown = [
        frame(event)
        for event in (
            DeltaEvent(3, 0, 1, 2, "hé\n\nid: 9"),
            SnapshotEvent(3, 0, 1, "hé"),
            ResetEvent("attempt", 3, 0, 1),
            EndEvent("ended", turn_id, "failed", "model.unavailable"),
        )
    ]
    assert shown == [
        Frame("delta", {"turn": 3, "run": 0, "step": 1, "offset": 2, "text": "hé\n\nid: 9"}, None),
        Frame("snapshot", {"turn": 3, "run": 0, "step": 1, "text": "hé"}, None),
        Frame("reset", {"reason": "attempt", "turn": 3, "run": 0, "step": 1}, None),
        Frame(
            "end",
            {"status": "ended", "turn_id": str(turn_id), "outcome": "failed", "code": "model.unavailable"},
            None,
        ),
    ]


@pytest.mark.behaviour("API-05")  # field case D07
def test_a_reset_of_the_cursor_says_where_the_whole_state_is() -> None:
    shown = frame(ResetEvent("cursor", after=4), snapshot_url="/v1/sessions/ses_1")
    assert shown.data == {"reason": "cursor", "after": 4, "snapshot": "/v1/sessions/ses_1"}
    # A reader that is cut off before the next record comes back with this id, not with the one that was no cursor.
    assert shown.id == 4
    assert "snapshot" not in frame(ResetEvent("gap", 1, 0, 0), snapshot_url="/v1/sessions/ses_1").data


@pytest.mark.behaviour("FOL-09", "FOL-10", "FOL-12")
def test_no_kind_that_may_hold_prompts_or_tool_data_is_shown() -> None:
    payload = {"x": SECRET, "user_message": {}, "origin": "user"}
    shown = {kind: project(record(kind, payload)) for kind in JOURNAL_KINDS}
    hidden = {kind for kind, sent in shown.items() if sent is None}
    assert hidden == JOURNAL_KINDS - CLIENT_KINDS
    assert {"request.prepared", "step.response", "memory.message", "memory.tool-result"} <= hidden
    assert project(record("host.note", {"x": SECRET})) is None
    unknown = {kind: sent for kind, sent in shown.items() if sent is not None and kind not in SCHEMAS}
    assert unknown and not any(SECRET.encode() in sent for sent in unknown.values())


@pytest.mark.behaviour("FOL-09")
def test_a_failure_text_stays_on_the_server_and_its_code_goes() -> None:
    ended = {"code": "model.invalid", "failure": SECRET, "reason": "failed", "v": 1}
    assert frame(record("turn.ended", ended)).data == {
        "seq": 7,
        "turn": 3,
        "at": "2026-01-02T00:00:00+00:00",
        "code": "model.invalid",
        "reason": "failed",
        "v": 1,
    }


def started_by(origin: Literal["user", "inbox", "task"], **fields: Any) -> dict[str, Any]:
    made = TurnStarted(
        turn_id=str(new_turn_id()),
        run_id="r",
        entry="r:0",
        origin=origin,
        user_message=UserMessage(text="hello"),
        **fields,
    )
    data: dict[str, Any] = json.loads(draft_of(made).text)
    return data


@pytest.mark.behaviour("FOL-09")
def test_what_a_user_wrote_is_shown_and_what_a_model_or_a_tool_wrote_into_a_turn_is_not() -> None:
    given = {"key": "k", "command": {"name": "retry", "n": 10**30}, "meta": {"origin": "user"}}
    own = frame(record("turn.started", started_by("user", **given))).data
    assert own["user_message"] == {"text": "hello"}
    assert {name: own[name] for name in given} == given
    for origin in ("inbox", "task"):
        assert frame(record("turn.started", started_by(origin, **given))).data["user_message"] == {}


@pytest.mark.behaviour("FOL-11")
def test_image_data_of_a_message_stays_on_the_server() -> None:
    started = TurnStarted(
        turn_id=str(new_turn_id()),
        run_id="r",
        entry="r:0",
        origin="user",
        user_message=UserMessage(
            text="look",
            attachments=[
                {"type": "image", "media_type": "image/png", "data": SECRET, "source": {"data": SECRET}},
                {"type": {"nested": SECRET}},
            ],
        ),
    )
    sent = project(record("turn.started", json.loads(draft_of(started).text)))
    assert sent is not None and SECRET.encode() not in sent
    [shown] = frames_of(sent.decode())
    assert shown.data["user_message"] == {
        "text": "look",
        "attachments": [{"type": "image", "media_type": "image/png"}, {}],
    }


Message = MutableMapping[str, Any]


@dataclass
class Browser:
    """An ASGI client: ``accept`` decides how fast it takes what is sent."""

    accept: Callable[[], Awaitable[None]]
    body: bytes = b""
    headers: dict[bytes, bytes] = field(default_factory=dict)
    is_complete: bool = False
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.headers = dict(message["headers"])
            return
        if message["body"] not in (b"", b": open\n\n"):
            await self.accept()
        self.body += message["body"]
        self.is_complete = not message["more_body"]
        self.news.set()

    async def until(self, part: bytes) -> None:
        async with asyncio.timeout(5):
            while part not in self.body:
                self.news.clear()
                await self.news.wait()

    def run(self, response: EventStream) -> asyncio.Task[None]:
        return asyncio.create_task(response({"type": "http"}, self.receive, self.send))


async def at_once() -> None:
    pass


async def never() -> None:
    await asyncio.Event().wait()


class Source:
    """Events that a test lets out one by one, or some together; it knows whether it was closed."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[FollowEvent | list[FollowEvent] | Exception | None] = asyncio.Queue()
        self.taken = 0
        self.is_closed = False

    async def events(self) -> Events:
        try:
            while (event := await self.queue.get()) is not None:
                self.taken += 1
                if isinstance(event, Exception):
                    raise event
                yield event if isinstance(event, list) else [event]
        finally:
            self.is_closed = True


async def test_a_stream_that_ends_completes_the_response() -> None:
    source, browser = Source(), Browser(at_once)
    for event in (record("turn.ended", {"reason": "completed"}), EndEvent("ended", None), None):
        source.queue.put_nowait(event)
    await browser.run(EventStream(source.events()))
    assert [f.event for f in frames_of(browser.body.decode())] == ["turn.ended", "end"]
    assert browser.is_complete and source.is_closed
    assert browser.headers[b"content-type"].startswith(b"text/event-stream")
    assert browser.headers[b"cache-control"] == b"no-store"
    assert b"content-length" not in browser.headers


async def test_events_that_are_ready_together_leave_in_one_piece() -> None:
    pieces = 0

    async def count() -> None:
        nonlocal pieces
        pieces += 1

    source, browser = Source(), Browser(count)
    source.queue.put_nowait([record("step.started", {}, seq=n) for n in range(1, 9)])
    task = browser.run(EventStream(source.events()))
    await browser.until(b"id: 8")
    assert pieces == 1
    source.queue.put_nowait(record("step.started", {}, seq=9))
    await browser.until(b"id: 9")
    assert pieces == 2
    source.queue.put_nowait(None)
    await asyncio.wait_for(task, 5)
    assert [f.id for f in frames_of(browser.body.decode())] == list(range(1, 10))


@pytest.mark.behaviour("API-05")
async def test_a_silent_stream_is_kept_open_by_comments() -> None:
    source, browser = Source(), Browser(at_once)
    task = browser.run(EventStream(source.events(), keep_alive_s=0.01))
    await browser.until(b": ping\n\n: ping\n\n")
    assert frames_of(browser.body.decode()) == []
    source.queue.put_nowait(None)
    await asyncio.wait_for(task, 5)


@pytest.mark.behaviour("API-15")
async def test_a_closing_process_ends_the_stream_with_a_hint_when_to_come_back() -> None:
    source, browser, closing = Source(), Browser(at_once), Closing()
    task = browser.run(EventStream(source.events(), closing=closing))
    source.queue.put_nowait(record("step.started", {}))
    await browser.until(b"step.started")
    closing.set()
    await asyncio.wait_for(task, 5)
    assert browser.body.endswith(b"\n\nretry: 1000\n\n")
    assert browser.is_complete and source.is_closed


async def test_a_stream_that_begins_in_a_closing_process_ends_with_the_hint() -> None:
    source, browser, closing = Source(), Browser(at_once), Closing()
    closing.set()
    await asyncio.wait_for(browser.run(EventStream(source.events(), closing=closing)), 5)
    assert browser.body == b": open\n\nretry: 1000\n\n"
    assert browser.is_complete and source.is_closed


async def test_an_open_stream_is_its_own_task_and_one_that_waits_for_its_reader_to_leave() -> None:
    source, browser = Source(), Browser(at_once)
    before = asyncio.all_tasks()
    task = browser.run(EventStream(source.events()))
    source.queue.put_nowait(record("step.started", {}))
    await browser.until(b"step.started")
    assert {one.get_name() for one in asyncio.all_tasks() - before - {task}} == {"sse-reader"}
    source.queue.put_nowait(None)
    await asyncio.wait_for(task, 5)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_the_last_events_and_the_end_of_the_response_leave_in_one_piece() -> None:
    source, browser = Source(), Browser(at_once)
    sent = list[tuple[bytes, bool]]()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            sent.append((message["body"], message["more_body"]))

    source.queue.put_nowait([record("turn.ended", {"reason": "completed"}), EndEvent("ended", None)])
    await asyncio.wait_for(EventStream(source.events())({"type": "http"}, browser.receive, send), 5)
    assert [more for _, more in sent] == [True, False]
    assert [f.event for f in frames_of(sent[1][0].decode())] == ["turn.ended", "end"]


async def test_a_cancellation_from_outside_goes_on() -> None:
    source, browser = Source(), Browser(at_once)
    task = browser.run(EventStream(source.events()))
    await browser.until(b": open")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert source.is_closed and not browser.is_complete


async def test_a_reader_that_leaves_ends_what_its_stream_holds() -> None:
    source, browser = Source(), Browser(at_once)
    task = browser.run(EventStream(source.events()))
    await browser.until(b": open")
    browser.gone.set()
    await asyncio.wait_for(task, 5)
    assert source.is_closed and not browser.is_complete


@pytest.mark.behaviour("FOL-15")  # field case D08
async def test_a_reader_that_takes_nothing_is_dropped_and_nothing_piles_up_for_it() -> None:
    source, browser = Source(), Browser(never)
    size = CHUNK_BYTES // 4
    for n in range(100):
        source.queue.put_nowait(record("step.started", {"x": "x" * size}, seq=n))
    await asyncio.wait_for(browser.run(EventStream(source.events(), stall_s=0.05)), 5)
    assert source.is_closed and not browser.is_complete
    assert source.taken * size <= CHUNK_BYTES


@pytest.mark.behaviour("FOL-15")  # field case D08
async def test_a_reader_that_takes_no_keep_alive_is_dropped_too() -> None:
    source, browser = Source(), Browser(never)
    response = EventStream(source.events(), stall_s=0.05, keep_alive_s=0.01)
    await asyncio.wait_for(browser.run(response), 5)
    assert source.is_closed and not browser.is_complete


async def test_no_hint_follows_an_event_that_was_cut_off() -> None:
    pieces = 0

    async def one_piece() -> None:
        nonlocal pieces
        pieces += 1
        if pieces > 1:
            await never()

    source, browser, closing = Source(), Browser(one_piece), Closing()
    source.queue.put_nowait(record("turn.reply", {"text": "x" * 200_000}))
    task = browser.run(EventStream(source.events(), closing=closing))
    await browser.until(b"x" * 1_000)
    closing.set()
    await asyncio.wait_for(task, 5)
    assert b"retry:" not in browser.body
    assert frames_of(browser.body.decode()) == []


async def test_trouble_of_ours_is_told_by_its_code_and_a_defect_is_raised() -> None:
    source, browser = Source(), Browser(at_once)
    source.queue.put_nowait(CorruptRecord("a record does not decode", session="ses_1", seq=3))
    await browser.run(EventStream(source.events()))
    [shown] = frames_of(browser.body.decode())
    assert (shown.event, shown.data["code"], browser.is_complete) == ("problem", "session.decode", True)
    broken = Source()
    broken.queue.put_nowait(RuntimeError("boom"))
    with pytest.raises(RuntimeError, match="boom"):
        await Browser(at_once).run(EventStream(broken.events()))
    assert broken.is_closed

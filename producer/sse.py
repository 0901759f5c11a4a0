"""The SSE projection: what a follower's events look like on the wire, and the response that carries them (API-04 to 06).

``id:`` is a record's seq and ``event:`` its kind; ``data:`` is the stored payload with ``seq``, ``turn`` and ``at`` before
it. Prompts, tool input and output, memory, image data, failure texts and the contents of inbox items never leave (FOL-09 to
11); what a user wrote does, so that each of his devices can show it. Text has no id: ``delta`` adds to what the reader holds, ``snapshot`` replaces it,
``reset`` voids it. A ``reset`` of the reader's cursor has the id of the record that it goes on from. ``end`` is the last
event of a turn's stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, assert_never

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from producer.traffic import Closing
from shared.domain.canonical import canonical_json
from shared.domain.errors import TurnkeeperError
from shared.feed.entries import (
    DeltaEvent,
    EndEvent,
    FollowEvent,
    RecordEvent,
    ResetEvent,
    SnapshotEvent,
)
from shared.feed.follow import Events
from shared.sessions.records import Record
from shared.sessions.vocabulary import CLIENT_KINDS, SCHEMAS

RETRY_MS: Final = 1_000
#: The most that is handed to the server at once, so that its buffer for a slow reader stays bounded.
CHUNK_BYTES: Final = 64 * 1024

#: What may be shown of an attachment: never its data, whatever it is called.
ATTACHMENT_FIELDS: Final = frozenset({"id", "type", "kind", "media_type", "name", "size", "bytes", "digest"})

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}


def project(event: FollowEvent, *, snapshot_url: str | None = None) -> bytes | None:
    """Return the frame of an event, or None for a record that clients do not see.

    ``snapshot_url`` is where a reader finds the whole state; it is named in a ``reset`` of its cursor (D07).
    """
    match event:
        case RecordEvent(record):
            return _record_frame(record)
        case DeltaEvent(turn, run, step, offset, text):
            return _frame("delta", {"turn": turn, "run": run, "step": step, "offset": offset, "text": text})
        case SnapshotEvent(turn, run, step, text):
            return _frame("snapshot", {"turn": turn, "run": run, "step": step, "text": text})
        case ResetEvent(reason, turn, run, step, after):
            url = snapshot_url if after is not None else None
            fields = {"turn": turn, "run": run, "step": step, "after": after, "snapshot": url}
            # With an id: one that comes back before the next record must not bring the bad cursor again.
            return _frame("reset", {"reason": reason} | _present(fields), id_=after)
        case EndEvent(status, turn_id, outcome, code):
            about = {"turn_id": turn_id and str(turn_id), "outcome": outcome, "code": code}
            return _frame("end", {"status": status} | _present(about))
        case _:
            assert_never(event)


class EventStream(Response):
    """Sends a follower's events until they end, the reader leaves or falls behind, or the process closes.

    ``keep_alive_s``: a comment after so much silence. ``stall_s``: a reader that takes nothing for so long is dropped; it
    comes back by its cursor, and nothing but this response waited for it (D08). ``closing``: when it is set the stream ends
    with a ``retry:`` hint (API-15). ``first`` is a frame before all others. The events are closed in every case.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: Events,
        *,
        keep_alive_s: float = 15.0,
        stall_s: float = 30.0,
        closing: Closing | None = None,
        snapshot_url: str | None = None,
        first: bytes = b"",
        headers: Mapping[str, str] | None = None,
        status_code: int = 200,
    ) -> None:
        self.status_code = status_code
        self._first = first
        self.background = None
        self.init_headers(_HEADERS | dict(headers or {}))
        self._events = events
        self._keep_alive_s = keep_alive_s
        self._stall_s = stall_s
        self._closing = closing if closing is not None else Closing()
        self._snapshot_url = snapshot_url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the response. Raises what is no error of ours; those are told to the reader."""
        stop = _Stop()
        line = _Line(send, self._stall_s, stop.ask)
        attendant = asyncio.create_task(self._attend(receive, line), name="sse-reader")
        attendant.add_done_callback(lambda _: stop.ask())
        try:
            with stop:
                self._closing.add_callback(stop.ask)
                await line.open(self.status_code, self.raw_headers, self._first)
                await self._pump(line)
            if stop.was_asked and self._closing.is_set() and not (line.is_stalled or attendant.done()):
                with stop:
                    await line.close(b"retry: %d\n\n" % RETRY_MS)
        finally:
            # Who leaves without the end makes the server drop the connection.
            self._closing.remove_callback(stop.ask)
            attendant.cancel()
            await self._events.aclose()

    async def _pump(self, line: _Line) -> None:
        """Send what is ready together in one piece; what is much, in pieces that are taken one after the other."""
        try:
            async for ready in self._events:
                frames = bytearray()
                for event in ready:
                    frames += project(event, snapshot_url=self._snapshot_url) or b""
                    if len(frames) >= CHUNK_BYTES:
                        await line.send(bytes(frames))
                        frames.clear()
                if isinstance(ready[-1], EndEvent):
                    await line.close(bytes(frames))
                    return
                if frames:
                    await line.send(bytes(frames))
            last = b""
        except TurnkeeperError as error:
            last = _frame("problem", {"code": error.code, "title": error.title})
        await line.close(last)

    async def _attend(self, receive: Receive, line: _Line) -> None:
        """Return when the reader is gone; until then fill its silence."""
        quiet_s = self._keep_alive_s
        while True:
            try:
                async with asyncio.timeout(quiet_s):
                    if (await receive())["type"] == "http.disconnect":
                        return
            except TimeoutError:
                quiet_s = await line.fill_silence(self._keep_alive_s)


class _Stop:
    """A block of one task that others may end, from a callback and at its next wait; outside of it they end nothing."""

    def __init__(self) -> None:
        self.was_asked = False
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0

    def ask(self) -> None:
        """End the block. Nothing happens the second time, or when it is left."""
        task, self._task = self._task, None
        if task is not None:
            self.was_asked = True
            task.cancel()

    def __enter__(self) -> None:
        self._task = task = _current_task()
        self._cancelling = task.cancelling()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._task is not None:
            self._task = None
            return False
        # As asyncio.timeout does: a cancellation that is not ours goes on.
        return _current_task().uncancel() <= self._cancelling and kind is asyncio.CancelledError


class _Line:
    """The way to the reader: whole frames, one piece after the other.

    A piece is taken within ``stall_s`` seconds. Otherwise ``give_up`` is called, which ends whoever sends, and nothing is sent
    any more: an event that was cut off counts for nothing.
    """

    def __init__(self, send: Send, stall_s: float, give_up: Callable[[], None]) -> None:
        self.is_stalled = False
        self._send = send
        self._stall_s = stall_s
        self._give_up = give_up
        self._turn = asyncio.Lock()
        self._is_torn = False
        self._loop = asyncio.get_running_loop()
        self._sent_at = self._loop.time()

    async def open(self, status: int, headers: list[tuple[bytes, bytes]], first: bytes) -> None:
        """Send the headers, a first frame if there is one, and a comment, so that proxies pass them on."""
        async with self._turn:
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
            await self._send_pieces(first + b": open\n\n")

    async def send(self, frames: bytes) -> None:
        """Send whole frames; return when the reader has taken them."""
        async with self._turn:
            await self._send_pieces(frames)

    async def fill_silence(self, keep_alive_s: float) -> float:
        """Send a comment after so much silence; return for how many seconds there is nothing to do."""
        if self._turn.locked():
            return keep_alive_s  # whoever sends waits for the reader: that is no silence
        left_s = self._sent_at + keep_alive_s - self._loop.time()
        if left_s > 0:
            return left_s
        await self.send(b": ping\n\n")
        return keep_alive_s

    async def close(self, frames: bytes = b"") -> None:
        """Send whole frames and end the response in order."""
        async with self._turn:
            await self._send_pieces(frames, more=False)

    async def _send_pieces(self, frames: bytes, *, more: bool = True) -> None:
        if self._is_torn:
            return
        end = len(frames) - CHUNK_BYTES
        start = 0
        while start < end:
            # What is cut off in the middle may have cut an event.
            self._is_torn = True
            await self._send_body(frames[start : start + CHUNK_BYTES], more=True)
            start += CHUNK_BYTES
        self._is_torn = False
        await self._send_body(frames[start:] if start else frames, more=more)

    async def _send_body(self, body: bytes, *, more: bool) -> None:
        watch = self._loop.call_later(self._stall_s, self._stall)
        try:
            await self._send({"type": "http.response.body", "body": body, "more_body": more})
        finally:
            watch.cancel()
        self._sent_at = self._loop.time()

    def _stall(self) -> None:
        self.is_stalled = True
        self._give_up()


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


def _record_frame(record: Record) -> bytes | None:
    if record.kind not in CLIENT_KINDS:
        return None
    text = _shown_text(record)
    turn = "null" if record.turn is None else str(record.turn)
    about = f'{{"seq":{record.seq},"turn":{turn},"at":"{record.at.isoformat()}"'
    rest = "}" if text == "{}" else f",{text[1:]}"
    return f"id: {record.seq}\nevent: {record.kind}\ndata: {about}{rest}\n\n".encode()


def _shown_text(record: Record) -> str:
    """Return what of a payload leaves, as JSON; most payloads are sent as they are stored, without decoding them."""
    match record.kind:
        case "turn.started":
            return canonical_json(_without_prompts(record.data))
        case "turn.ended" if '"failure"' in record.text:
            return canonical_json({k: v for k, v in record.data.items() if k != "failure"})
        case "inbox.queued":
            # Whoever delivered it, a page cannot know it for what its user wrote.
            return canonical_json({k: v for k, v in record.data.items() if k != "content"})
        case kind if kind not in SCHEMAS:
            return "{}"  # nobody has said yet what of it may be shown
        case _:
            return record.text


def _without_prompts(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a ``turn.started`` payload without what a model or a tool wrote into it, and without media (FOL-09, 11)."""
    message = dict(data["user_message"])
    if data.get("origin") != "user":
        message.pop("text", None)
    if message.get("attachments"):
        message["attachments"] = [
            {k: v for k, v in a.items() if k in ATTACHMENT_FIELDS and isinstance(v, str | int)}
            for a in message["attachments"]
        ]
    return {**data, "user_message": message}


def _present(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _frame(event: str, data: Mapping[str, Any], *, id_: int | None = None) -> bytes:
    number = b"" if id_ is None else b"id: %d\n" % id_
    return b"%sevent: %s\ndata: %s\n\n" % (number, event.encode(), orjson.dumps(data))

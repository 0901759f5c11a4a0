"""A reader of a stream as a client would be one, and the moves of a worker that it follows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import assert_never

from shared.domain.ids import OwnerId, SessionId, TurnId, WorkerId, new_run_id, new_session_id, new_turn_id
from shared.feed.entries import (
    DeltaEvent,
    EndEvent,
    FollowEvent,
    RecordEvent,
    ResetEvent,
    SnapshotEvent,
)
from shared.feed.follow import Events, Following
from shared.feed.port import ChangeHints, FeedReader
from shared.feed.watcher import SessionWatcher
from shared.sessions.log import NewSession, SessionLog
from shared.sessions.records import Record
from shared.sessions.vocabulary import (
    MemoryMessage,
    Payload,
    StepEnded,
    StepStarted,
    TurnEnded,
    TurnReply,
    TurnStarted,
    UserMessage,
    draft_of,
)
from shared.turns.queue import (
    Admission,
    AdmissionLimits,
    Claim,
    ClaimRequest,
    Ending,
    OnWorkerLoss,
    Receipt,
    TurnQueue,
)

OWNER = OwnerId("ann")
WORKER = WorkerId("turns@here:1:1:aa")


@dataclass(slots=True)
class Reader:
    """Follows the rule of the stream: a reset voids, a snapshot replaces, a delta adds. Survives its connections."""

    text: str = ""
    records: list[Record] = field(default_factory=list)
    events: list[FollowEvent] = field(default_factory=list)
    replies: list[tuple[str | None, str]] = field(default_factory=list)
    texts_after_reply: int = 0
    end: EndEvent | None = None

    @property
    def cursor(self) -> int:
        """What it would send as ``Last-Event-ID``."""
        return self.records[-1].seq if self.records else 0

    @property
    def kinds(self) -> list[str]:
        """The kinds of all records, in order."""
        return [record.kind for record in self.records]

    def of(self, kind: type[FollowEvent]) -> list[FollowEvent]:
        """The events of one type."""
        return [event for event in self.events if isinstance(event, kind)]

    def take(self, event: FollowEvent) -> None:
        """Take an event in."""
        self.events.append(event)
        match event:
            case RecordEvent(record):
                self._take_record(record)
            case DeltaEvent(text=text):
                self._take_text(self.text + text)
            case SnapshotEvent(text=text):
                self._take_text(text)
            case ResetEvent():
                self._take_text("")
            case EndEvent():
                self.end = event
            case _:
                assert_never(event)

    def _take_record(self, record: Record) -> None:
        self.records.append(record)
        if record.kind == "turn.started":
            self.text = ""
        if record.kind == "turn.reply":
            self.replies.append((record.data.get("text"), self.text))

    def _take_text(self, text: str) -> None:
        self.text = text
        self.texts_after_reply += bool(self.records) and self.records[-1].kind == "turn.reply"


@dataclass(slots=True)
class Connection:
    """A reader that reads in the background."""

    reader: Reader
    task: asyncio.Task[None]
    news: asyncio.Event

    async def until(self, holds: Callable[[Reader], object], *, within_s: float = 30.0) -> Reader:
        """Wait until the reader is as wanted, for a bounded time; the reader's own failure is raised."""
        async with asyncio.timeout(within_s):
            while not holds(self.reader):
                self.news.clear()
                if self.task.done():
                    self.task.result()
                    break
                await self.news.wait()
        return self.reader

    async def until_text(self, text: str, *, within_s: float = 30.0) -> Reader:
        """Wait until the reader holds this text."""
        return await self.until(lambda reader: reader.text == text, within_s=within_s)

    async def until_replies(self, count: int) -> Reader:
        """Wait until so many replies came."""
        return await self.until(lambda reader: len(reader.replies) == count)

    async def ended(self, *, within_s: float = 30.0) -> Reader:
        """Wait for the end of the stream."""
        async with asyncio.timeout(within_s):
            await self.task
        return self.reader

    async def drop(self) -> Reader:
        """Go away, as a client whose connection breaks."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        return self.reader


def connect(events: Events, reader: Reader | None = None) -> Connection:
    """Read events in the background; ``reader`` is one that was connected before."""
    reader = reader if reader is not None else Reader()
    news = asyncio.Event()

    async def read() -> None:
        try:
            async with aclosing(events):
                async for ready in events:
                    for event in ready:
                        reader.take(event)
                    news.set()
        finally:
            news.set()

    return Connection(reader, asyncio.create_task(read()), news)


async def one_by_one(events: Events) -> AsyncGenerator[FollowEvent, None]:
    """Yield each event by itself."""
    async with aclosing(events):
        async for ready in events:
            for event in ready:
                yield event


@dataclass(slots=True)
class FollowWorld:
    """A session log, a turn queue and a feed, with followers of one producer process over them."""

    log: SessionLog
    queue: TurnQueue
    hints: ChangeHints | None
    feed: FeedReader | None
    watcher: SessionWatcher
    following: Following

    @classmethod
    def over(
        cls,
        log: SessionLog,
        queue: TurnQueue,
        *,
        feed: FeedReader | None = None,
        hints: ChangeHints | None = None,
        poll_s: float = 0.05,
        kinds: frozenset[str] | None = None,
    ) -> FollowWorld:
        """Put a producer's followers over these parts; open its watcher before use."""
        watcher = SessionWatcher(log, queue, hints=hints, poll_s=poll_s, kinds=kinds)
        return cls(log, queue, hints, feed, watcher, Following(log, queue, watcher, feed))

    async def session(self) -> SessionId:
        """Make a session."""
        session_id = new_session_id()
        await self.log.create(NewSession(session_id, OWNER))
        return session_id

    async def admit(self, session_id: SessionId, *, on_worker_loss: OnWorkerLoss = "continue") -> Receipt:
        """Admit a turn."""
        admission = Admission(
            new_turn_id(),
            new_run_id(),
            session_id,
            OWNER,
            {"text": "hello"},
            on_worker_loss=on_worker_loss,
        )
        return await self.queue.admit(admission, AdmissionLimits())

    async def claim(self, *, worker: WorkerId = WORKER, lease_s: float = 30.0) -> Claim:
        """Claim the one turn that is ready."""
        [claim] = await self.queue.claim(ClaimRequest(worker, 1, lease_s=lease_s))
        return claim

    async def open(self, claim: Claim) -> None:
        """Open it: its first records."""
        started = TurnStarted(
            turn_id=str(claim.turn_id),
            run_id=claim.run_id,
            entry=f"{claim.run_id}:0",
            origin="user",
            user_message=UserMessage(text="hello"),
        )
        drafts = [draft_of(started), draft_of(StepStarted(run=0, step=0))]
        await self.queue.open(claim, f"{claim.fence.token}:open", drafts)
        self.tell(claim)

    async def append(self, claim: Claim, name: str, *payloads: Payload) -> None:
        """Commit records of the turn."""
        await self.queue.append(claim, f"{claim.fence.token}:{name}", [draft_of(p) for p in payloads])
        self.tell(claim)

    async def finish_step(self, claim: Claim, step: int, text: str) -> None:
        """Commit a whole step and the start of the next one."""
        await self.append(
            claim,
            f"step-{step}",
            message_of(claim.run_id, step, text),
            StepEnded(run=0, step=step, status="completed"),
            StepStarted(run=0, step=step + 1),
        )

    async def reply(self, claim: Claim, text: str, *, step: int = 0) -> None:
        """Commit the reply and end the turn."""
        payloads = closing_of(claim.run_id, step, text)
        drafts = [draft_of(p) for p in payloads]
        await self.queue.end(claim, f"{claim.fence.token}:end", drafts, Ending("completed"))
        self.tell(claim)

    def tell(self, claim: Claim) -> None:
        """Publish the hint that follows a commit."""
        if self.hints is not None:
            self.hints.publish_change(claim.session_id)

    async def follow(
        self, turn_id: TurnId, reader: Reader | None = None, *, after: int | None = None
    ) -> Connection:
        """Follow a turn; a reader that comes back brings its cursor, unless ``after`` is another."""
        cursor = after if reader is None or after is not None else reader.cursor
        return connect(await self.following.follow_turn(turn_id, OWNER, after=cursor), reader)

    async def follow_session(
        self, session_id: SessionId, reader: Reader | None = None, *, after: int = 0
    ) -> Connection:
        """Follow a session; a reader that comes back brings its cursor."""
        cursor = reader.cursor if reader is not None else after
        return connect(await self.following.follow_session(session_id, OWNER, after=cursor), reader)


def message_of(run_id: str, step: int, text: str) -> MemoryMessage:
    """An assistant message of a step."""
    return MemoryMessage(entry=f"{run_id}:{step + 1}", run_id=run_id, run=0, step=step, text=text)


def closing_of(run_id: str, step: int, text: str) -> list[Payload]:
    """The records that close a turn with a reply of this step."""
    return [
        message_of(run_id, step, text),
        StepEnded(run=0, step=step, status="completed"),
        TurnReply(outcome="completed", text=text, step=step),
        TurnEnded(reason="completed"),
    ]


@dataclass(frozen=True, slots=True)
class Frame:
    """An SSE event as a client reads it."""

    event: str
    data: dict[str, object]
    id: int | None


def frames_of(stream: str) -> list[Frame]:
    """Return the whole events of an SSE body; comments, retry lines and an unfinished event count for nothing."""
    frames = []
    for block in stream.split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
        if "event" in fields:
            number = int(fields["id"]) if "id" in fields else None
            frames.append(Frame(fields["event"], json.loads(fields["data"]), number))
    return frames

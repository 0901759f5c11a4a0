"""Event streams over HTTP: the same request, resuming, other replicas, and readers that leave."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx2
import pytest

from producer.admission import admit_turn
from producer.routes.streams import answer_with_events
from producer.wire import TurnRequest, admission_answer
from shared.domain.errors import StoreUnavailable
from shared.domain.ids import OwnerId, SessionId, TurnId
from shared.feed.follow import Following
from shared.feed.merge import MERGE_KINDS
from shared.feed.port import ChangeHints, FeedWriter
from shared.feed.redis import RedisFeed
from shared.feed.watcher import SessionWatcher
from shared.sessions.vocabulary import CLIENT_KINDS
from shared.turns.postgres import PostgresTurnQueue
from shared.turns.queue import TurnView
from tests.support.producers import (
    WORKER,
    calling,
    claim_turn,
    create_session,
    end_turn,
    open_turn,
    running_producer,
)
from tests.support.sse import Frame, FrameDecoder, frames_of
from tests.support.waiting import await_until

WITHIN_S = 30.0


class Reader:
    """Reads one event stream as it comes."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self.decoder = FrameDecoder()
        self._chunks = response.aiter_bytes()
        self._read: deque[Frame] = deque()

    async def event(self) -> Frame | None:
        """Return the next event, None at the end of the stream."""
        async with asyncio.timeout(WITHIN_S):
            while not self._read:
                chunk = await anext(self._chunks, None)
                if chunk is None:
                    return None
                self._read.extend(self.decoder.feed(chunk))
        return self._read.popleft()

    async def until(self, *names: str) -> list[Frame]:
        """Return the events up to and with the first of these names."""
        events: list[Frame] = []
        while (event := await self.event()) is not None:
            events.append(event)
            if event.event in names:
                return events
        raise AssertionError(f"the stream ended before {names}: {[e.event for e in events]}")

    async def rest(self) -> list[Frame]:
        """Return all events to the end of the stream."""
        events: list[Frame] = []
        while (event := await self.event()) is not None:
            events.append(event)
        return events


@asynccontextmanager
async def reading(
    client: httpx2.AsyncClient, path: str, *, method: str = "GET", **options: Any
) -> AsyncIterator[Reader]:
    async with client.stream(method, path, **options) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["Content-Type"].startswith("text/event-stream")
        yield Reader(response)


@asynccontextmanager
async def feed_writer(redis_url: str) -> AsyncIterator[FeedWriter]:
    feed = RedisFeed(redis_url, interval_s=0.01)
    feed.open()
    try:
        yield feed
    finally:
        await feed.close()


def kinds(events: list[Frame]) -> list[str]:
    return [e.event for e in events]


def held_text(events: list[Frame]) -> str:
    """What a reader holds who follows the rules of delta, snapshot and reset."""
    text = ""
    for event in events:
        match event.event:
            case "delta":
                text += event.data["text"]
            case "snapshot":
                text = event.data["text"]
            case "reset":
                text = ""
            case _:
                pass
    return text


@pytest.mark.behaviour("API-04", "API-06")
@pytest.mark.parametrize("by_header", [True, False])
async def test_the_same_request_admits_and_streams_to_the_end(
    database_url: str, redis_url: str, by_header: bool
) -> None:
    options: dict[str, Any] = (
        {"headers": {"Accept": "application/json;q=0.1, text/event-stream"}}
        if by_header
        else {"params": {"stream": "true"}}
    )
    async with (
        calling(database_url, redis_url=redis_url) as (producer, client),
        feed_writer(redis_url) as feed,
    ):
        session = await create_session(client)
        path = f"/v1/sessions/{session}/turns"
        async with reading(client, path, method="POST", json={"message": "hi"}, **options) as reader:
            [admitted] = await reader.until("admitted")
            assert admitted.data["status"] == "ready"
            assert reader.response.headers["Location"] == admitted.data["links"]["turn"]
            claim = await claim_turn(producer.parts, admitted.data["turn_id"])
            await open_turn(producer.parts, claim)
            text = feed.writer(claim.turn_id, claim.fence.epoch)
            text.begin(0, 1)
            text.push(0, 1, "Hello ")
            await text.flush()
            first = await reader.until("delta")
            text.push(0, 1, "there")
            await text.flush()
            await end_turn(producer.parts, claim, "Hello there")
            rest = await reader.rest()
    events = [*first, *rest]
    assert kinds(events)[0] == "turn.started"
    assert kinds(events)[-3:] == ["turn.reply", "turn.ended", "end"]
    assert held_text(events) == "Hello there"
    assert events[-1].data["outcome"] == "completed"
    assert [int(e.id) for e in events if e.id] == [1, 2, 3]


@pytest.mark.behaviour("API-04")
async def test_a_reader_that_leaves_does_not_stop_the_turn_and_comes_back_with_its_key(
    database_url: str,
) -> None:
    async with calling(database_url) as (producer, client):
        session = await create_session(client)
        path, body = f"/v1/sessions/{session}/turns", {"message": "hi", "key": "k"}
        async with reading(client, path, method="POST", params={"stream": "true"}, json=body) as reader:
            [admitted] = await reader.until("admitted")
        await await_until(lambda: producer.parts.traffic.streams == 0, what="the stream let go of")
        claim = await claim_turn(producer.parts, admitted.data["turn_id"])
        await open_turn(producer.parts, claim)
        await end_turn(producer.parts, claim, "done")
        async with reading(client, path, method="POST", params={"stream": "true"}, json=body) as reader:
            events = await reader.rest()
    assert kinds(events) == ["admitted", "turn.started", "delta", "turn.reply", "turn.ended", "end"]
    assert (events[0].data["duplicate"], held_text(events)) == (True, "done")


@pytest.mark.behaviour("API-05")
async def test_a_reader_that_comes_back_to_another_producer_misses_nothing_and_reads_nothing_twice(
    database_url: str,
) -> None:
    async with running_producer(database_url) as one, running_producer(database_url) as two:
        key = await one.key_for("ann")
        async with one.client(key) as left, two.client(key) as right:
            session = await create_session(left)
            turn = (await left.post(f"/v1/sessions/{session}/turns", json={"message": "hi"})).json()
            claim = await claim_turn(one.parts)
            await open_turn(one.parts, claim)
            async with reading(left, f"/v1/sessions/{session}/events") as reader:
                before = await reader.until("turn.started")
            await end_turn(one.parts, claim, "done")
            async with reading(
                right, f"/v1/sessions/{session}/events", headers={"Last-Event-ID": str(before[-1].id)}
            ) as reader:
                after = await reader.until("turn.ended")
            async with reading(right, turn["links"]["events"], params={"after": "1"}) as reader:
                of_turn = await reader.rest()
    assert [e.id for e in before + after if e.id] == ["1", "2", "3"]
    assert [e.id for e in of_turn if e.id] == ["2", "3"]
    assert kinds(of_turn)[-1] == "end"


@pytest.mark.behaviour("API-05")
async def test_filters_change_what_is_shown_and_no_id(database_url: str) -> None:
    async with calling(database_url) as (producer, client):
        session = await create_session(client)
        turn = (await client.post(f"/v1/sessions/{session}/turns", json={"message": "hi"})).json()
        claim = await claim_turn(producer.parts)
        await open_turn(producer.parts, claim)
        await end_turn(producer.parts, claim, "done")
        async with reading(
            client, turn["links"]["events"], params={"kinds": "turn.ended,turn.started"}
        ) as reader:
            events = await reader.rest()
        shown = [(e.event, e.id) for e in events if e.event != "delta"]
        assert shown == [("turn.started", "1"), ("turn.ended", "3"), ("end", "")]
        for params in ({"kinds": "nonsense"}, {"kinds": "request.prepared"}, {"after": "-1"}, {"since": "1"}):
            assert (await client.get(turn["links"]["events"], params=params)).status_code == 422


@pytest.mark.behaviour("API-05")
@pytest.mark.parametrize("last_event_id", [None, "0", "1", "2", "3", "99", "nonsense", "-1", "9" * 40])
async def test_a_turn_that_is_over_is_told_from_any_cursor_and_the_stream_ends(
    database_url: str, last_event_id: str | None
) -> None:
    async with running_producer(database_url) as first:
        key = await first.key_for("ann")
        async with first.client(key) as client:
            session = await create_session(client)
            turn = (await client.post(f"/v1/sessions/{session}/turns", json={"message": "hi"})).json()
            claim = await claim_turn(first.parts)
            await open_turn(first.parts, claim)
            await end_turn(first.parts, claim, "done")
    headers = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
    async with (
        running_producer(database_url) as restarted,
        restarted.client(key) as client,
        reading(client, turn["links"]["events"], headers=headers) as reader,
    ):
        events = await reader.rest()
    known = int(last_event_id) if last_event_id is not None and last_event_id.isdecimal() else 0
    is_beyond = known > 3
    # One that is beyond all is told so, and gets the turn from its beginning.
    missed = [0, 1, 2, 3] if is_beyond else [seq for seq in (1, 2, 3) if seq > known]
    assert [int(e.id) for e in events if e.id] == missed
    assert [e.data["after"] for e in events if e.event == "reset"] == ([0] if is_beyond else [])
    assert kinds(events)[-1] == "end"
    assert events[-1].data["outcome"] == "completed"


@pytest.mark.behaviour("API-05")
@pytest.mark.parametrize("how", ["cancelled", "expired", "refused"])
async def test_a_turn_that_never_opened_ends_its_stream(database_url: str, how: str) -> None:
    async with calling(database_url) as (producer, client):
        session = await create_session(client)
        path = f"/v1/sessions/{session}/turns"
        await client.post(path, json={"message": "hi"})
        late = datetime.now(UTC) + timedelta(seconds=0.5 if how == "expired" else 3_600)
        queued = (await client.post(path, json={"message": "ho", "deadline": late.isoformat()})).json()
        async with reading(client, queued["links"]["events"]) as reader:
            match how:
                case "cancelled":
                    await client.post(queued["links"]["cancel"])
                case "expired":
                    async with producer.parts.database.connection("test") as connection:
                        await connection.execute(
                            "SELECT pg_sleep_until(deadline) FROM turns WHERE id = %s", [queued["turn_id"]]
                        )
                    await producer.parts.queue.expire()
                case _:
                    # What opening finds out: no door of today refuses a row that it has admitted.
                    async with producer.parts.database.connection("test") as connection:
                        await connection.execute(
                            "UPDATE turns SET status = 'refused', code = 'turn.x', ended_at = clock_timestamp() WHERE id = %s",
                            [queued["turn_id"]],
                        )
            events = await reader.rest()
        for cursor in ("0", "1", "nonsense"):
            async with reading(
                client, queued["links"]["events"], headers={"Last-Event-ID": cursor}
            ) as reader:
                again = [event for event in await reader.rest() if event.event != "reset"]
                assert again == events
    assert [(e.event, e.data["status"]) for e in events] == [("end", how)]


@pytest.mark.behaviour("API-05")  # field case D02
async def test_a_cursor_taken_under_one_filter_is_right_under_another(database_url: str) -> None:
    async with calling(database_url) as (producer, client):
        session = await create_session(client)
        for n in range(3):
            await client.post(f"/v1/sessions/{session}/turns", json={"message": f"hi {n}"})
            claim = await claim_turn(producer.parts)
            await open_turn(producer.parts, claim)
            await end_turn(producer.parts, claim, f"done {n}")
        path = f"/v1/sessions/{session}/events"
        wide = {"kinds": "turn.started,turn.ended"}
        async with reading(client, path, params=wide) as reader:
            both = [await reader.until("turn.ended") for _ in range(3)]
        told = [(e.event, e.id) for events in both for e in events]
        assert [i for _, i in told] == ["1", "3", "4", "6", "7", "9"]
        for _, seen in told:
            async with reading(
                client, path, params={"kinds": "turn.ended"}, headers={"Last-Event-ID": seen}
            ) as reader:
                for wanted in [i for kind, i in told if kind == "turn.ended" and int(i) > int(seen)]:
                    assert (await reader.until("turn.ended"))[-1].id == wanted


async def test_the_streams_of_a_removed_session_end_with_a_typed_event(database_url: str) -> None:
    async with calling(database_url) as (producer, client):
        session = await create_session(client)
        turn = (await client.post(f"/v1/sessions/{session}/turns", json={"message": "hi"})).json()
        await open_turn(producer.parts, await claim_turn(producer.parts))
        async with (
            reading(client, f"/v1/sessions/{session}/events") as of_session,
            reading(client, turn["links"]["events"]) as of_turn,
        ):
            for reader in (of_session, of_turn):
                await reader.until("turn.started")
            assert (await client.delete(f"/v1/sessions/{session}")).is_success
            ends = [(await reader.rest())[-1] for reader in (of_session, of_turn)]
        assert [(e.event, e.data["status"], e.data["code"]) for e in ends] == [
            ("end", "removed", "session.missing")
        ] * 2
        assert ends[1].data["turn_id"] == turn["turn_id"]
        assert (await client.get(turn["links"]["events"])).status_code == 404


@pytest.mark.behaviour("FOL-08")
async def test_a_turn_that_nobody_holds_reads_as_not_open_or_as_recovering_before_anyone_closed_it(
    database_url: str,
) -> None:
    async with calling(database_url) as (producer, client):
        told = {}
        for loss in ("interrupt", "continue"):
            session = await create_session(client)
            turn = (await client.post(f"/v1/sessions/{session}/turns", json={"message": "hi"})).json()
            claim = await claim_turn(producer.parts)
            await open_turn(producer.parts, claim)
            async with producer.parts.database.connection("test") as connection:
                await connection.execute(
                    "UPDATE turns SET on_worker_loss = %s, expires_at = clock_timestamp() WHERE id = %s",
                    [loss, turn["turn_id"]],
                )
            state = (await client.get(turn["links"]["turn"])).json()
            told[loss] = (state["status"], state["open"], state["recovering"])
    assert told == {"interrupt": ("running", False, False), "continue": ("running", True, True)}


@pytest.mark.behaviour("API-05")
async def test_silence_is_filled_with_comments(database_url: str) -> None:
    async with calling(database_url, keep_alive_s=0.05) as (_producer, client):
        session = await create_session(client)
        async with client.stream("GET", f"/v1/sessions/{session}/events") as response:
            seen: list[str] = []
            async with asyncio.timeout(WITHIN_S):
                async for line in response.aiter_lines():
                    seen.append(line)
                    if seen.count(": ping") == 2:
                        break


@pytest.mark.behaviour("API-15")
async def test_a_drain_ends_streams_and_waits_with_a_hint_when_to_come_back(database_url: str) -> None:
    async with calling(database_url) as (producer, client):
        session = await create_session(client)
        turn = (await client.post(f"/v1/sessions/{session}/turns", json={"message": "hi"})).json()
        waiting = asyncio.create_task(client.get(f"{turn['links']['turn']}/wait", params={"timeout": "60"}))
        async with reading(client, f"/v1/sessions/{session}/events") as reader:
            await await_until(
                lambda: (producer.parts.traffic.streams, producer.parts.traffic.requests) == (1, 2),
                what="a stream and a wait",
            )
            producer.parts.traffic.begin_drain()
            await reader.rest()
        async with asyncio.timeout(WITHIN_S):
            waited = (await waiting).json()
        refused = await client.post(f"/v1/sessions/{session}/turns", json={"message": "hi"})
        ready = await client.get("/readyz")
        ping = (await client.get("/ping")).json()
    assert reader.decoder.retries == [1000]
    assert waited["finished"] is False
    assert (refused.status_code, refused.json()["code"]) == (503, "turn.refused")
    assert refused.headers["Retry-After"]
    assert (ready.status_code, ready.json()["draining"]) == (503, True)
    assert ping["status"] == "draining"


@pytest.mark.behaviour("API-07")
async def test_a_cancel_tells_the_holder_of_the_turn_at_once(database_url: str, redis_url: str) -> None:
    holder = RedisFeed(redis_url)
    holder.open()
    hints = holder.subscribe_worker(WORKER)
    try:
        async with calling(database_url, redis_url=redis_url) as (producer, client):
            session = await create_session(client)
            turn = (await client.post(f"/v1/sessions/{session}/turns", json={"message": "hi"})).json()
            await open_turn(producer.parts, await claim_turn(producer.parts))
            hearing = asyncio.ensure_future(anext(hints))
            # A hint may be lost while its reader is still subscribing: said again until it is heard.
            await say_until_heard(producer.parts.hints, TurnId(UUID(int=7)), hearing)
            hearing = asyncio.ensure_future(anext(hints))
            await client.post(turn["links"]["cancel"])
            async with asyncio.timeout(WITHIN_S):
                heard = await hearing
                while heard == UUID(int=7):
                    heard = await anext(hints)
    finally:
        await holder.close()
    assert str(heard) == turn["turn_id"]


async def say_until_heard(
    hints: ChangeHints | None, turn_id: TurnId, hearing: asyncio.Future[TurnId]
) -> None:
    assert hints is not None
    async with asyncio.timeout(WITHIN_S):
        while not hearing.done():
            hints.publish_to_worker(WORKER, turn_id)
            await asyncio.wait({hearing}, timeout=0.05)


class QueueAway(PostgresTurnQueue):
    """A queue whose database goes away right after an admission."""

    async def get(self, turn_id: TurnId, owner: OwnerId) -> TurnView:
        raise StoreUnavailable("the database cannot be reached")


@pytest.mark.behaviour("API-04")
async def test_a_turn_that_is_admitted_and_cannot_be_followed_is_acknowledged_before_the_problem(
    database_url: str,
) -> None:
    async with calling(database_url) as (producer, client):
        parts, owner = producer.parts, OwnerId("ann")
        session = SessionId(await create_session(client))
        away = QueueAway(parts.database)
        watcher = SessionWatcher(parts.log, away, hints=None, poll_s=1.0, kinds=CLIENT_KINDS | MERGE_KINDS)
        cut_off = replace(parts, following=Following(parts.log, away, watcher, None))
        request = TurnRequest.model_validate({"message": "hi"})
        await admit_turn(parts, owner, session, request, "once")
        # Again: where this turn stands has to be looked up.
        receipt = await admit_turn(cut_off, owner, session, request, "once")
        assert receipt.duplicate
        response = await answer_with_events(cut_off, receipt, owner, admission_answer(receipt))
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await response({"type": "http"}, asyncio.Event().wait, send)  # type: ignore[arg-type]  # it never leaves
        assert (sent[0]["type"], sent[0]["status"]) == ("http.response.start", 200)
        events = list(frames_of(message.get("body", b"") for message in sent))
        assert [event.event for event in events] == ["admitted", "problem"]
        assert events[0].data["turn_id"] == str(receipt.turn_id)
        assert events[1].data["code"] == "store.unavailable"


@pytest.mark.behaviour("API-05")
async def test_the_streams_of_turns_that_an_interrupt_ends_say_so(database_url: str) -> None:
    async with calling(database_url) as (producer, client):
        session = await create_session(client)
        path = f"/v1/sessions/{session}/turns"
        opened, queued = [(await client.post(path, json={"message": "hi"})).json() for _ in range(2)]
        await open_turn(producer.parts, await claim_turn(producer.parts))
        async with (
            reading(client, opened["links"]["events"]) as of_open,
            reading(client, queued["links"]["events"]) as of_queued,
        ):
            await of_open.until("turn.started")
            last = (await client.post(path, json={"message": "stop", "on_busy": "interrupt"})).json()
            told, unopened = await of_open.rest(), await of_queued.rest()
        assert kinds(told) == ["turn.ended", "end"]
        for end, field in ((told[-1], "outcome"), (unopened[-1], "status")):
            assert (end.data[field], end.data["code"]) == ("cancelled", "turn.superseded")
        assert last["status"] == "ready"

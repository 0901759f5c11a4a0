"""Event streams of a session and of a turn, and waiting for a turn's end (API-04 to 07)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import aclosing
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query, Response
from starlette.types import Receive, Scope, Send

from producer.doors import SECURITY, OwnedRoute, Owner, Parts
from producer.parts import ProducerParts
from producer.sse import EventStream
from producer.traffic import Traffic
from producer.wire import SEQ_MAX, AdmissionAnswer, EventsQuery, read_session_id, read_turn_id
from shared.domain.errors import InvalidInput
from shared.domain.ids import OwnerId, TurnId
from shared.feed.follow import Events
from shared.sessions.vocabulary import CLIENT_KINDS
from shared.turns.queue import Receipt, TurnView

EVENT_STREAM: Final = "text/event-stream"

router: Final = APIRouter(prefix="/v1", tags=["events"], route_class=OwnedRoute, dependencies=list(SECURITY))

_STREAM_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Server-sent events: records with their seq as id, text as delta, snapshot and reset.",
        "content": {EVENT_STREAM: {"schema": {"type": "string"}}},
    }
}

LastEventId = Annotated[str | None, Header(alias="Last-Event-ID")]


class ProducerStream(EventStream):
    """An event stream of this process: counted, ended by its drain, with a first frame of its own if need be."""

    def __init__(
        self,
        parts: ProducerParts,
        events: Events,
        *,
        snapshot_url: str,
        first: bytes = b"",
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(
            events,
            keep_alive_s=parts.settings.keep_alive_s,
            closing=parts.traffic.draining,
            snapshot_url=snapshot_url,
            first=first,
            headers=headers,
        )
        self._traffic: Traffic = parts.traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the response."""
        with self._traffic.stream():
            await super().__call__(scope, receive, send)


@router.get("/sessions/{session_id}/events", response_class=Response, responses=_STREAM_RESPONSES)
async def follow_session(
    parts: Parts,
    owner: Owner,
    session_id: str,
    query: Annotated[EventsQuery, Query()],
    last_event_id: LastEventId = None,
) -> Response:
    """Follow a session: its records after a cursor, then what comes; stays open."""
    wanted = read_session_id(session_id)
    after = read_after(last_event_id, query.after)
    events = await parts.following.follow_session(
        wanted, owner, after=after or 0, kinds=read_kinds(query.kinds)
    )
    return ProducerStream(parts, events, snapshot_url=f"/v1/sessions/{wanted}")


@router.get("/turns/{turn_id}/events", response_class=Response, responses=_STREAM_RESPONSES)
async def follow_turn(
    parts: Parts,
    owner: Owner,
    turn_id: str,
    query: Annotated[EventsQuery, Query()],
    last_event_id: LastEventId = None,
) -> Response:
    """Follow a turn to its end, from its first record or after a cursor; the last event is `end`."""
    wanted = read_turn_id(turn_id)
    after = read_after(last_event_id, query.after)
    events = await parts.following.follow_turn(wanted, owner, after=after, kinds=read_kinds(query.kinds))
    return ProducerStream(parts, events, snapshot_url=f"/v1/turns/{wanted}")


async def answer_with_events(
    parts: ProducerParts, receipt: Receipt, owner: OwnerId, answer: AdmissionAnswer
) -> Response:
    """Return the stream of a turn just admitted; its first event is `admitted` with the receipt (API-04).

    The turn is durable: what keeps it from being followed is a `problem` behind the receipt, never a refusal, which a
    caller without a key would answer with a second turn.
    """
    if receipt.duplicate:
        # Its turn may have begun long before its receipt was asked for again.
        events = _followed(parts, receipt.turn_id, owner)
    else:
        events = parts.following.follow_admitted(receipt)
    first = b"event: admitted\ndata: %s\n\n" % answer.model_dump_json().encode()
    headers = {"Location": answer.links.turn}
    return ProducerStream(parts, events, snapshot_url=answer.links.turn, first=first, headers=headers)


async def wait_for_end(parts: ProducerParts, view: TurnView, timeout_s: float) -> None:
    """Return when the turn has ended, the time is over or this process goes away; raises as following does."""
    head = await parts.log.head(view.session_id, view.owner)
    events = await parts.following.follow_turn(view.turn_id, view.owner, after=head.seq, kinds=())
    async with aclosing(events):
        end = asyncio.create_task(_exhaust(events))
        closing = asyncio.create_task(parts.traffic.draining.wait())
        try:
            await asyncio.wait({end, closing}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if end.done():
                end.result()
        finally:
            end.cancel()
            closing.cancel()
            await asyncio.gather(end, closing, return_exceptions=True)


def read_after(last_event_id: str | None, after: int | None) -> int | None:
    """Return the cursor that a reader came with. An id that is none of ours is as good as none: all is replayed."""
    if last_event_id is None:
        return after
    if not (last_event_id.isascii() and last_event_id.isdecimal()):
        return None
    return min(int(last_event_id[:20]), SEQ_MAX)


def read_kinds(text: str | None) -> Collection[str] | None:
    """Return the kinds that a reader wants, None for all; raise ``InvalidInput`` for one that no stream shows."""
    if text is None:
        return None
    kinds = {kind.strip() for kind in text.split(",")}
    if not kinds <= CLIENT_KINDS:
        raise InvalidInput(
            "a kind that no stream shows", field="kinds", bound=", ".join(sorted(CLIENT_KINDS))
        )
    return kinds


async def _followed(parts: ProducerParts, turn_id: TurnId, owner: OwnerId) -> Events:
    """Follow a turn; trouble at the beginning is raised by the first event, as later trouble is."""
    async with aclosing(await parts.following.follow_turn(turn_id, owner)) as events:
        async for ready in events:
            yield ready


async def _exhaust(events: Events) -> None:
    async for _ in events:
        pass

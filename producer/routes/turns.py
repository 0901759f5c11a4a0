"""Turns: admit, look at, wait for, cancel (API-02 to 04, API-07)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, ClassVar, Final

from fastapi import APIRouter, Query, Request, Response
from pydantic import TypeAdapter, ValidationError

from producer.admission import admit_turn
from producer.doors import KEY_HEADER, SECURITY, Keys, OwnedRoute, Owner, Parts
from producer.parts import ProducerParts, parts_of
from producer.routes.streams import EVENT_STREAM, answer_with_events, wait_for_end
from producer.wire import (
    AdmissionAnswer,
    AdmitQuery,
    CancelAnswer,
    Identity,
    NoBody,
    TurnAnswer,
    TurnRequest,
    WaitQuery,
    admission_answer,
    cancel_answer,
    read_key,
    read_session_id,
    read_turn_id,
    turn_answer,
)
from shared.domain.bounds import TURN_BODY_MAX_BYTES
from shared.domain.ids import OwnerId
from shared.wakes.names import TURNS

_log: Final = logging.getLogger(__name__)

_IDENTITY: Final[TypeAdapter[str]] = TypeAdapter(Identity)


class AdmissionRoute(OwnedRoute):
    """The one route that takes media in its body (decision 37), and the one that must be quick.

    FastAPI's own way through a request costs as much as the admission itself. What is plainly right goes past it; whatever is
    not, it answers, so that every refusal is worded in one place.
    """

    max_body_bytes: ClassVar[int] = TURN_BODY_MAX_BYTES

    def get_inner_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return a handler that admits what is plainly right, and gives everything else to FastAPI's."""
        handle = super().get_inner_handler()

        async def admit_or_handle(request: Request) -> Response:
            keys = request.headers.getlist(KEY_HEADER)
            try:
                if request.scope["query_string"]:
                    return await handle(request)
                body = TurnRequest.model_validate(await request.json())
                for key in keys:
                    _IDENTITY.validate_python(key)
            except ValidationError:
                return await handle(request)
            session_id: str = request.path_params["session_id"]
            return await _answer(parts_of(request), request.state.owner, request, keys, session_id, body)

        return admit_or_handle


admissions: Final = APIRouter(
    prefix="/v1", tags=["turns"], route_class=AdmissionRoute, dependencies=list(SECURITY)
)
router: Final = APIRouter(prefix="/v1", tags=["turns"], route_class=OwnedRoute, dependencies=list(SECURITY))

_ADMISSION_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "model": AdmissionAnswer,
        "description": "Admitted before under the same key; or the turn's events.",
        "content": {EVENT_STREAM: {"schema": {"type": "string"}}},
    }
}


@admissions.post(
    "/sessions/{session_id}/turns",
    status_code=202,
    response_model=AdmissionAnswer,
    responses=_ADMISSION_RESPONSES,
)
async def admit(
    parts: Parts,
    owner: Owner,
    request: Request,
    keys: Keys,
    session_id: str,
    body: TurnRequest,
    query: Annotated[AdmitQuery, Query()],
) -> Any:
    """Admit a turn: 202 with its receipt once it is durable, or the turn's events with `?stream=true`.

    The same key and content answers the first receipt (200); with other content 422 `turn.key-conflict`.
    """
    return await _answer(parts, owner, request, keys, session_id, body, stream=query.stream)


async def _answer(
    parts: ProducerParts,
    owner: OwnerId,
    request: Request,
    keys: list[str],
    session_id: str,
    body: TurnRequest,
    *,
    stream: bool = False,
) -> Response:
    receipt = await admit_turn(parts, owner, read_session_id(session_id), body, read_key(keys, body.key))
    answer = admission_answer(receipt)
    if stream or _wants_events(request):
        return await answer_with_events(parts, receipt, owner, answer)
    return Response(
        answer.model_dump_json(),
        status_code=200 if receipt.duplicate else 202,
        headers={"Location": answer.links.turn},
        media_type="application/json",
    )


@router.get("/turns/{turn_id}")
async def read_turn(parts: Parts, owner: Owner, turn_id: str) -> TurnAnswer:
    """Read how a turn stands."""
    return turn_answer(await parts.queue.get(read_turn_id(turn_id), owner))


@router.get("/turns/{turn_id}/wait")
async def wait_turn(
    parts: Parts, owner: Owner, turn_id: str, query: Annotated[WaitQuery, Query()]
) -> TurnAnswer:
    """Read how a turn stands once it has finished, or when the time is over or this process goes away."""
    wanted = read_turn_id(turn_id)
    view = await parts.queue.get(wanted, owner)
    answer = turn_answer(view)
    if answer.finished or query.timeout == 0:
        return answer
    await wait_for_end(parts, view, query.timeout)
    return turn_answer(await parts.queue.get(wanted, owner))


@router.post("/turns/{turn_id}/cancel")
async def cancel_turn(parts: Parts, owner: Owner, turn_id: str, body: NoBody | None = None) -> CancelAnswer:
    """End a turn as cancelled, durably, whoever runs it; tells whether that took effect, and why not."""
    wanted = read_turn_id(turn_id)
    done = await parts.queue.cancel(wanted, owner)
    if done.reason not in ("finished", "inbox"):
        if parts.hints is not None:
            if done.holder is not None:
                parts.hints.publish_to_worker(done.holder, wanted)
            parts.hints.publish_change(done.session_id)
        # What waited behind it may be ready now.
        parts.wakes.ring(TURNS)
    parts.metrics.cancels.labels(done.reason).inc()
    _log.info(
        "turn cancelled", extra={"turn": str(wanted), "session": done.session_id, "result": done.reason}
    )
    return cancel_answer(done)


def _wants_events(request: Request) -> bool:
    accepted = (
        part.partition(";")[0].strip().lower() for part in request.headers.get("accept", "").split(",")
    )
    return EVENT_STREAM in accepted

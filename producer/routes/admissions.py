"""Admitting a turn over HTTP: the route, and the short way to it that nearly every request takes (API-02 to 04)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Annotated, Any, ClassVar, Final

from fastapi import APIRouter, Query, Request, Response
from pydantic import TypeAdapter, ValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from producer.admission import admit_turn
from producer.doors import KEY_HEADER, LET_IN, SECURITY, Keys, OwnedRoute, Owner, Parts
from producer.parts import ProducerParts, parts_of
from producer.routes.streams import EVENT_STREAM, answer_with_events
from producer.wire import (
    AdmissionAnswer,
    AdmitQuery,
    Identity,
    TurnRequest,
    admission_answer,
    read_key,
    read_session_id,
)
from shared.domain.bounds import TURN_BODY_MAX_BYTES
from shared.domain.errors import TurnkeeperError
from shared.domain.ids import OwnerId

#: Where the framework keeps what it observes of a request, when a host has set telemetry up.
TELEMETRY: Final = "fastapi.telemetry"

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
            response = await _admit_plainly(request)
            return await handle(request) if response is None else response

        return admit_or_handle


class AdmissionShortcut:
    """A middleware that answers admissions itself, past the layers of the framework behind it, an eighth of its cost.

    Behind the same door, and to the same effect. What is not plainly right goes on, let in and read, to the framework.
    """

    def __init__(
        self, app: ASGIApp, *, answer_error: Callable[[Request, Exception], Awaitable[Response]]
    ) -> None:
        self._app = app
        self._answer_error = answer_error
        [self._route] = [route for route in router.routes if isinstance(route, AdmissionRoute)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on."""
        session_id = self._session_of(scope)
        if session_id is None:
            await self._app(scope, receive, send)
            return
        scope["route"], scope["path_params"] = self._route, {"session_id": session_id}
        request = Request(scope, receive)
        response: Response | None
        try:
            scope[LET_IN] = request = await self._route.let_in(request)
            response = await _admit_plainly(request)
        except TurnkeeperError as error:
            response = await self._answer_error(request, error)
        await (self._app if response is None else response)(scope, receive, send)

    def _session_of(self, scope: Scope) -> str | None:
        """Return the session of an admission, None for any other request and for one that somebody observes."""
        if scope["type"] != "http" or scope["method"] != "POST":
            return None
        if scope["root_path"] or scope.get(TELEMETRY) is not None:
            return None
        found = self._route.path_regex.match(scope["path"])
        return None if found is None else found["session_id"]


router: Final = APIRouter(
    prefix="/v1", tags=["turns"], route_class=AdmissionRoute, dependencies=list(SECURITY)
)
_ADMISSION_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "model": AdmissionAnswer,
        "description": "Admitted before under the same key; or the turn's events.",
        "content": {EVENT_STREAM: {"schema": {"type": "string"}}},
    }
}


@router.post(
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


async def _admit_plainly(request: Request) -> Response | None:
    """Answer a request that was let in and is right as it stands; None for one that FastAPI has to look at."""
    if request.scope["query_string"]:
        return None
    keys = request.headers.getlist(KEY_HEADER)
    try:
        body = TurnRequest.model_validate(await request.json())
        for key in keys:
            _IDENTITY.validate_python(key)
    except ValidationError:
        return None
    session_id: str = request.path_params["session_id"]
    return await _answer(parts_of(request), request.state.owner, request, keys, session_id, body)


def _wants_events(request: Request) -> bool:
    accepted = (
        part.partition(";")[0].strip().lower() for part in request.headers.get("accept", "").split(",")
    )
    return EVENT_STREAM in accepted

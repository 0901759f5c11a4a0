"""Problem details (RFC 9457): the one table from our errors to HTTP, and the answers made with it (API-12)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final
from uuid import UUID

import orjson
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from shared.domain import errors as e

MEDIA_TYPE: Final = "application/problem+json"

#: The nearest class of an error decides; families stand at the end.
STATUSES: Final[Mapping[type[e.TurnkeeperError], int]] = {
    e.InputTooLarge: 413,
    e.InvalidInput: 422,
    e.MalformedInput: 400,
    e.UnsupportedMedia: 415,
    e.ConfigError: 422,
    e.Unauthenticated: 401,
    e.SessionMissing: 404,
    e.TurnMissing: 404,
    e.TaskMissing: 404,
    e.TaskNested: 422,
    e.MemoryOff: 404,
    e.MemoryMissing: 404,
    e.IntentMissing: 404,
    e.HistoryMissing: 404,
    e.HistoryEncoding: 422,
    e.ProcessingRefused: 422,
    e.ReservedKind: 422,
    e.NotResumable: 422,
    e.AttachmentRejected: 422,
    e.KeyConflict: 422,
    e.Refused: 400,
    e.Conflict: 409,
    e.Unavailable: 503,
    e.Exhausted: 429,
    e.Broken: 500,
    e.TurnkeeperError: 500,
}

#: Codes of what the framework itself refuses.
FRAMEWORK_CODES: Final[Mapping[int, str]] = {404: "route.missing", 405: "route.method"}

#: Where the OpenAPI document keeps a model's schema.
SCHEMAS_PATH: Final = "#/components/schemas/{model}"

#: The challenge of a 401 (RFC 9110, 11.6.1).
CHALLENGE: Final = 'Bearer realm="turnkeeper"'
LINGER_S: Final = 2.0
LINGER_MAX_BYTES: Final = 64 * 1024 * 1024
INTERNAL_DETAIL: Final = "something went wrong here; the request may be reported with its id"


class ProblemPointer(BaseModel):
    """One place of a request that is wrong: a JSON pointer into the body, or a parameter's name."""

    detail: str
    pointer: str | None = Field(None, description="JSON pointer into the body.")
    parameter: str | None = Field(None, description="Name of a query, path or header parameter.")


class Problem(BaseModel):
    """Every answer with status 4xx or 5xx."""

    type: str = Field(description="A URI for the kind of problem; ends with `code`.")
    title: str
    status: int
    code: str = Field(description="Stable; what a client decides by.")
    detail: str
    fields: dict[str, Any] = Field(default_factory=dict, description="What the problem is about.")
    errors: list[ProblemPointer] = Field(default_factory=list, description="Places in the request.")
    request_id: str | None = None


def problem_schemas() -> dict[str, Any]:
    """Return the schemas of problems for the OpenAPI document, by name."""
    schema = Problem.model_json_schema(ref_template=SCHEMAS_PATH)
    return {**schema.pop("$defs"), Problem.__name__: schema}


def status_of(error: e.TurnkeeperError) -> int:
    """Return the HTTP status of an error of ours."""
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


def problem_of(error: e.TurnkeeperError) -> Problem:
    """Return the problem of an error of ours. What broke inside is not told, only its code."""
    status = status_of(error)
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return _problem(status, error.code, error.title, INTERNAL_DETAIL)
    fields = dict(error.fields)
    places = []
    if isinstance(error, e.InvalidInput):
        places = [_place_of_field(error.field, error.message)]
    return _problem(status, error.code, error.title, error.message, fields=fields, errors=places)


def problem_of_validation(error: RequestValidationError) -> Problem:
    """Return the problem of a request that its schema refuses, with a pointer to each place; no value is repeated."""
    places = [_place_of_location(one["loc"], one["msg"]) for one in error.errors()]
    first = places[0].pointer or places[0].parameter or ""
    detail = f"{first or 'the body'}: {places[0].detail}"
    return _problem(
        422, e.InvalidInput.code, e.InvalidInput.title, detail, fields={"field": first}, errors=places
    )


def problem_of_status(status: int, detail: str) -> Problem:
    """Return the problem of an answer that the framework gave by status alone."""
    code = FRAMEWORK_CODES.get(status, e.Refused.code if status < 500 else e.TurnkeeperError.code)
    return _problem(status, code, HTTPStatus(status).phrase, detail)


def internal_problem() -> Problem:
    """Return the problem of an exception that nobody foresaw."""
    return _problem(500, e.TurnkeeperError.code, e.TurnkeeperError.title, INTERNAL_DETAIL)


def headers_of(error: e.TurnkeeperError) -> dict[str, str]:
    """Return the headers that belong to an error: when to come again, how to authenticate, whether to hang up."""
    headers: dict[str, str] = {}
    if isinstance(error, e.Unavailable | e.Exhausted):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    if isinstance(error, e.InvalidCredentials):
        headers["WWW-Authenticate"] = f'{CHALLENGE}, error="invalid_token"'
    elif isinstance(error, e.Unauthenticated):
        headers["WWW-Authenticate"] = CHALLENGE
    if isinstance(error, e.InputTooLarge):
        # The rest of the body is thrown away, not read: the connection is of no more use.
        headers["Connection"] = "close"
    return headers


def problem_response(
    problem: Problem, *, headers: Mapping[str, str] | None = None, request_id: str | None = None
) -> Response:
    """Return the answer with ``problem`` as its body."""
    content = problem.model_copy(update={"request_id": request_id}).model_dump(exclude_none=True)
    kind = LastingResponse if problem.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE else Response
    return kind(
        orjson.dumps(content, default=_plain),
        status_code=problem.status,
        media_type=MEDIA_TYPE,
        headers=dict(headers or {}),
    )


class LastingResponse(Response):
    """An answer to a request whose body is still coming: closed only when the caller had time to read it.

    A connection closed with unread input is reset, and the answer is lost with it. So what still comes is thrown away
    first: ``LINGER_MAX_BYTES``, for ``LINGER_S`` seconds, at most.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the whole answer, let the caller finish, then end the response."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                await _throw_away(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _throw_away(receive: Receive) -> None:
    size = 0
    while size <= LINGER_MAX_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return
        size += len(message["body"])


def _problem(
    status: int,
    code: str,
    title: str,
    detail: str,
    *,
    fields: Mapping[str, Any] | None = None,
    errors: Sequence[ProblemPointer] = (),
) -> Problem:
    return Problem(
        type=f"urn:turnkeeper:problem:{code}",
        title=title,
        status=status,
        code=code,
        detail=detail,
        fields=dict(fields or {}),
        errors=list(errors),
    )


def _place_of_field(field: str, detail: str) -> ProblemPointer:
    if field == "" or field.startswith("/"):
        return ProblemPointer(detail=detail, pointer=field)
    return ProblemPointer(detail=detail, parameter=field)


def _place_of_location(location: Iterable[Any], detail: str) -> ProblemPointer:
    where, *path = location
    if where == "body":
        return ProblemPointer(detail=detail, pointer=json_pointer(path))
    return ProblemPointer(detail=detail, parameter=".".join(map(str, path)))


def json_pointer(path: Iterable[Any]) -> str:
    """Return the JSON pointer (RFC 6901) of a path; the whole document is the empty string."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in path)


def _plain(value: Any) -> Any:
    """Return what orjson cannot write in a form that it can; fields are ids, numbers and lists of them."""
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterable):
        return list(value)
    return str(value)

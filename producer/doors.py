"""The way into every owned route: who calls, how often, the body within its bound, then what the route declares."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Annotated, Any, ClassVar, Final

from fastapi import Depends, Header, Request, Security
from fastapi.routing import APIRoute
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.responses import Response

from producer.bodies import check_media_type, parse_body, read_bounded
from producer.parts import ProducerParts, parts_of
from producer.problems import MEDIA_TYPE, SCHEMAS_PATH, Problem
from producer.wire import Identity
from shared.domain.bounds import BODY_MAX_BYTES
from shared.domain.errors import MalformedInput
from shared.domain.ids import OwnerId

#: For the OpenAPI document alone: the door authenticates, before it reads a byte of the body.
SECURITY: Final = (
    Security(
        HTTPBearer(auto_error=False, description="An API key, or a token where the service takes them.")
    ),
    Security(APIKeyHeader(name="X-API-Key", auto_error=False, description="An API key.")),
)
KEY_HEADER: Final = "Idempotency-Key"
#: Where a request stands in its scope that was let in before it came to its route.
LET_IN: Final = "turnkeeper.let_in"
_READ_ONLY: Final = frozenset({"GET", "HEAD", "OPTIONS"})

#: What any request can be answered with, and what besides one of an owner, one that writes, one with a body.
_ANYONE: Final = (500, 503)
_OWNED: Final = (401, 422)
_NAMED: Final = (404,)
_WRITING: Final = (400, 413, 429)
_WITH_BODY: Final = (409, 415)
_PROBLEMS: Final[Mapping[int, str]] = {
    400: "The body is malformed.",
    401: "No credentials, or none that are valid.",
    404: "No such thing of the caller's.",
    409: "Something that was there first stands against it.",
    413: "The body is larger than its bound.",
    415: "The body is of a type or encoding that is not read.",
    422: "A value breaks a bound, or a key was used with other content.",
    429: "A rate or a bound on owed work is reached; nothing was stored.",
    500: "A defect; report the request's id.",
    503: "The process is going away, or something it needs is; try again.",
}
_COME_AGAIN: Final[dict[str, Any]] = {
    "Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}
}
_CHALLENGE: Final[dict[str, Any]] = {
    "WWW-Authenticate": {"description": "RFC 9110, 11.6.1.", "schema": {"type": "string"}}
}
_HEADERS: Final[Mapping[int, dict[str, Any]]] = {401: _CHALLENGE, 429: _COME_AGAIN, 503: _COME_AGAIN}


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return what the OpenAPI document says of answers with these statuses: problem details (RFC 9457)."""
    schema = {"$ref": SCHEMAS_PATH.format(model=Problem.__name__)}
    return {
        status: {
            "description": _PROBLEMS[status],
            "content": {MEDIA_TYPE: {"schema": schema}},
            **({"headers": _HEADERS[status]} if status in _HEADERS else {}),
        }
        for status in statuses
    }


class OwnedRoute(APIRoute):
    """A route that runs as one owner: authenticates, counts the write, reads the body strictly, then FastAPI validates it."""

    max_body_bytes: ClassVar[int] = BODY_MAX_BYTES

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        *,
        methods: set[str] | list[str] | None = None,
        responses: dict[int | str, dict[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        # Every status is declared here, so that no route can forget one; what a route says itself wins.
        writes = not set(methods or ()) <= _READ_ONLY
        statuses = (*_ANYONE, *_OWNED, *(_NAMED if "{" in path else ()), *(_WRITING if writes else ()))
        declared = problem_responses(*statuses) | (responses or {})
        super().__init__(path, endpoint, methods=methods, responses=declared, **options)
        if self.body_field is not None:
            self.responses = problem_responses(*_WITH_BODY) | self.responses

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler behind the door."""
        handle = self.get_inner_handler()

        async def enter(request: Request) -> Response:
            before: Request | None = request.scope.get(LET_IN)
            return await handle(await self.let_in(request) if before is None else before)

        return enter

    async def let_in(self, request: Request) -> Request:
        """Return the request of a caller who is known and within his rate, its body read and parsed."""
        host = None if request.client is None else request.client.host
        parts = parts_of(request)
        owner = await parts.authenticator.authenticate(request.headers, host)
        request.state.owner = owner
        if request.method in _READ_ONLY:
            return request
        allowance = await parts.rates.take(owner)
        request.state.headers = allowance.headers
        allowance.require()
        bound = min(self.max_body_bytes, allowance.body_max_bytes or self.max_body_bytes)
        return await self._read(request, max_bytes=bound)

    def get_inner_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request that was let in and whose body was read: FastAPI's handler."""
        return super().get_route_handler()

    async def _read(self, request: Request, *, max_bytes: int) -> Request:
        headers = request.headers
        declared = headers.get("content-length")
        raw = await read_bounded(request.stream(), declared=declared, max_bytes=max_bytes)
        if not raw:
            return _ParsedRequest(request, b"", None)
        if self.body_field is None:
            raise MalformedInput("this request takes no body")
        check_media_type(headers.get("content-type"), headers.get("content-encoding"))
        return _ParsedRequest(request, raw, await parse_body(raw))


class _ParsedRequest(Request):
    """A request whose body has been read and parsed."""

    def __init__(self, request: Request, raw: bytes, value: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._raw = raw
        self._value = value

    async def body(self) -> bytes:
        return self._raw

    async def json(self) -> Any:
        return self._value


async def owner_of(request: Request) -> OwnerId:
    """Return the owner that the door found."""
    owner: OwnerId = request.state.owner
    return owner


async def parts_for(request: Request) -> ProducerParts:
    """Return the producer's parts; a coroutine, so that it runs in the loop and not in a thread."""
    return parts_of(request)


async def keys_of(
    request: Request,
    _declared: Annotated[
        Identity | None, Header(alias=KEY_HEADER, description="Makes the request safe to repeat.")
    ] = None,
) -> list[str]:
    """Return every idempotency key header of a request; a route takes one key, told once or more."""
    return request.headers.getlist(KEY_HEADER)


Owner = Annotated[OwnerId, Depends(owner_of)]
Keys = Annotated[list[str], Depends(keys_of)]
Parts = Annotated[ProducerParts, Depends(parts_for)]

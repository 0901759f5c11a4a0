"""The way into every owned route: who calls, how often, the body within its bound, then what the route declares."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any, ClassVar, Final

from fastapi import Depends, Request, Security
from fastapi.routing import APIRoute
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.responses import Response

from producer.bodies import check_media_type, parse_body, read_bounded
from producer.parts import ProducerParts, parts_of
from producer.problems import MEDIA_TYPE, SCHEMAS_PATH, Problem
from shared.domain.bounds import BODY_MAX_BYTES, TURN_BODY_MAX_BYTES
from shared.domain.errors import MalformedInput
from shared.domain.ids import OwnerId

#: For the OpenAPI document alone: the door authenticates, before it reads a byte of the body.
SECURITY: Final = (
    Security(
        HTTPBearer(auto_error=False, description="An API key, or a token where the service takes them.")
    ),
    Security(APIKeyHeader(name="X-API-Key", auto_error=False, description="An API key.")),
)
PROBLEM_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    "default": {
        "description": "Problem details (RFC 9457)",
        "content": {MEDIA_TYPE: {"schema": {"$ref": SCHEMAS_PATH.format(model=Problem.__name__)}}},
    }
}
_READ_ONLY: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class OwnedRoute(APIRoute):
    """A route that runs as one owner: authenticates, counts the write, reads the body strictly, then FastAPI validates it."""

    max_body_bytes: ClassVar[int] = BODY_MAX_BYTES

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler behind the door."""
        handle = super().get_route_handler()
        takes_body = self.body_field is not None

        async def enter(request: Request) -> Response:
            host = None if request.client is None else request.client.host
            parts = parts_of(request)
            owner = await parts.authenticator.authenticate(request.headers, host)
            request.state.owner = owner
            if request.method in _READ_ONLY:
                return await handle(request)
            allowance = await parts.rates.take(owner)
            request.state.headers = allowance.headers
            allowance.require()
            bound = min(self.max_body_bytes, allowance.body_max_bytes or self.max_body_bytes)
            return await handle(await self._read(request, takes_body=takes_body, max_bytes=bound))

        return enter

    async def _read(self, request: Request, *, takes_body: bool, max_bytes: int) -> Request:
        headers = request.headers
        declared = headers.get("content-length")
        raw = await read_bounded(request.stream(), declared=declared, max_bytes=max_bytes)
        if not raw:
            return _ParsedRequest(request, b"", None)
        if not takes_body:
            raise MalformedInput("this request takes no body")
        check_media_type(headers.get("content-type"), headers.get("content-encoding"))
        return _ParsedRequest(request, raw, await parse_body(raw))


class AdmissionRoute(OwnedRoute):
    """The one route that takes media in its body (decision 37)."""

    max_body_bytes = TURN_BODY_MAX_BYTES


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


Owner = Annotated[OwnerId, Depends(owner_of)]
Parts = Annotated[ProducerParts, Depends(parts_for)]

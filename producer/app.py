"""The FastAPI application: routes, problem details, and the boundary around every request."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from producer.doors import problem_responses
from producer.parts import ProducerParts
from producer.problems import (
    Problem,
    headers_of,
    internal_problem,
    problem_of,
    problem_of_status,
    problem_of_validation,
    problem_response,
    problem_schemas,
)
from producer.routes import admissions, inbox, memory, operations, sessions, streams, tasks, turns
from shared.domain.errors import Broken, Draining, TurnkeeperError
from shared.telemetry.logs import log_context

_log: Final = logging.getLogger(__name__)

REQUEST_ID_BYTES: Final = 16

PartsFactory = Callable[[], AbstractAsyncContextManager[ProducerParts]]


def create_app(parts_factory: PartsFactory) -> FastAPI:
    """Return the application; its lifespan opens the parts that ``parts_factory`` makes, and closes them."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with parts_factory() as parts:
            app.state.parts = parts
            yield

    app = ProducerApp(
        title="Turnkeeper",
        version=importlib.metadata.version("turnkeeper"),
        description="A durable backend for chat agents that remember.",
        lifespan=lifespan,
        responses=problem_responses(500),
    )
    for routes in (admissions, sessions, turns, inbox, tasks, streams, memory, operations):
        app.include_router(routes.router)
    app.add_exception_handler(TurnkeeperError, _answer_error)
    app.add_exception_handler(RequestValidationError, _answer_validation)
    app.add_exception_handler(HTTPException, _answer_status)
    app.add_middleware(admissions.AdmissionShortcut, answer_error=_answer_error)
    app.add_middleware(Boundary)
    return app


class ProducerApp(FastAPI):
    """FastAPI whose OpenAPI document also has the schemas of problems."""

    def openapi(self) -> dict[str, Any]:
        """Return the document."""
        document = super().openapi()
        document["components"]["schemas"].update(problem_schemas())
        return document


class Boundary:
    """Around every request: an id for logs and problems, the count of what is in flight, and the last catch."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = secrets.token_hex(REQUEST_ID_BYTES)
        scope.setdefault("state", {})["request_id"] = request_id
        parts: ProducerParts = scope["app"].state.parts
        sent = _Sent(send, request_id, scope["state"])
        with log_context(request=request_id), parts.traffic.request():
            try:
                await self._app(scope, receive, sent)
            except asyncio.CancelledError:
                # The drain's bound is over: what became of the request is unknown, but its caller can come back.
                if sent.status is None:
                    cut_off = problem_of(Draining("this process ended before its answer; try again"))
                    await problem_response(cut_off, request_id=request_id)(scope, receive, sent)
                raise
            except ClientDisconnect:
                # The caller hung up while its body was read: nothing is stored, and nobody waits for an answer.
                _log.info("the caller hung up before its body was whole", extra={"route": _route_of(scope)})
            # The boundary: what nobody foresaw is logged whole, and told as nothing but an id.
            except Exception:
                _log.exception("request failed", extra={"route": _route_of(scope)})
                if sent.status is not None:
                    raise
                await problem_response(internal_problem(), request_id=request_id)(scope, receive, sent)
        parts.metrics.responses.labels(_route_of(scope), str(sent.status)).inc()


class _Sent:
    """Sends on, adds the request's id and what the door has to say, and remembers the status."""

    def __init__(self, send: Send, request_id: str, state: Mapping[str, Any]) -> None:
        self._send = send
        self._request_id = request_id
        self._state = state
        self.status: int | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-ID"] = self._request_id
            headers.update(self._state.get("headers", {}))
        await self._send(message)


def _route_of(scope: Scope) -> str:
    """Return the route's template, never the path: ids would make endless label values."""
    route = scope.get("route")
    return f"{scope['method']} {route.path}" if route is not None else "none"


async def _answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, TurnkeeperError)
    if isinstance(error, Broken) or type(error) is TurnkeeperError:
        _log.error("%s: %s", error.code, error.message, exc_info=error, extra={"code": error.code})
    return _answer(request, problem_of(error), headers_of(error))


async def _answer_validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _answer(request, problem_of_validation(error))


async def _answer_status(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _answer(request, problem_of_status(error.status_code, error.detail), dict(error.headers or {}))


def _answer(request: Request, problem: Problem, headers: dict[str, str] | None = None) -> Response:
    return problem_response(problem, headers=headers, request_id=request.state.request_id)

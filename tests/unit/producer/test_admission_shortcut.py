"""The short way of an admission: what is answered before the framework's layers, and what is passed on to them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fastapi import Request, Response
from starlette.types import Message, Receive, Scope, Send

from producer.app import create_app
from producer.callers.rates import WriteRates
from producer.doors import LET_IN
from producer.metrics import ProducerMetrics
from producer.parts import ProducerParts
from producer.routes.admissions import TELEMETRY, AdmissionShortcut
from producer.traffic import Traffic
from shared.database.counters import WorkCounters
from shared.domain.errors import TurnkeeperError, Unauthenticated
from shared.domain.ids import OwnerId, new_session_id
from shared.owners.inproc import InprocOwners
from shared.sessions.inproc import InprocSessionLog, InprocStore
from shared.sessions.log import NewSession
from shared.settings import Settings
from shared.turns.inproc.queue import InprocTurnQueue
from shared.turns.waiting import WaitingTotal
from shared.wakes.inproc import InprocWakes
from tests.support.small_app import app as small_app

ANN = OwnerId("ann")
PLAIN: Mapping[str, Any] = {"message": "hello", "agent": "small"}


class Names:
    """Knows whoever gives a name."""

    async def authenticate(self, headers: Mapping[str, str], client_host: str | None) -> OwnerId:
        if "x-name" not in headers:
            raise Unauthenticated("who are you?")
        return OwnerId(headers["x-name"])


@dataclass
class Framework:
    """Stands for all layers behind the shortcut, and keeps what comes to them."""

    scopes: list[Scope] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        await Response("framework")(scope, receive, send)


@dataclass
class Site:
    """A shortcut before a framework that only records, over a queue in memory."""

    parts: ProducerParts
    framework: Framework
    shortcut: AdmissionShortcut
    session: str

    async def post(
        self,
        body: object = PLAIN,
        *,
        method: str = "POST",
        path: str = "",
        query: bytes = b"",
        name: bytes | None = b"ann",
        telemetry: object = None,
    ) -> tuple[int, bytes]:
        """Send a request and return what is answered, by whomever."""
        raw, sent = json.dumps(body).encode(), list[Message]()
        headers = [(b"content-type", b"application/json")]
        scope: Scope = {
            "type": "http",
            "method": method,
            "path": path or f"/v1/sessions/{self.session}/turns",
            "root_path": "",
            "query_string": query,
            "headers": headers if name is None else [*headers, (b"x-name", name)],
            "client": ("127.0.0.1", 1),
            "app": SimpleNamespace(state=SimpleNamespace(parts=self.parts)),
            TELEMETRY: telemetry,
        }

        async def receive() -> Message:
            return {"type": "http.request", "body": raw, "more_body": False}

        async def send(message: Message) -> None:
            sent.append(message)

        await self.shortcut(scope, receive, send)
        return sent[0]["status"], sent[1]["body"]


async def answer_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, TurnkeeperError)
    return Response(error.code, status_code=418)


@pytest.fixture
async def site() -> Site:
    store, traffic, wakes = InprocStore(), Traffic(), InprocWakes()
    log, queue, nothing = InprocSessionLog(store), InprocTurnQueue(store), cast(Any, None)
    session = new_session_id()
    await log.create(NewSession(session, ANN))
    parts = ProducerParts(
        settings=Settings(),
        database=nothing,
        log=log,
        queue=queue,
        inbox=nothing,
        tasks=nothing,
        jobs=nothing,
        wakes=wakes,
        following=nothing,
        hints=None,
        app=small_app,
        authenticator=Names(),
        rates=WriteRates(InprocOwners(), per_s=100, burst=100),
        traffic=traffic,
        metrics=ProducerMetrics(WorkCounters(), wakes, traffic),
        waiting=WaitingTotal(queue.count_waiting, bound=10),
    )
    framework = Framework()
    return Site(parts, framework, AdmissionShortcut(framework, answer_error=answer_error), session)


@pytest.mark.behaviour("API-02", "API-20")
async def test_an_admission_that_is_plainly_right_meets_no_layer_of_the_framework(site: Site) -> None:
    status, body = await site.post()
    assert (status, json.loads(body)["session_id"]) == (202, site.session)
    assert not site.framework.scopes


async def test_a_refusal_at_the_door_is_told_without_the_framework(site: Site) -> None:
    assert await site.post(name=None) == (418, Unauthenticated.code.encode())
    assert not site.framework.scopes


@pytest.mark.parametrize(
    "different", [{"body": {"text": "no such field"}}, {"query": b"stream=true"}], ids=["body", "query"]
)
async def test_what_is_not_plainly_right_goes_on_let_in_once_and_read(
    site: Site, different: dict[str, Any]
) -> None:
    assert await site.post(**different) == (200, b"framework")
    [scope] = site.framework.scopes
    assert scope["state"]["owner"] == ANN
    assert await scope[LET_IN].json() == different.get("body", PLAIN)


@pytest.mark.parametrize(
    "other",
    [{"method": "GET"}, {"path": "/v1/sessions"}, {"telemetry": object()}],
    ids=["method", "path", "observed"],
)
async def test_any_other_request_and_one_that_is_observed_goes_on_as_it_came(
    site: Site, other: dict[str, Any]
) -> None:
    assert await site.post(**other) == (200, b"framework")
    [scope] = site.framework.scopes
    assert LET_IN not in scope


def test_the_application_has_the_shortcut_right_behind_its_boundary() -> None:
    application = create_app(cast(Any, None))
    names = [cast(type, middleware.cls).__name__ for middleware in application.user_middleware]
    assert names == ["Boundary", "AdmissionShortcut"]

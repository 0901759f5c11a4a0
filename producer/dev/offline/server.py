"""The routes of the offline model server: the OpenAI-compatible ones and those that tests steer it by."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from producer.dev.offline.answering import PacedAnswer, Sendable
from producer.dev.offline.directive import Directive, split_directive
from producer.dev.offline.ledger import CallLedger, Counted
from producer.dev.offline.requests import ChatRequest, RequestRefused, parse_chat_request
from producer.dev.offline.responses import ResponsesAnswer, parse_responses_request
from producer.dev.offline.rules import answer_request
from producer.dev.offline.vectors import EmbeddingsAnswer, parse_embeddings_request
from producer.dev.offline.wire import Completion, encode_json, error_body

TEXT_SHOWN_MAX_CHARS = 200


@dataclass(frozen=True, slots=True)
class OfflineOptions:
    """How the server behaves. ``delay_ms`` is the wait between tokens; with an ``api_key`` others are refused."""

    delay_ms: float = 15.0
    model: str = "offline"
    api_key: str = ""


class Hold(BaseModel):
    model_config = ConfigDict(extra="forbid")

    session: str | None = None
    after_tokens: int = Field(0, ge=0)


class Release(BaseModel):
    model_config = ConfigDict(extra="forbid")

    session: str | None = None
    count: int | None = Field(None, ge=1)


def build_server(options: OfflineOptions) -> FastAPI:
    """Return the application; its ledger lives as long as it does."""
    app = FastAPI(title="Offline model", docs_url=None, redoc_url=None, openapi_url=None)
    ledger = CallLedger()
    _add_model_routes(app, options, ledger)
    _add_admin_routes(app, ledger)
    return app


def _add_model_routes(app: FastAPI, options: OfflineOptions, ledger: CallLedger) -> None:
    @app.exception_handler(RequestRefused)
    async def answer_refused(request: Request, error: RequestRefused) -> Response:
        ledger.refused += 1
        kind = "authentication_error" if error.status == 401 else "invalid_request_error"
        body = error_body(error.message, kind=kind, param=error.param, code=error.code)
        return Response(body, status_code=error.status, media_type="application/json")

    @app.get("/healthz")
    async def show_health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/models")
    async def list_models(request: Request) -> dict[str, Any]:
        _check_key(request, options)
        model = {"id": options.model, "object": "model", "created": 0, "owned_by": "offline"}
        return {"object": "list", "data": [model]}

    @app.post("/v1/chat/completions")
    async def answer_chat(request: Request) -> Response:
        _check_key(request, options)
        chat = parse_chat_request(await request.body())
        taken = _take_chat(chat)
        return await _answer_call(taken, taken.completion, options, ledger)

    @app.post("/v1/responses")
    async def answer_response(request: Request) -> Response:
        _check_key(request, options)
        asked, chat = parse_responses_request(await request.body())
        taken = _take_chat(chat)
        return await _answer_call(taken, ResponsesAnswer(asked, taken.completion), options, ledger)

    @app.post("/v1/embeddings")
    async def answer_embeddings(request: Request) -> Response:
        _check_key(request, options)
        asked = parse_embeddings_request(await request.body())
        found = [split_directive(text, "embeddings") for text in asked.texts]
        directive = next((one for _, one in found if one != Directive()), Directive())
        # Where a directive was the whole text, the text itself stands in: there is a vector for everything.
        texts = [text or whole for (text, _), whole in zip(found, asked.texts, strict=True)]
        call = await ledger.start(
            session=asked.user or "",
            route="embeddings",
            model=asked.model,
            streamed=False,
            messages=len(texts),
            step=1,
            text=texts[0][:TEXT_SHOWN_MAX_CHARS],
        )
        return PacedAnswer(
            EmbeddingsAnswer(asked, texts),
            _judge_faults(directive, 1, ledger),
            call,
            ledger,
            streamed=False,
            delay_s=options.delay_ms / 1000,
        )


@dataclass(frozen=True, slots=True)
class TakenChat:
    """A chat request, what its last user message says and directs, and the answer to that."""

    chat: ChatRequest
    text: str
    directive: Directive
    completion: Completion


def _take_chat(chat: ChatRequest) -> TakenChat:
    text = chat.messages[chat.last_user].text if chat.last_user >= 0 else ""
    text, directive = split_directive(text, chat.route)
    return TakenChat(chat, text, directive, Completion(chat, answer_request(chat, text, directive)))


async def _answer_call(
    taken: TakenChat, answer: Sendable, options: OfflineOptions, ledger: CallLedger
) -> Response:
    chat, directive = taken.chat, taken.directive
    call = await ledger.start(
        session=chat.session,
        route=chat.route,
        model=chat.model,
        streamed=bool(chat.stream),
        messages=len(chat.messages),
        step=chat.step,
        text=taken.text[:TEXT_SHOWN_MAX_CHARS],
    )
    return PacedAnswer(
        answer,
        _judge_faults(directive, chat.step, ledger),
        call,
        ledger,
        streamed=bool(chat.stream),
        delay_s=options.delay_ms / 1000,
    )


def _add_admin_routes(app: FastAPI, ledger: CallLedger) -> None:
    @app.get("/admin/calls")
    async def show_calls(
        session: str | None = None, limit: Annotated[int, Query(ge=0, le=10_000)] = 100
    ) -> Response:
        return _json(ledger.describe(session, limit))

    @app.get("/admin/wait")
    async def wait_for_calls(
        calls: Annotated[int, Query(ge=0)] = 1,
        state: Counted = "started",
        session: str | None = None,
        timeout: Annotated[float, Query(ge=0, le=600)] = 10.0,
    ) -> Response:
        reached = await ledger.wait(state, calls, session, timeout)
        return _json(ledger.describe(session, 100), status=200 if reached else 504)

    @app.post("/admin/hold")
    async def hold_calls(hold: Hold | None = None) -> Response:
        hold = hold or Hold()
        await ledger.hold(hold.session, hold.after_tokens)
        return _json(ledger.describe(hold.session, 0))

    @app.post("/admin/release")
    async def release_calls(release: Release | None = None) -> dict[str, int]:
        release = release or Release()
        return {"released": await ledger.release(release.session, release.count)}

    @app.post("/admin/reset")
    async def reset_ledger() -> dict[str, str]:
        await ledger.reset()
        return {"status": "ok"}


def _judge_faults(directive: Directive, step: int, ledger: CallLedger) -> Directive:
    """Return the directive, without its faults where they are not meant for this call."""
    if not directive.has_fault:
        return directive
    if directive.at_step is not None and directive.at_step != step:
        return directive.without_faults()
    return directive if ledger.meet_fault(directive.key, directive.fail_times) else directive.without_faults()


def _check_key(request: Request, options: OfflineOptions) -> None:
    if not options.api_key:
        return
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    if not secrets.compare_digest(given.encode(), options.api_key.encode()):
        raise RequestRefused("Incorrect API key provided.", code="invalid_api_key", status=401)


def _json(value: Any, *, status: int = 200) -> Response:
    return Response(encode_json(value), status_code=status, media_type="application/json")

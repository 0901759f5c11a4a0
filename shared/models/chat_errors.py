"""Translates what the ``openai`` client, its transports and a provider's error objects say into our errors.

No text that leaves here holds the API key: providers do echo it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import aiohttp
import httpx2
import openai

from shared.domain.bounds import clean_text
from shared.domain.errors import ModelAuthFailed, ModelRefused, ModelStreamBroken, ModelUnavailable
from shared.models.chat_chunks import ChunkError, ErrorEvent
from shared.models.sse import EventTooLarge

ModelFailure = ModelUnavailable | ModelStreamBroken | ModelRefused | ModelAuthFailed

#: What reading an open stream can raise; aiohttp's own errors pass the client's transport where it has no name for them.
STREAM_ERRORS: Final = (httpx2.HTTPError, httpx2.StreamError, aiohttp.ClientError, OSError)
CALL_ERRORS: Final = (openai.OpenAIError, *STREAM_ERRORS)

PROVIDER_TEXT_MAX_CHARS = 300

_AUTH_STATUSES = frozenset({401, 403})
_RETRYABLE_STATUSES = frozenset({408, 409, 425, 429})
_EVENT_STATUSES: Final[Mapping[str, int]] = {
    "authentication_error": 401,
    "permission_error": 403,
    "permission_denied": 403,
    "invalid_api_key": 401,
    "invalid_request_error": 400,
    "not_found_error": 404,
    "context_length_exceeded": 400,
}
_SECRET_MIN_CHARS = 6


class FailureTranslator:
    """Translates for one endpoint, whose ``secret`` is taken out of every text."""

    def __init__(self, *, secret: str) -> None:
        # A shorter one is a placeholder; taking it out would only garble the text.
        self._secret = secret if len(secret) >= _SECRET_MIN_CHARS else ""

    def of_call(self, error: BaseException) -> ModelFailure:
        """Return what an error before the stream opened means."""
        failure: ModelFailure
        match error:
            case openai.APIStatusError():
                message = self._provider_text(error.body)
                failure = self._of_status(
                    error.status_code,
                    message,
                    code=error.code,
                    retry_after=error.response.headers.get("retry-after"),
                )
            case _ if _is_late(error):
                failure = ModelUnavailable("the model endpoint did not answer in time", reason="timeout")
            case openai.APIConnectionError() | OSError():
                failure = ModelUnavailable("the model endpoint cannot be reached", reason="connection")
            case _:
                failure = ModelUnavailable("the model endpoint did not answer with HTTP", reason="protocol")
        return self._caused(failure, error)

    def of_stream(self, error: BaseException, *, shown: bool) -> ModelFailure:
        """Return what an error inside an open stream means.

        A provider's error object keeps its own meaning until text was ``shown``; then the stream broke, whatever broke it.
        """
        failure: ModelFailure
        match error:
            case ErrorEvent():
                failure = self._of_event(error.error)
                if shown:
                    failure = ModelStreamBroken(
                        failure.message, **{**failure.fields, "reason": "error-event"}
                    )
            case ChunkError():
                failure = ModelStreamBroken(str(error), reason=error.reason)
            case EventTooLarge():
                failure = ModelStreamBroken(str(error), reason="too-large")
            case _ if _is_late(error):
                failure = ModelStreamBroken("the model's stream fell silent", reason="timeout")
            case _:
                failure = ModelStreamBroken("the connection of the model's stream broke", reason="connection")
        return self._caused(failure, error)

    def _of_status(
        self, status: int, message: str, *, code: str | None, retry_after: str | None = None
    ) -> ModelFailure:
        fields: dict[str, Any] = {"status": status}
        if code:
            fields["provider_code"] = self._cut(code)
        if status in _AUTH_STATUSES:
            return ModelAuthFailed(f"the model endpoint refused the credentials ({status})", **fields)
        text = f"the model endpoint answered {status}" + (f": {message}" if message else "")
        if status >= 500 or status in _RETRYABLE_STATUSES:
            return ModelUnavailable(text, retry_after_s=_seconds(retry_after), **fields)
        return ModelRefused(text, **fields)

    def _of_event(self, error: object) -> ModelFailure:
        fields = error if isinstance(error, dict) else {}
        message = self._provider_text(error)
        codes = (fields.get("code"), fields.get("type"), fields.get("status"))
        status = next((s for s in map(_status_of, codes) if s is not None), None)
        if status is not None:
            return self._of_status(status, message, code=fields.get("code") if status >= 500 else None)
        text = "the model endpoint failed in its stream" + (f": {message}" if message else "")
        return ModelUnavailable(text, reason="error-event")

    def _provider_text(self, body: object) -> str:
        """Return the message of an error body of any shape, safe to store and short."""
        if isinstance(body, dict):
            inner = body.get("error", body)
            body = inner.get("message") if isinstance(inner, dict) else inner
        return self._cut(body) if isinstance(body, str) else ""

    def _cut(self, text: object) -> str:
        cleaned = clean_text(self._redact(str(text)))[0]
        return " ".join(cleaned.split())[:PROVIDER_TEXT_MAX_CHARS]

    def _redact(self, text: str) -> str:
        return text.replace(self._secret, "[redacted]") if self._secret else text

    def _caused(self, failure: ModelFailure, error: BaseException) -> ModelFailure:
        leaks = bool(self._secret) and any(self._secret in str(link) for link in _chain(error))
        failure.__cause__ = None if leaks else error
        return failure


def _is_late(error: BaseException) -> bool:
    # By the first cause: the client's transport calls a refused connection a timeout as well.
    return any(isinstance(link, TimeoutError) for link in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__


def _status_of(code: object) -> int | None:
    if isinstance(code, str):
        return (
            int(code) if code.isascii() and code.isdigit() and len(code) == 3 else _EVENT_STATUSES.get(code)
        )
    return code if isinstance(code, int) and 400 <= code <= 599 else None


def _seconds(retry_after: str | None) -> float:
    """Return a ``Retry-After`` in seconds, between 1 and 3,600; dates are read as the default."""
    try:
        return min(max(float(retry_after or 1), 1.0), 3600.0)
    except ValueError:
        return 1.0

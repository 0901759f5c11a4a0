"""The adapter for values of a type from OpenAI-compatible Chat Completions with ``response_format``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr

from shared.domain.bounds import clean_text
from shared.domain.errors import ModelOutputInvalid, ModelRefused
from shared.models.chat_chunks import read_usage
from shared.models.chat_request import OutputLimitField, chat_request
from shared.models.endpoint import ModelEndpoint
from shared.models.structured import StructuredAnswer, T, read_structured, response_format
from shared.models.types import ModelRequest, Usage

BODY_MAX_BYTES = 4 * 1024 * 1024


class OpenAIStructuredModel:
    """A ``StructuredModel`` at ``base_url``, for whichever model a request names.

    **Bounds.** ``timeout_s`` bounds one call with everything in it. An answer that cannot be used is asked for again
    up to ``output_retries`` times, each time with up to ``retries`` repetitions of what the endpoint failed. A refusal
    by the model is not asked again.
    """

    def __init__(
        self,
        *,
        base_url: str,
        api_key: SecretStr | str,
        timeout_s: float = 120.0,
        connect_timeout_s: float = 5.0,
        retries: int = 2,
        output_retries: int = 1,
        connections_max: int = 100,
        output_limit_field: OutputLimitField = "max_completion_tokens",
    ) -> None:
        self._timeout_s = timeout_s
        self._output_retries = output_retries
        self._output_limit_field = output_limit_field
        self._endpoint = ModelEndpoint(
            base_url=base_url,
            api_key=api_key,
            connect_timeout_s=connect_timeout_s,
            # Nothing comes before the whole answer is there.
            read_timeout_s=timeout_s,
            retries=retries,
            connections_max=connections_max,
        )

    async def aclose(self) -> None:
        """Close the connections. Calls under way fail."""
        await self._endpoint.aclose()

    async def complete(self, request: ModelRequest, schema: type[T]) -> StructuredAnswer[T]:
        """Return the answer to ``request`` as a ``schema``; the port's contract holds."""
        body = chat_request(request, output_limit_field=self._output_limit_field, streamed=False)
        body["response_format"] = response_format(schema)
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        usage = Usage()
        for retries_left in range(self._output_retries, -1, -1):
            answer = await self._endpoint.fetch(
                lambda client: client.chat.completions.with_streaming_response.create(**body),
                deadline=deadline,
                body_max_bytes=BODY_MAX_BYTES,
            )
            usage += _usage_of(answer)
            try:
                value = read_structured(_text_of(answer), schema)
            except ModelOutputInvalid:
                if not retries_left:
                    raise
                continue
            model = answer.get("model")
            return StructuredAnswer(value, usage, clean_text(model)[0] if isinstance(model, str) else "")
        raise AssertionError("unreachable")


def _usage_of(answer: Mapping[str, Any]) -> Usage:
    usage = answer.get("usage")
    return read_usage(usage) if isinstance(usage, dict) else Usage()


def _text_of(answer: Mapping[str, Any]) -> str:
    """Return the first choice's text; raise why there is none that could be whole."""
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise ModelOutputInvalid("the model's answer holds no message", reason="empty")
    if message.get("refusal"):
        raise ModelRefused("the model declined the request", reason="refusal")
    match choice.get("finish_reason"):
        case "content_filter":
            raise ModelRefused("the provider's content filter stopped the answer", reason="content-filter")
        case "length":
            raise ModelOutputInvalid("the model's answer was cut at its length limit", reason="cut")
    text = message.get("content")
    return text if isinstance(text, str) else ""

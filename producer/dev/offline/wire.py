"""How an answer looks on the wire: completion objects, stream chunks, error objects, and the tokens they count."""

from __future__ import annotations

import json
import math
import re
import secrets
import time
from collections.abc import Iterator
from typing import Any

import orjson

from producer.dev.offline.requests import ChatRequest
from producer.dev.offline.rules import Answer

DONE = b"data: [DONE]\n\n"
GARBAGE = b'data: {"id": "chatcmpl-\n\n'

_PIECES = re.compile(r"\s*\S+|\s+$")
_ARGUMENT_PIECE_CHARS = 12


def encode_json(value: Any) -> bytes:
    """Return ``value`` as JSON; lone surrogates, which a directive may ask for, go out as escapes."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return json.dumps(value).encode()


def error_body(message: str, *, kind: str, param: str | None = None, code: str | None = None) -> bytes:
    """Return an OpenAI-style error object."""
    return encode_json({"error": {"message": message, "type": kind, "param": param, "code": code}})


class Completion:
    """One answer, cut to the request's token limit, with its ids and counts.

    Tokens are counted by a simple rule. A prompt costs 4 for each message, and 1 for each 4 bytes, begun, of its
    texts, calls and tool declarations. An answer costs 1 for each word (as it is streamed), and for a call 1 for each
    12 characters, begun, of its arguments, plus 1.
    """

    def __init__(self, request: ChatRequest, answer: Answer) -> None:
        self.id = f"chatcmpl-{secrets.token_hex(12)}"
        self.created = int(time.time())
        self.model = request.model
        self.include_usage = request.include_usage
        pieces = _PIECES.findall(answer.text)
        limit = request.tokens_max
        self.cut = limit is not None and len(pieces) > limit
        self.pieces: list[str] = pieces[:limit] if self.cut else pieces
        self.calls = [(f"call_{secrets.token_hex(12)}", call) for call in answer.calls]
        self.prompt_tokens = _count_prompt(request)
        self.completion_tokens = len(self.pieces) + sum(
            1 + math.ceil(len(call.arguments) / _ARGUMENT_PIECE_CHARS) for call in answer.calls
        )

    @property
    def finish_reason(self) -> str:
        return "length" if self.cut else "tool_calls" if self.calls else "stop"

    @property
    def usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        }

    def whole(self) -> dict[str, Any]:
        """Return the answer as one completion object."""
        message: dict[str, Any] = {
            "role": "assistant",
            "content": "".join(self.pieces) if self.pieces or not self.calls else None,
            "refusal": None,
        }
        if self.calls:
            message["tool_calls"] = [
                {"id": id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for id, call in self.calls
            ]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self.finish_reason}
        return self._object("chat.completion", [choice], usage=self.usage)

    def opening(self) -> bytes:
        """Return the first event: the role."""
        return self._delta({"role": "assistant", "content": None if self.calls else "", "refusal": None})

    def tokens(self) -> Iterator[bytes]:
        """Yield an event for each token: words, then the calls in pieces."""
        for piece in self.pieces:
            yield self._delta({"content": piece})
        for index, (call_id, call) in enumerate(self.calls):
            function = {"name": call.name, "arguments": ""}
            head = {"index": index, "id": call_id, "type": "function", "function": function}
            yield self._delta({"tool_calls": [head]})
            for piece in argument_pieces(call.arguments):
                yield self._delta({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})

    def closing(self) -> bytes:
        """Return the last events: the reason, the usage when it was asked for, and the end."""
        events = self._delta({}, finish_reason=self.finish_reason)
        if self.include_usage:
            events += _event(self._object("chat.completion.chunk", [], usage=self.usage))
        return events + DONE

    def _delta(self, delta: dict[str, Any], *, finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        more = {"usage": None} if self.include_usage else {}
        return _event(self._object("chat.completion.chunk", [choice], **more))

    def _object(self, kind: str, choices: list[Any], **more: Any) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": "fp_offline",
            "choices": choices,
            **more,
        }


def argument_pieces(arguments: str) -> Iterator[str]:
    """Yield a call's arguments as they are streamed."""
    for start in range(0, len(arguments), _ARGUMENT_PIECE_CHARS):
        yield arguments[start : start + _ARGUMENT_PIECE_CHARS]


def _event(value: Any) -> bytes:
    return b"data: " + encode_json(value) + b"\n\n"


def _count_prompt(request: ChatRequest) -> int:
    tokens = 4 * len(request.messages)
    for message in request.messages:
        tokens += count_tokens(message.text)
        tokens += sum(count_tokens(call.function.name + call.function.arguments) for call in message.calls)
    return tokens + sum(count_tokens(tool.function.model_dump_json()) for tool in request.tools)


def count_tokens(text: str) -> int:
    """Return what a text of a prompt costs."""
    return math.ceil(len(text.encode("utf-8", "surrogatepass")) / 4)

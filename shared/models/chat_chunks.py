"""Puts an answer together from the chunks of a Chat Completions stream. Pure; no object is made per chunk.

Tolerates what real servers do: chunks without choices, several choices (the first counts), call fragments without
index or id, missing or repeated usage, no finish reason before ``[DONE]``, no ``[DONE]`` after a finish reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from shared.domain.bounds import ID_MAX_CHARS, clean_text
from shared.models.types import ModelResponse, ToolCall, Usage, token_usage

#: Text and arguments of one answer, in UTF-8 bytes: some 250,000 tokens.
ANSWER_MAX_BYTES = 1024 * 1024
CALLS_MAX = 128

_CALL_ID = re.compile(rf"[\x21-\x7e]{{1,{ID_MAX_CHARS}}}")
_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


class ChunkError(ValueError):
    """The stream is not what the protocol says. ``reason`` is protocol, too-large or ended-early."""

    def __init__(self, message: str, *, reason: str = "protocol") -> None:
        super().__init__(message)
        self.reason = reason


class ErrorEvent(Exception):
    """The provider sent an error object instead of a chunk; ``error`` is that object, of any shape."""

    def __init__(self, error: object) -> None:
        super().__init__("the provider sent an error in the stream")
        self.error = error


class _Call:
    __slots__ = ("arguments", "id", "name")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []


class AnswerAssembler:
    """Takes the payloads of one stream, in order. ``mint_call_id`` names calls that came without a usable id."""

    def __init__(self, *, mint_call_id: Callable[[], str], answer_max_bytes: int = ANSWER_MAX_BYTES) -> None:
        self._mint_call_id = mint_call_id
        self._max = answer_max_bytes
        self._bytes = 0
        self._texts: list[str] = []
        self._half = ""
        self._calls: list[_Call] = []
        self._call_at: dict[int, _Call] = {}
        self._usage = Usage()
        self._model = ""
        self._finish_reason = ""
        self._answered = False
        self._replaced = False
        #: Whether ``[DONE]`` came: nothing after it counts.
        self.done = False

    def take(self, payload: bytes) -> str:
        """Take one event's data and return the text it adds, "" for none. Raises ``ChunkError`` and ``ErrorEvent``."""
        if payload.startswith(b"[") and payload.strip() == b"[DONE]":
            self.done = True
            return ""
        chunk = self._decode(payload)
        if not isinstance(chunk, dict):
            raise ChunkError("an event of the stream is no JSON object")
        if error := chunk.get("error"):
            raise ErrorEvent(error)
        if isinstance(usage := chunk.get("usage"), dict):
            self._usage = read_usage(usage)
        if not self._model and isinstance(model := chunk.get("model"), str):
            self._model = self._clean(model)
        choices = chunk.get("choices")
        return self._take_choices(choices) if choices else ""

    def end(self) -> str:
        """Say that no bytes follow and return the last text, "" for none. Raises ``ChunkError`` if the answer is cut."""
        if not self._answered or not (self._finish_reason or self.done):
            raise ChunkError("the stream ended before the answer did", reason="ended-early")
        half, self._half = self._half, ""
        return self._add_text(half) if half else ""

    def response(self) -> ModelResponse:
        """Return the whole answer; call :meth:`end` first."""
        calls = self._whole_calls()
        return ModelResponse(
            text="".join(self._texts),
            calls=calls,
            usage=self._usage,
            finish_reason=self._finish_reason or ("tool_calls" if calls else "stop"),
            model=self._model,
            replaced_characters=self._replaced,
        )

    def _decode(self, payload: bytes) -> Any:
        try:
            return orjson.loads(payload)
        except orjson.JSONDecodeError:
            pass
        # The fast codec refuses escaped lone surrogates and invalid UTF-8, which providers do send.
        try:
            text = payload.decode()
        except UnicodeDecodeError:
            self._replaced = True
            text = payload.decode(errors="replace")
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ChunkError("an event of the stream is no JSON") from error

    def _take_choices(self, choices: object) -> str:
        if not isinstance(choices, list):
            raise ChunkError("the choices of a chunk are no array")
        added = ""
        for choice in choices:
            if not isinstance(choice, dict):
                raise ChunkError("a choice of a chunk is no object")
            if choice.get("index") in (0, None):
                added += self._take_choice(choice)
        return added

    def _take_choice(self, choice: dict[str, Any]) -> str:
        self._answered = True
        if isinstance(reason := choice.get("finish_reason"), str) and reason:
            self._finish_reason = self._clean(reason)
        delta = choice.get("delta")
        if not delta:
            return ""
        if not isinstance(delta, dict):
            raise ChunkError("a delta of a chunk is no object")
        if fragments := delta.get("tool_calls"):
            self._take_call_fragments(fragments)
        # A refusal is the model's answer in other words: the reader gets to see it.
        text = delta.get("content") or delta.get("refusal")
        if not text:
            return ""
        if not isinstance(text, str):
            raise ChunkError("the content of a delta is no text")
        return self._take_text(text)

    def _take_text(self, text: str) -> str:
        if self._half:
            text, self._half = self._half + text, ""
        if "\ud800" <= text[-1] <= "\udbff":
            # Half a character: its other half may open the next chunk.
            text, self._half = text[:-1], text[-1]
        return self._add_text(text) if text else ""

    def _add_text(self, text: str) -> str:
        text = self._clean(text)
        self._count(text)
        self._texts.append(text)
        return text

    def _clean(self, text: str) -> str:
        cleaned, replaced = clean_text(text)
        if not replaced:
            return text
        # Only now look for pairs: codecs that pass surrogates leave the two halves of one character apart.
        joined = _SURROGATE_PAIR.sub(_join_pair, text)
        cleaned, replaced = clean_text(joined)
        self._replaced = self._replaced or replaced
        return cleaned

    def _count(self, text: str) -> None:
        self._bytes += len(text) if text.isascii() else len(text.encode())
        if self._bytes > self._max:
            raise ChunkError(f"the answer is larger than {self._max} bytes", reason="too-large")

    def _take_call_fragments(self, fragments: object) -> None:
        if not isinstance(fragments, list):
            raise ChunkError("the tool calls of a delta are no array")
        for fragment in fragments:
            function = fragment.get("function") if isinstance(fragment, dict) else None
            if not isinstance(function, dict | None) or not isinstance(fragment, dict):
                raise ChunkError("a tool call of a delta is no object")
            self._take_call_fragment(fragment, function or {})

    def _take_call_fragment(self, fragment: Mapping[str, Any], function: Mapping[str, Any]) -> None:
        call_id, name, arguments = fragment.get("id"), function.get("name"), function.get("arguments")
        call = self._call_of(fragment.get("index"), call_id, name)
        if isinstance(call_id, str) and not call.id:
            call.id = call_id
        if isinstance(name, str) and not call.name:
            call.name = self._clean(name)
            self._count(call.name)
        if isinstance(arguments, dict | list):
            arguments = orjson.dumps(arguments).decode()
        if isinstance(arguments, str) and arguments:
            # Counted raw: halves of characters are judged when the whole text is there.
            self._bytes += len(arguments)
            self._count("")
            call.arguments.append(arguments)

    def _call_of(self, index: object, call_id: object, name: object) -> _Call:
        """Return the call that a fragment continues, or a new one.

        Fragments belong together by index. Some servers send no index, or the same one for every call: then a name
        with another id begins a call.
        """
        call = (
            self._call_at.get(index) if isinstance(index, int) else (self._calls[-1] if self._calls else None)
        )
        begins = bool(name) and bool(call_id) and call is not None and bool(call.id) and call.id != call_id
        if not isinstance(index, int) and name and not call_id and call is not None:
            begins = True
        if call is None or begins:
            if len(self._calls) >= CALLS_MAX:
                raise ChunkError(f"the answer holds more than {CALLS_MAX} tool calls", reason="too-large")
            call = _Call()
            self._calls.append(call)
            if isinstance(index, int):
                self._call_at[index] = call
        return call

    def _whole_calls(self) -> tuple[ToolCall, ...]:
        calls: list[ToolCall] = []
        seen: set[str] = set()
        for call in self._calls:
            if not call.name:
                raise ChunkError("a tool call has no name")
            call_id = call.id
            if call_id in seen or not _CALL_ID.fullmatch(call_id):
                call_id = self._mint_call_id()
            seen.add(call_id)
            calls.append(ToolCall(call_id, call.name, self._clean("".join(call.arguments))))
        return tuple(calls)


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """Return the usage of a Chat Completions answer, whatever its server leaves out (MOD-59, MOD-60, MOD-61)."""
    prompt = _object(usage.get("prompt_tokens_details"))
    completion = _object(usage.get("completion_tokens_details"))
    cache_reads = (
        usage.get("prompt_cache_hit_tokens"),
        usage.get("cached_tokens"),
        prompt.get("cached_tokens"),
    )
    return token_usage(
        input_tokens=usage.get("prompt_tokens"),
        output_tokens=usage.get("completion_tokens"),
        cache_read_tokens=next((count for count in cache_reads if count is not None), 0),
        cache_write_tokens=prompt.get("cache_write_tokens"),
        reasoning_tokens=completion.get("reasoning_tokens"),
    )


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _join_pair(pair: re.Match[str]) -> str:
    return pair.group().encode("utf-16", "surrogatepass").decode("utf-16")

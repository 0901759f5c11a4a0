"""The Responses API as the offline model speaks it: a request as the chat it stands for, an answer as items and events."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from producer.dev.offline.requests import ChatRequest, RequestRefused, check_conversation, parse_body
from producer.dev.offline.wire import Completion, argument_pieces, encode_json


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class InputPart(_Wire):
    type: str
    text: str = ""


class InputItem(_Wire):
    """A message, a call that the model made, or that call's result."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None


class ResponsesTool(_Wire):
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ChosenTool(_Wire):
    type: Literal["function"]
    name: str


class TextFormat(_Wire):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    wanted: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextOptions(_Wire):
    format: TextFormat = Field(default_factory=TextFormat)


class ResponsesRequest(_Wire):
    """A request that needs nothing stored: this server keeps no conversations."""

    model: str = Field(min_length=1)
    input: str | list[InputItem]
    instructions: str | None = None
    tools: list[ResponsesTool] = Field(default_factory=list)
    tool_choice: Literal["auto", "none", "required"] | ChosenTool = "auto"
    text: TextOptions = Field(default_factory=TextOptions)
    stream: bool | None = False
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    user: str | None = None


def parse_responses_request(body: bytes) -> tuple[ResponsesRequest, ChatRequest]:
    """Return the request in ``body`` and the chat it stands for; raise ``RequestRefused`` that names what is wrong."""
    request = parse_body(ResponsesRequest, body)
    if request.previous_response_id is not None:
        raise RequestRefused(
            f"Previous response with id '{request.previous_response_id}' not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    try:
        chat = ChatRequest.model_validate(_chat_fields(request))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise RequestRefused(f"Invalid value for 'input': {first['msg']}.", param="input") from error
    check_conversation(chat)
    return request, chat


def _chat_fields(request: ResponsesRequest) -> dict[str, Any]:
    items = (
        [InputItem(role="user", content=request.input)] if isinstance(request.input, str) else request.input
    )
    system = [{"role": "developer", "content": request.instructions}] if request.instructions else []
    tools = [
        {"name": tool.name, "description": tool.description or "", "parameters": tool.parameters or {}}
        for tool in request.tools
    ]
    choice: Any = request.tool_choice
    if isinstance(choice, ChosenTool):
        choice = {"type": "function", "function": {"name": choice.name}}
    return {
        "model": request.model,
        "messages": [*system, *_chat_messages(items)],
        "tools": [{"type": "function", "function": tool} for tool in tools],
        "tool_choice": choice if tools or choice != "auto" else None,
        "response_format": _chat_format(request.text.format),
        "stream": request.stream,
        "max_completion_tokens": request.max_output_tokens,
        "temperature": request.temperature,
        "prompt_cache_key": request.prompt_cache_key,
        "user": request.user,
    }


def _chat_format(wanted: TextFormat) -> dict[str, Any]:
    if wanted.type != "json_schema":
        return {"type": wanted.type}
    schema = {"name": wanted.name or "", "schema": wanted.wanted or {}, "strict": wanted.strict}
    return {"type": "json_schema", "json_schema": schema}


def _chat_messages(items: Sequence[InputItem]) -> Iterator[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    for item in items:
        if item.type == "function_call":
            function = {"name": item.name or "", "arguments": item.arguments or ""}
            calls.append({"id": item.call_id or "", "type": "function", "function": function})
            continue
        if calls:
            yield {"role": "assistant", "tool_calls": calls}
            calls = []
        if item.type == "message":
            yield {"role": item.role or "user", "content": _text_of(item.content)}
        elif item.type == "function_call_output":
            yield {"role": "tool", "tool_call_id": item.call_id or "", "content": _text_of(item.output)}
    if calls:
        yield {"role": "assistant", "tool_calls": calls}


def _text_of(content: str | list[InputPart] | None) -> str | None:
    return "".join(part.text for part in content) if isinstance(content, list) else content


class ResponsesAnswer:
    """One answer in the form of the Responses API, over the completion that holds its pieces, calls and counts."""

    def __init__(self, request: ResponsesRequest, completion: Completion) -> None:
        self._request = request
        self._completion = completion
        self._id = f"resp_{secrets.token_hex(12)}"
        self._message_id = f"msg_{secrets.token_hex(12)}"
        self._sequence = 0

    def whole(self) -> dict[str, Any]:
        """Return the answer as one response object."""
        state = "incomplete" if self._completion.cut else "completed"
        return self._response(state, self._output(), self._usage())

    def opening(self) -> bytes:
        """Return the events before the first token."""
        begun = self._response("in_progress", [], None)
        return self._event("response.created", response=begun) + self._event(
            "response.in_progress", response=begun
        )

    def tokens(self) -> Iterator[bytes]:
        """Yield the events of each token; those that open and close an item go with its first and last."""
        pieces, calls = self._completion.pieces, self._completion.calls
        for number, piece in enumerate(pieces):
            place = {"item_id": self._message_id, "output_index": 0, "content_index": 0}
            before = self._open_message(place) if number == 0 else b""
            delta = self._event("response.output_text.delta", **place, delta=piece, logprobs=[])
            last = number == len(pieces) - 1
            yield before + delta + (self._close_message(place) if last else b"")
        for number, (call_id, call) in enumerate(calls, start=bool(pieces)):
            yield from self._call_events(number, self._call_item(call_id, call.name, call.arguments))

    def closing(self) -> bytes:
        """Return the last event: the whole response."""
        kind = "response.incomplete" if self._completion.cut else "response.completed"
        return self._event(kind, response=self.whole())

    def _open_message(self, place: dict[str, Any]) -> bytes:
        item = {**self._message_item(""), "status": "in_progress", "content": []}
        added = self._event("response.output_item.added", output_index=0, item=item)
        return added + self._event("response.content_part.added", **place, part=_part(""))

    def _close_message(self, place: dict[str, Any]) -> bytes:
        text = "".join(self._completion.pieces)
        done = self._event("response.output_text.done", **place, text=text, logprobs=[])
        done += self._event("response.content_part.done", **place, part=_part(text))
        return done + self._event("response.output_item.done", output_index=0, item=self._message_item(text))

    def _call_events(self, index: int, item: dict[str, Any]) -> Iterator[bytes]:
        arguments = item["arguments"]
        place = {"item_id": item["id"], "output_index": index}
        begun = {**item, "arguments": "", "status": "in_progress"}
        yield self._event("response.output_item.added", output_index=index, item=begun)
        for piece in argument_pieces(arguments):
            yield self._event("response.function_call_arguments.delta", **place, delta=piece)
        done = self._event(
            "response.function_call_arguments.done", **place, name=item["name"], arguments=arguments
        )
        yield done + self._event("response.output_item.done", output_index=index, item=item)

    def _output(self) -> list[dict[str, Any]]:
        text = "".join(self._completion.pieces)
        calls = [self._call_item(id, call.name, call.arguments) for id, call in self._completion.calls]
        return ([self._message_item(text)] if text or not calls else []) + calls

    def _message_item(self, text: str) -> dict[str, Any]:
        state = "incomplete" if self._completion.cut else "completed"
        return {
            "type": "message",
            "id": self._message_id,
            "status": state,
            "role": "assistant",
            "content": [_part(text)],
        }

    def _call_item(self, call_id: str, name: str, arguments: str) -> dict[str, Any]:
        return {
            "type": "function_call",
            "id": f"fc_{call_id.removeprefix('call_')}",
            "call_id": call_id,
            "name": name,
            "arguments": arguments,
            "status": "completed",
        }

    def _usage(self) -> dict[str, Any]:
        return {
            "input_tokens": self._completion.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": self._completion.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self._completion.prompt_tokens + self._completion.completion_tokens,
        }

    def _response(self, state: str, output: list[Any], usage: dict[str, Any] | None) -> dict[str, Any]:
        request = self._request
        choice = request.tool_choice
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._completion.created,
            "status": state,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if state == "incomplete" else None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": {},
            "model": request.model,
            "output": output,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "store": False,
            "temperature": request.temperature,
            "text": request.text.model_dump(by_alias=True, exclude_none=True),
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
            "tools": [{**tool.model_dump(), "strict": None} for tool in request.tools],
            "top_p": None,
            "truncation": "disabled",
            "usage": usage,
        }

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._sequence = self._sequence, self._sequence + 1
        body = encode_json({"type": kind, "sequence_number": number, **fields})
        return b"event: " + kind.encode() + b"\ndata: " + body + b"\n\n"


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

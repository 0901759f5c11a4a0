"""A Chat Completions request as the offline model takes it, and what it refuses much as the real service does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Parsed = TypeVar("Parsed", bound=BaseModel)


class RequestRefused(Exception):
    """The request is wrong; it becomes an OpenAI-style error object."""

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class WireFunctionCall(_Wire):
    name: str = Field(min_length=1)
    arguments: str


class WireCall(_Wire):
    id: str = Field(min_length=1)
    type: Literal["function"]
    function: WireFunctionCall


class WirePart(_Wire):
    type: str
    text: str = ""


class WireMessage(_Wire):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[WirePart] | None = None
    tool_calls: list[WireCall] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """The message's text; parts that are no text count as none."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content if part.type == "text")
        return self.content or ""

    @property
    def calls(self) -> list[WireCall]:
        return self.tool_calls or []


class WireFunction(_Wire):
    name: str = Field(min_length=1, max_length=64)
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)


class WireTool(_Wire):
    type: Literal["function"]
    function: WireFunction


class WireChosenFunction(_Wire):
    name: str


class WireToolChoice(_Wire):
    type: Literal["function"]
    function: WireChosenFunction


class WireStreamOptions(_Wire):
    include_usage: bool = False


class WireSchema(_Wire):
    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    wanted: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class WireResponseFormat(_Wire):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: WireSchema | None = None


class ChatRequest(_Wire):
    """A request that holds together; fields the offline model has no use for are read over."""

    model: str = Field(min_length=1)
    messages: list[WireMessage] = Field(min_length=1)
    tools: list[WireTool] = Field(default_factory=list)
    tool_choice: Literal["auto", "none", "required"] | WireToolChoice | None = None
    stream: bool | None = False
    stream_options: WireStreamOptions | None = None
    response_format: WireResponseFormat | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    n: Literal[1] | None = 1
    temperature: float | None = Field(None, ge=0, le=2)
    prompt_cache_key: str | None = None
    user: str | None = None

    @property
    def session(self) -> str:
        """Who calls, as far as the request says: the cache key, else the user, else nothing."""
        return self.prompt_cache_key or self.user or ""

    @property
    def tokens_max(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def route(self) -> Literal["chat", "structured"]:
        """What the request is for: words, or a value of a schema."""
        return "chat" if self.wanted_schema is None else "structured"

    @property
    def wanted_schema(self) -> dict[str, Any] | None:
        """The JSON Schema that the answer has to be of; None when words are wanted."""
        wanted = self.response_format
        if wanted is None or wanted.type == "text":
            return None
        return wanted.json_schema.wanted if wanted.json_schema is not None else {"type": "object"}

    @property
    def last_user(self) -> int:
        """The index of the last user message, -1 without one."""
        return max((n for n, message in enumerate(self.messages) if message.role == "user"), default=-1)

    @property
    def step(self) -> int:
        """Which model call of the present turn this is, from 1: one more than the answers since the last user message."""
        return 1 + sum(message.role == "assistant" for message in self.messages[self.last_user + 1 :])


def parse_chat_request(body: bytes) -> ChatRequest:
    """Return the request in ``body``; raise ``RequestRefused`` that names what is wrong."""
    request = parse_body(ChatRequest, body)
    if request.stream_options is not None and not request.stream:
        raise RequestRefused(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.", param="stream_options"
        )
    check_conversation(request)
    return request


def parse_body(kind: type[Parsed], body: bytes) -> Parsed:
    """Return a body as a ``kind``; raise ``RequestRefused`` that names the first field that is wrong."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        param = _param(first["loc"])
        where = f"'{param}'" if param else "the request's body"
        code = "missing_required_parameter" if first["type"] == "missing" else "invalid_value"
        raise RequestRefused(f"Invalid value for {where}: {first['msg']}.", param=param, code=code) from error


def check_conversation(request: ChatRequest) -> None:
    """Raise ``RequestRefused`` unless messages, tools and the wanted answer each hold together."""
    for number, message in enumerate(request.messages):
        _check_fields(number, message)
    check_pairs(request.messages)
    _check_tools(request)
    _check_response_format(request)


def check_pairs(messages: Sequence[WireMessage]) -> None:
    """Raise ``RequestRefused`` unless each tool call is answered once, right after the message that made it."""
    waiting: list[str] = []
    for number, message in enumerate(messages):
        if message.role == "tool":
            if message.tool_call_id not in waiting:
                raise RequestRefused(
                    "Invalid parameter: messages with role 'tool' must be a response to a preceding message with"
                    f" 'tool_calls'; '{message.tool_call_id}' is none that waits for one.",
                    param=f"messages[{number}].role",
                )
            waiting.remove(message.tool_call_id)
            continue
        _check_answered(waiting, number)
        waiting = [call.id for call in message.calls]
        if len(set(waiting)) != len(waiting):
            raise RequestRefused(
                "Duplicate tool call ids in one message.", param=f"messages[{number}].tool_calls"
            )
    _check_answered(waiting, len(messages))


def _check_answered(waiting: list[str], number: int) -> None:
    if waiting:
        raise RequestRefused(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'."
            f" The following tool_call_ids did not have response messages: {', '.join(waiting)}",
            param=f"messages[{number}].role",
        )


def _check_fields(number: int, message: WireMessage) -> None:
    if message.content is None and not (message.role == "assistant" and message.calls):
        raise RequestRefused(
            f"Invalid value for 'content' of a message with role '{message.role}': expected a string, got null.",
            param=f"messages[{number}].content",
        )
    if message.role == "tool" and not message.tool_call_id:
        raise RequestRefused(
            f"Missing parameter 'tool_call_id': messages[{number}] has role 'tool'.",
            param=f"messages[{number}].tool_call_id",
            code="missing_required_parameter",
        )
    if message.calls and message.role != "assistant":
        raise RequestRefused(
            f"Only messages with role 'assistant' hold 'tool_calls', not '{message.role}'.",
            param=f"messages[{number}].tool_calls",
        )


def _check_tools(request: ChatRequest) -> None:
    names = [tool.function.name for tool in request.tools]
    if len(set(names)) != len(names):
        raise RequestRefused("Tool names must be unique.", param="tools")
    choice = request.tool_choice
    if choice is not None and choice not in ("none", "auto") and not names:
        raise RequestRefused("'tool_choice' is only allowed when 'tools' are specified.", param="tool_choice")
    if isinstance(choice, WireToolChoice) and choice.function.name not in names:
        raise RequestRefused(
            f"Tool choice '{choice.function.name}' not found in 'tools'.", param="tool_choice"
        )


def _check_response_format(request: ChatRequest) -> None:
    wanted = request.response_format
    if wanted is None or wanted.type != "json_schema":
        return
    if wanted.json_schema is None:
        raise RequestRefused(
            "Missing required parameter: 'response_format.json_schema'.",
            param="response_format.json_schema",
            code="missing_required_parameter",
        )
    if wanted.json_schema.strict and (place := _loose_place(wanted.json_schema.wanted, "")) is not None:
        raise RequestRefused(
            f"Invalid schema for response_format '{wanted.json_schema.name}': In context={place or '/'}, every object"
            " must have 'additionalProperties' false and name all its properties in 'required'.",
            param="response_format",
            code="invalid_json_schema",
        )


def _loose_place(node: Any, place: str) -> str | None:
    """Return where a schema has an object that a strict one may not have, None when it has none."""
    if isinstance(node, list):
        node = dict(enumerate(node))
    elif isinstance(node, dict) and node.get("type") == "object":
        required = node.get("required")
        named = set(required) if isinstance(required, list) else set()
        if node.get("additionalProperties") is not False or named != set(node.get("properties") or ()):
            return place
    if not isinstance(node, dict):
        return None
    found = (_loose_place(inner, f"{place}/{key}") for key, inner in node.items())
    return next((where for where in found if where is not None), None)


def _param(loc: tuple[int | str, ...]) -> str | None:
    text = ""
    for part in loc:
        if isinstance(part, str) and (part == "str" or "[" in part or part[0].isupper()):
            # From here on the place names a member of a union, which is nothing of the request's.
            break
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or None

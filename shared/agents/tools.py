"""Typed tools from annotated functions: the schema a model sees, and how its arguments become a call."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, overload
from uuid import UUID

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.errors import PydanticUserError

from shared.domain.bounds import clean_text
from shared.domain.errors import ConfigError

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
DESCRIPTION_MAX_CHARS = 4_096
TIMEOUT_DEFAULT_S = 120.0
TIMEOUT_MAX_S = 86_400.0
ARGUMENTS_MAX_BYTES = 262_144

Handler = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a handler may know of its call. Annotate a parameter with this class to receive it.

    ``idempotency_token`` is the same when the call is repeated after a crash (BEY-01): hand it to whatever the tool
    changes.
    """

    session_id: str
    owner: str
    turn_id: UUID
    run_id: str
    invocation_id: str
    idempotency_token: str


class ToolInputError(Exception):
    """The model's arguments do not fit the tool; the text is for the model to read."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of an agent. Made by :func:`tool`.

    ``repeatable`` declares that running a call twice is as good as once (a read, or keyed by the token): after a crash
    such a call is run again, any other is settled as unknown for the model to read. ``timeout_s`` bounds one call.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    handler: Handler
    arguments: type[BaseModel]
    is_async: bool
    repeatable: bool = False
    timeout_s: float = TIMEOUT_DEFAULT_S
    context_parameter: str | None = None

    def decode(self, text: str) -> dict[str, Any]:
        """Return the handler's keyword arguments; raise ``ToolInputError`` with a text that says what does not fit."""
        if len(text.encode("utf-8", "surrogatepass")) > ARGUMENTS_MAX_BYTES:
            raise ToolInputError(f"arguments are larger than {ARGUMENTS_MAX_BYTES} bytes")
        try:
            value = json.loads(text or "{}")
        except (ValueError, RecursionError) as error:
            raise ToolInputError(f"arguments are not JSON: {error}") from error
        try:
            model = self.arguments.model_validate(value)
        except ValidationError as error:
            raise ToolInputError(_explain(error)) from error
        return {name: getattr(model, name) for name in self.arguments.model_fields}


@overload
def tool(function: Handler, /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    repeatable: bool = False,
    timeout_s: float = ...,
) -> Callable[[Handler], Tool]: ...
def tool(
    function: Handler | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    repeatable: bool = False,
    timeout_s: float = TIMEOUT_DEFAULT_S,
) -> Tool | Callable[[Handler], Tool]:
    """Make a tool of an annotated function, sync or async.

    The name is the function's, the description its docstring, the parameters its annotations (anything pydantic can
    validate). Raises ``ConfigError`` that names the parameter when one has no annotation or the name cannot be used.
    """

    def make(handler: Handler) -> Tool:
        return _make(handler, name, description, repeatable, timeout_s)

    return make if function is None else make(function)


def _make(
    handler: Handler, name: str | None, description: str | None, repeatable: bool, timeout_s: float
) -> Tool:
    tool_name = name or str(getattr(handler, "__name__", ""))
    if not NAME.fullmatch(tool_name):
        raise ConfigError(f"tool name {tool_name!r} must match {NAME.pattern}", field="tool.name")
    text = (description or inspect.getdoc(handler) or "").strip()
    if not text or len(text) > DESCRIPTION_MAX_CHARS or clean_text(text)[1]:
        raise ConfigError(
            f"tool {tool_name} needs a docstring or description of at most {DESCRIPTION_MAX_CHARS} characters,"
            " without NUL and lone surrogates",
            field=f"tool.{tool_name}.description",
        )
    if not 0 < timeout_s <= TIMEOUT_MAX_S:
        raise ConfigError(
            f"tool {tool_name}: timeout_s must be above 0, at most {TIMEOUT_MAX_S:g}",
            field=f"tool.{tool_name}.timeout_s",
        )
    try:
        arguments, context_parameter = _arguments_of(tool_name, handler)
        schema = arguments.model_json_schema()
    except (NameError, TypeError, SyntaxError, PydanticUserError) as error:
        # An annotation that names nothing or that no JSON Schema can say, a parameter name that a model cannot have.
        raise ConfigError(
            f"tool {tool_name}: its parameters cannot be described: {error}",
            field=f"tool.{tool_name}.parameters",
        ) from error
    schema.pop("title", None)
    return Tool(
        name=tool_name,
        description=text,
        parameters=schema,
        handler=handler,
        arguments=arguments,
        is_async=inspect.iscoroutinefunction(handler),
        repeatable=repeatable,
        timeout_s=timeout_s,
        context_parameter=context_parameter,
    )


def _arguments_of(tool_name: str, handler: Handler) -> tuple[type[BaseModel], str | None]:
    hints = inspect.get_annotations(handler, eval_str=True)
    fields: dict[str, Any] = {}
    context_parameter = None
    for name, parameter in inspect.signature(handler).parameters.items():
        where = f"tool.{tool_name}.{name}"
        kinds = (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY)
        if parameter.kind in kinds or name.startswith("_"):
            raise ConfigError(f"tool {tool_name}: parameter {name} must be an ordinary one", field=where)
        if name not in hints:
            raise ConfigError(f"tool {tool_name}: parameter {name} needs an annotation", field=where)
        if hints[name] is ToolContext:
            context_parameter = name
            continue
        fields[name] = (hints[name], ... if parameter.default is parameter.empty else parameter.default)
    model: type[BaseModel] = create_model(
        f"{tool_name}_arguments", __config__=ConfigDict(extra="forbid", frozen=True), **fields
    )
    return model, context_parameter


def _explain(error: ValidationError) -> str:
    parts = [
        f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}"
        for e in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    return "arguments do not fit: " + "; ".join(parts[:8])


async def call_handler(
    tool_: Tool,
    keywords: Mapping[str, Any],
    context: ToolContext,
    run_blocking: Callable[[Callable[[], Any], float], Awaitable[Any]],
) -> Any:
    """Call a tool's handler: async ones on the loop, others through ``run_blocking(function, timeout_s)``.

    The one function through which a host's tool code runs (decision 3): what it raises is the host's.
    """
    arguments = dict(keywords)
    if tool_.context_parameter is not None:
        arguments[tool_.context_parameter] = context
    if tool_.is_async:
        return await tool_.handler(**arguments)
    return await run_blocking(lambda: tool_.handler(**arguments), tool_.timeout_s)

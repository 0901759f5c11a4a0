"""Tools from annotated functions: schema, decoding, what is refused, and the call itself."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

from shared.agents import Tool, ToolContext, tool
from shared.agents.tools import ARGUMENTS_MAX_BYTES, Handler, ToolInputError, call_handler
from shared.domain.errors import ConfigError

CONTEXT = ToolContext("ses_1", "owner", UUID(int=1), "run", "1.0.0:t:0", "run:call:0")


class Place(BaseModel):
    """A place."""

    name: str
    floor: int = 0


@tool
def everything(
    count: int,
    mode: Literal["fast", "slow"],
    places: list[Place],
    note: str | None = None,
    share: Annotated[float, Field(ge=0, le=1, description="a part")] = 0.5,
) -> str:
    """Use every sort of parameter."""
    return f"{count} {mode} {[type(p).__name__ for p in places]} {note} {share}"


def test_the_schema_says_names_types_bounds_defaults_and_what_is_required() -> None:
    schema = everything.parameters
    assert (schema["type"], schema["additionalProperties"]) == ("object", False)
    assert schema["required"] == ["count", "mode", "places"]
    properties = schema["properties"]
    assert properties["count"]["type"] == "integer"
    assert properties["mode"]["enum"] == ["fast", "slow"]
    assert properties["places"]["items"] == {"$ref": "#/$defs/Place"}
    assert properties["note"]["default"] is None
    assert properties["share"].items() >= {"minimum": 0, "maximum": 1, "default": 0.5}.items()
    assert schema["$defs"]["Place"]["required"] == ["name"]
    assert (everything.name, everything.description) == ("everything", "Use every sort of parameter.")
    assert (everything.repeatable, everything.is_async, everything.timeout_s) == (False, False, 120.0)


def test_arguments_become_the_handlers_own_types() -> None:
    keywords = everything.decode('{"count": 2, "mode": "fast", "places": [{"name": "here"}]}')
    assert keywords == {
        "count": 2,
        "mode": "fast",
        "places": [Place(name="here")],
        "note": None,
        "share": 0.5,
    }
    assert everything.handler(**keywords) == "2 fast ['Place'] None 0.5"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("{", "not JSON"),
        ("nothing", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("1" * 5_000, "not JSON"),
        ("[]", "arguments"),
        ("null", "arguments"),
        ("{}", "count: Field required"),
        ('{"count": "x", "mode": "fast", "places": []}', "count:"),
        ('{"count": 1, "mode": "other", "places": []}', "mode:"),
        ('{"count": 1, "mode": "fast", "places": [{}]}', "places.0.name:"),
        ('{"count": 1, "mode": "fast", "places": [], "share": 2}', "share:"),
        ('{"count": 1, "mode": "fast", "places": [], "extra": 2}', "extra:"),
        (f'{{"note": "{"x" * ARGUMENTS_MAX_BYTES}"}}', "larger than"),
    ],
)
def test_arguments_that_do_not_fit_are_told_to_the_model(arguments: str, says: str) -> None:
    with pytest.raises(ToolInputError, match="arguments") as refusal:
        everything.decode(arguments)
    assert says in str(refusal.value)


def test_an_explanation_does_not_grow_with_the_number_of_faults() -> None:
    with pytest.raises(ToolInputError) as refusal:
        everything.decode("{" + ",".join(f'"k{n}": 1' for n in range(1_000)) + "}")
    assert str(refusal.value).count(";") < 10


def test_no_arguments_at_all_are_an_empty_object() -> None:
    @tool
    def ping() -> str:
        """Answer."""
        return "pong"

    assert ping.decode("") == ping.decode("{}") == {}
    assert ping.parameters["properties"] == {}


def test_name_description_and_declarations_may_be_given() -> None:
    @tool(name="look-up", description=" Looks up. ", repeatable=True, timeout_s=3)
    async def whatever(x: int) -> str:
        return str(x)

    assert (whatever.name, whatever.description) == ("look-up", "Looks up.")
    assert (whatever.repeatable, whatever.timeout_s, whatever.is_async) == (True, 3, True)


def test_the_context_is_no_parameter_of_the_model() -> None:
    @tool
    def act(x: int, context: ToolContext) -> str:
        """Act."""
        return context.idempotency_token

    assert list(act.parameters["properties"]) == ["x"]
    assert act.context_parameter == "context"
    with pytest.raises(ToolInputError, match="context"):
        act.decode('{"x": 1, "context": {}}')


async def refuse_blocking(function: Callable[[], Any], timeout_s: float) -> Any:
    raise AssertionError("an async handler runs on the loop")


@pytest.mark.behaviour("BEY-01")
async def test_a_handler_is_given_its_context_whatever_its_colour() -> None:
    @tool
    async def on_loop(x: int, context: ToolContext) -> str:
        """Act."""
        return f"{x} {context.idempotency_token}"

    @tool(timeout_s=7)
    def in_thread(context: ToolContext) -> str:
        """Act."""
        return context.invocation_id

    timeouts: list[float] = []

    async def run_blocking(function: Callable[[], Any], timeout_s: float) -> Any:
        timeouts.append(timeout_s)
        return function()

    assert await call_handler(on_loop, {"x": 1}, CONTEXT, refuse_blocking) == "1 run:call:0"
    assert await call_handler(in_thread, {}, CONTEXT, run_blocking) == "1.0.0:t:0"
    assert timeouts == [7]


def without_annotation(x) -> str:  # type: ignore[no-untyped-def]  # the missing annotation is what is tested
    """Act."""
    return str(x)


def with_rest(*rest: int) -> None:
    """Act."""


def with_options(**options: int) -> None:
    """Act."""


def positional(x: int, /) -> None:
    """Act."""


def undescribed(x: int) -> None: ...


def unschemable(x: Callable[[], int]) -> None:
    """Act."""


def underscored(_x: int) -> None:
    """Act."""


def unresolved(x: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821  # that nothing has this name is tested
    """Act."""


@pytest.mark.parametrize(
    ("handler", "field"),
    [
        (without_annotation, "tool.without_annotation.x"),
        (with_rest, "tool.with_rest.rest"),
        (with_options, "tool.with_options.options"),
        (positional, "tool.positional.x"),
        (undescribed, "tool.undescribed.description"),
        (unschemable, "tool.unschemable.parameters"),
        (underscored, "tool.underscored._x"),
        (unresolved, "tool.unresolved.parameters"),
        (lambda: None, "tool.name"),
        (functools.partial(positional, 1), "tool.name"),
    ],
)
def test_a_function_that_makes_no_tool_is_refused_and_the_place_named(handler: Handler, field: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        tool(handler)
    assert refusal.value.fields["field"] == field


def made(**options: Any) -> Tool:
    def act() -> None:
        """Act."""

    return tool(**options)(act)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"name": "a b"}, "tool.name"),
        ({"name": "x" * 65}, "tool.name"),
        ({"description": " "}, "tool.act.description"),
        ({"description": "x" * 4_097}, "tool.act.description"),
        ({"description": "\ud800"}, "tool.act.description"),
        ({"description": "a\x00"}, "tool.act.description"),
        ({"timeout_s": 0}, "tool.act.timeout_s"),
        ({"timeout_s": -1}, "tool.act.timeout_s"),
        ({"timeout_s": float("nan")}, "tool.act.timeout_s"),
        ({"timeout_s": float("inf")}, "tool.act.timeout_s"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused_by_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        made(**options)
    assert refusal.value.fields["field"] == field

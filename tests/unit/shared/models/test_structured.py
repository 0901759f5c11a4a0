"""Values of a type: the schema that goes out, and what a model's text may be when it comes back."""

from __future__ import annotations

import asyncio
import traceback
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from shared.domain.errors import ConfigError, ModelOutputInvalid, ModelUnavailable
from shared.models.scripted import ScriptedStructuredModel, ScriptEnded
from shared.models.structured import StructuredModel, read_structured, response_format, strict_schema
from shared.models.types import ModelRequest, UserMessage

REQUEST = ModelRequest("m", (UserMessage("hi"),))


class Fact(BaseModel):
    model_config = ConfigDict(extra="forbid")

    title: Annotated[str, Field(max_length=8)]
    weight: int | None = None


class Facts(BaseModel):
    model_config = ConfigDict(extra="forbid")

    facts: Annotated[list[Fact], Field(max_length=2)] = []


def test_every_object_of_a_strict_schema_is_closed_and_requires_all_its_members() -> None:
    schema = strict_schema(Facts)
    fact = schema["$defs"]["Fact"]
    assert (schema["additionalProperties"], schema["required"]) == (False, ["facts"])
    assert (fact["additionalProperties"], fact["required"]) == (False, ["title", "weight"])
    # A member named like a keyword stays; the keywords themselves go.
    assert fact["properties"]["title"] == {"type": "string"}
    assert "default" not in fact["properties"]["weight"]
    assert schema["properties"]["facts"]["maxItems"] == 2


def test_a_schema_is_asked_for_by_a_name_that_the_wire_allows() -> None:
    odd = type("Ödd[Name]" * 20, (Facts,), {})
    wanted = response_format(odd)["json_schema"]
    assert wanted["strict"] is True
    assert wanted["name"] == ("_dd_Name" * 20)[:64]


def test_an_object_of_any_members_cannot_be_asked_for() -> None:
    class Loose(BaseModel):
        extra: dict[str, Any]

    with pytest.raises(ConfigError, match="any members"):
        response_format(Loose)


def test_characters_that_cannot_be_stored_are_replaced_in_the_value() -> None:
    text = '{"facts": [{"title": "a\\u0000b\\ud800c\\ud83d\\ude42", "weight": 1}]}'
    assert read_structured(text, Facts).facts[0].title == "a\ufffdb\ufffdc\U0001f642"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("Sure! Here you are", "not-json"),
        ('{"facts": [', "not-json"),
        ('{"facts": NaN}', "not-json"),
        ("[" * 100_000, "not-json"),
        ("null", "schema"),
        ("[]", "schema"),
        ('{"facts": [{"title": "secret words"}]}', "schema"),
        ('{"facts": [{"title": 7}]}', "schema"),
        ('{"facts": [], "secret": 1}', "schema"),
        ('{"facts": [{"title": "a"}, {"title": "b"}, {"title": "c"}]}', "schema"),
    ],
)
def test_a_text_that_is_no_such_value_is_refused_without_being_quoted(text: str, reason: str) -> None:
    with pytest.raises(ModelOutputInvalid) as caught:
        read_structured(text, Facts)
    assert caught.value.fields["reason"] == reason
    assert "secret words" not in "".join(traceback.format_exception(caught.value))


def test_an_error_names_a_few_places_only() -> None:
    with pytest.raises(ModelOutputInvalid, match=r"facts/0/title string_type, .* and 1 more$"):
        read_structured('{"facts": [{"title": 1}, {"title": 2, "x": 1, "y": 2}]}', Facts)


async def test_the_scripted_model_answers_in_order_as_an_endpoint_would() -> None:
    scripted = ScriptedStructuredModel(
        [
            '{"facts": []}',
            {"facts": [{"title": "a"}]},
            Facts(),
            lambda request: request.model,
            ModelUnavailable("away"),
        ]
    )
    model: StructuredModel = scripted
    assert (await model.complete(REQUEST, Facts)).value == Facts()
    assert (await model.complete(REQUEST, Facts)).value.facts == [Fact(title="a")]
    assert (await model.complete(REQUEST, Facts)).value == Facts()
    with pytest.raises(ModelOutputInvalid):
        await model.complete(REQUEST, Facts)
    with pytest.raises(ModelUnavailable):
        await model.complete(REQUEST, Facts)
    with pytest.raises(ScriptEnded):
        await model.complete(REQUEST, Facts)
    assert scripted.requests == [REQUEST] * 6


async def test_the_scripted_model_can_be_held() -> None:
    scripted = ScriptedStructuredModel(lambda request: Facts())
    scripted.hold()
    async with asyncio.TaskGroup() as group:
        call = group.create_task(scripted.complete(REQUEST, Facts))
        await scripted.started()
        assert not call.done()
        scripted.release()
    assert call.result().value == Facts()

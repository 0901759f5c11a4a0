"""The port of models that answer with a value of a given type, and how such an answer is asked for and read. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, NoReturn, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from shared.domain.bounds import clean_json, clean_text
from shared.domain.errors import ConfigError, ModelOutputInvalid
from shared.models.types import ModelRequest, Usage

T = TypeVar("T", bound=BaseModel)

#: How many places of a value that does not fit its type an error names; their values it never shows.
PLACES_SHOWN = 3
NAME_MAX_CHARS = 64

#: What endpoints refuse in a strict schema, or read over; the value is checked against all of it when it comes.
_DROPPED_KEYWORDS: Final = frozenset(
    {"default", "title", "minLength", "maxLength", "examples", "uniqueItems"}
)
_SCHEMA_MAPS: Final = frozenset({"properties", "$defs"})


@dataclass(frozen=True, slots=True)
class StructuredAnswer(Generic[T]):
    """A value of the type asked for. ``usage`` counts every try; ``model`` is the one that answered, as it says."""

    value: T
    usage: Usage
    model: str


class StructuredModel(Protocol):
    """A model that answers a conversation with one value of a type.

    **Value.** It has passed its type's own validation. NUL and lone surrogates in its strings are U+FFFD. It is model
    text all the same: untrusted (law 9).

    **Failure.** ``ModelUnavailable`` and ``ModelStreamBroken`` the endpoint is away, or its answer broke;
    ``ModelOutputInvalid`` the answer is cut, empty, no JSON or not of the type, and so were its bounded repetitions;
    ``ModelRefused`` the request is wrong, or the model declines it (``reason`` is then ``refusal`` or
    ``content-filter``); ``ModelAuthFailed`` the credentials are. No error holds a credential or the model's words.

    **Sharing.** Any number of calls run side by side. A cancelled call closes its connection first.
    """

    async def complete(self, request: ModelRequest, schema: type[T]) -> StructuredAnswer[T]:
        """Return the answer to ``request``, which declares no tools, as a ``schema``."""
        ...


def response_format(schema: type[BaseModel]) -> dict[str, Any]:
    """Return the ``response_format`` that asks for a ``schema``; raise ``ConfigError`` for one that cannot be strict."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", schema.__name__)[:NAME_MAX_CHARS]
    return {
        "type": "json_schema",
        "json_schema": {"name": name, "schema": strict_schema(schema), "strict": True},
    }


def strict_schema(schema: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of ``schema`` as strict output wants it: every member required, no other one allowed."""
    strict: dict[str, Any] = _strict(schema.model_json_schema(), schema.__name__)
    return strict


def _strict(node: Any, name: str) -> Any:
    if isinstance(node, list):
        return [_strict(item, name) for item in node]
    if not isinstance(node, Mapping):
        return node
    strict = {
        key: {member: _strict(inner, name) for member, inner in value.items()}
        if key in _SCHEMA_MAPS
        else _strict(value, name)
        for key, value in node.items()
        if key not in _DROPPED_KEYWORDS
    }
    if node.get("type") == "object":
        if "properties" not in node:
            raise ConfigError(
                f"{name} holds an object of any members, which no strict schema can say", field=name
            )
        strict["additionalProperties"] = False
        strict["required"] = list(node["properties"])
    return strict


def read_structured(text: str, schema: type[T]) -> T:
    """Return the value that a model's whole ``text`` stands for; raise ``ModelOutputInvalid``."""
    if not text.strip():
        raise ModelOutputInvalid("the model answered nothing", reason="empty")
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        value = None
        failure: ModelOutputInvalid | None = ModelOutputInvalid(
            "the model's answer is no JSON", reason="not-json"
        )
    else:
        failure = None
    if failure is None:
        try:
            return schema.model_validate(clean_json(value))
        except ValidationError as error:
            failure = ModelOutputInvalid(
                f"the model's answer is no {schema.__name__}: {_describe(error)}", reason="schema"
            )
        except RecursionError:
            failure = ModelOutputInvalid("the model's answer is nested too deep", reason="schema")
    # Raised without the cause: it quotes the answer.
    raise failure


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _describe(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_input=False, include_context=False)
    places = [f"{_place(item['loc'])} {item['type']}" for item in found[:PLACES_SHOWN]]
    more = f" and {len(found) - PLACES_SHOWN} more" if len(found) > PLACES_SHOWN else ""
    return ", ".join(places) + more


def _place(loc: tuple[int | str, ...]) -> str:
    # A member's name may be the model's own invention.
    return clean_text("/".join(str(part)[:NAME_MAX_CHARS] for part in loc))[0] or "the whole"

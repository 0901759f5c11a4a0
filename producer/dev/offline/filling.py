"""Fills a JSON Schema: with the facts of the user's text where it asks for those, else with the least value of each type."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from producer.dev.offline.facts import find_facts

DEPTH_MAX = 32
SIZE_MAX = 1000

_FACT_MEMBERS: Final = frozenset({"subject", "statement", "quote"})


def fill_schema(schema: Mapping[str, Any], text: str) -> Any:
    """Return a value of ``schema``. A schema with ``facts`` of subject, statement and quote gets those in ``text``."""
    value = _least(schema, schema, 0)
    facts = _facts_schema(schema)
    if facts is None or not isinstance(value, dict):
        return value
    example = _least(facts.get("items"), schema, 0)
    found = [
        {**example, "subject": fact.subject, "statement": fact.statement, "quote": fact.quote}
        for fact in find_facts(text)
    ]
    most = facts.get("maxItems")
    return {**value, "facts": found[:most] if isinstance(most, int) else found}


def _facts_schema(schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    facts = _resolved(_object(schema.get("properties")).get("facts"), schema)
    item = _resolved(facts.get("items"), schema)
    return facts if _object(item.get("properties")).keys() >= _FACT_MEMBERS else None


def _least(node: Any, root: Mapping[str, Any], depth: int) -> Any:
    schema = _resolved(node, root)
    if depth > DEPTH_MAX:
        return None
    if "const" in schema:
        return schema["const"]
    if isinstance(choices := schema.get("enum"), list) and choices:
        return choices[0]
    for word in ("anyOf", "oneOf"):
        if isinstance(options := schema.get(word), list) and options:
            return _least(min(options, key=lambda option: not _is_null(option)), root, depth + 1)
    if isinstance(parts := schema.get("allOf"), list) and parts:
        return _least(parts[0], root, depth + 1)
    return _least_of_type(schema, root, depth)


def _least_of_type(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = "null" if "null" in kind else next(iter(kind), None)
    match kind or ("object" if "properties" in schema else None):
        case "object":
            members = _object(schema.get("properties"))
            required = [name for name in schema.get("required") or () if name in members]
            return {name: _least(members[name], root, depth + 1) for name in required}
        case "array":
            return [_least(schema.get("items"), root, depth + 1) for _ in range(_size(schema, "minItems"))]
        case "string":
            return "x" * _size(schema, "minLength")
        case "integer":
            return _least_number(schema)
        case "number":
            return float(_least_number(schema))
        case "boolean":
            return False
        case _:
            return None


def _least_number(schema: Mapping[str, Any]) -> int:
    least = schema.get("minimum", 0)
    above = schema.get("exclusiveMinimum")
    if isinstance(above, int | float) and not isinstance(above, bool):
        least = int(above) + 1
    return math.ceil(least) if isinstance(least, int | float) else 0


def _size(schema: Mapping[str, Any], word: str) -> int:
    size = schema.get(word, 0)
    return min(max(size, 0), SIZE_MAX) if isinstance(size, int) else 0


def _is_null(option: Any) -> bool:
    return isinstance(option, dict) and option.get("type") == "null"


def _resolved(node: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    for _ in range(DEPTH_MAX):
        reference = node.get("$ref") if isinstance(node, dict) else None
        if not isinstance(reference, str):
            break
        node = root
        for part in reference.removeprefix("#").strip("/").split("/"):
            node = _object(node).get(part) if part else node
    return _object(node)


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}

"""Arrays as PostgreSQL writes them: a list of a statement's parameters is sent as one text, which the statement casts.

The driver finds a type and a dumper for each list and each of its elements anew, which costs a commit more than all else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from uuid import UUID


def with_array_texts(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters with each list as text; one that holds other things than text, bytes, ids and integers stays."""
    return {name: array_text(value) if type(value) is list else value for name, value in params.items()}


def array_text(values: list[Any]) -> str | list[Any]:
    """Return a flat list as PostgreSQL writes an array, or as it is when one of its elements is of another kind."""
    try:
        return "{" + ",".join([_WRITERS[type(value)](value) for value in values]) + "}"
    except KeyError:
        return values


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _hex(data: bytes) -> str:
    return '"\\\\x' + data.hex() + '"'


_WRITERS: Final[Mapping[type, Callable[[Any], str]]] = {
    str: _quoted,
    bytes: _hex,
    int: str,
    UUID: lambda value: value.hex,
    type(None): lambda _: "NULL",
}

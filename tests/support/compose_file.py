"""``compose.yaml`` as a test reads it: its services after merging, and its variables filled in as Compose fills them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

PATH: Final = Path(__file__).resolve().parents[2] / "compose.yaml"

#: The innermost variable of a text, so that a default may hold another one: name, operator, default or message.
_VARIABLE: Final = re.compile(r"\$\{(\w+)(?:(:-|:\?)([^${}]*))?\}")
_SECONDS: Final = re.compile(r"(\d+)s")


def read_compose() -> dict[str, Any]:
    """Return the whole file."""
    content: dict[str, Any] = yaml.safe_load(PATH.read_text(encoding="utf-8"))
    return content


def own_services(services: Mapping[str, Any]) -> dict[str, Any]:
    """Return the services that run our image."""
    return {name: service for name, service in services.items() if "build" in service}


def fill(value: Any, variables: Mapping[str, str]) -> Any:
    """Return a value with its variables filled in; a required one that is missing raises ``KeyError`` with its message."""
    match value:
        case str():
            return _fill_text(value, variables)
        case dict():
            return {key: fill(inner, variables) for key, inner in value.items()}
        case list():
            return [fill(inner, variables) for inner in value]
        case _:
            return value


def variables_in(value: Any) -> Iterator[str]:
    """Yield the name of every variable in a value, however deep."""
    match value:
        case str():
            yield from re.findall(r"\$\{(\w+)", value)
        case dict():
            for inner in value.values():
                yield from variables_in(inner)
        case list():
            for inner in value:
                yield from variables_in(inner)
        case _:
            pass


def seconds(text: str) -> int:
    """Return a duration of the file, which are all written in seconds."""
    found = _SECONDS.fullmatch(text)
    assert found, text
    return int(found[1])


def _fill_text(text: str, variables: Mapping[str, str]) -> str:
    while found := _VARIABLE.search(text):
        name, operator, rest = found.groups()
        given = variables.get(name, "")
        if not given and operator == ":?":
            raise KeyError(f"{name}: {rest}")
        text = text[: found.start()] + (given or rest or "") + text[found.end() :]
    return text

"""Named SQL statements: a ``queries.sql`` beside an adapter, each block headed by ``-- name: …`` and described."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shared.domain.errors import Broken

_HEAD = re.compile(r"^-- name: ([a-z][a-z0-9_]*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement: its name (for counters and errors) and its text with ``%(name)s`` parameters."""

    name: str
    text: str


def load_statements(path: Path) -> Mapping[str, Statement]:
    """Read the named blocks of ``path``. Raises ``Broken`` for a name given twice or text outside a block."""
    head, *parts = _HEAD.split(path.read_text(encoding="utf-8"))
    if [line for line in head.splitlines() if line and not line.startswith("--")]:
        raise Broken(f"{path.name} has SQL before its first name")
    found: dict[str, Statement] = {}
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        text = "\n".join(line for line in body.splitlines() if not line.startswith("--")).strip().rstrip(";")
        if name in found or not text:
            raise Broken(f"{path.name}: statement {name} is empty or stands twice")
        found[name] = Statement(name, text)
    return found

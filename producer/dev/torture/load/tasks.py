"""A background task as a client of the load knows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(slots=True)
class StartedTask:
    """One background task that a client started under a key. ``ids`` are those that its answers named: there is one task.

    ``cancel`` is what came of asking to end it: ``asked`` got no answer.
    """

    name: str
    session: str
    ids: set[str] = field(default_factory=set)
    cancel: Literal["", "asked", "cancelled", "too-late"] = ""

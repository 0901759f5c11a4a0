"""The base of what a record of the framework holds."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Payload(BaseModel):
    """Base of stored payloads: frozen, exact, versioned."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    v: Literal[1] = 1

"""Running one coroutine to its end, where a test or a module is no coroutine itself."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run it in an event loop of its own."""
    with asyncio.Runner() as runner:
        return runner.run(work)

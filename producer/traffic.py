"""What is in flight in this process, and whether it is going away (API-14, API-15)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shared.domain.errors import Draining


class Closing(asyncio.Event):
    """Set when a process goes away; whoever told it a callback is called then, without a task that waits."""

    def __init__(self) -> None:
        super().__init__()
        self._callbacks: set[Callable[[], None]] = set()

    def set(self) -> None:
        """Say that the process goes away."""
        super().set()
        for callback in tuple(self._callbacks):
            callback()

    def add_callback(self, callback: Callable[[], None]) -> None:
        """Call this when it is set; with the loop's next turn if it is."""
        self._callbacks.add(callback)
        if self.is_set():
            asyncio.get_running_loop().call_soon(callback)

    def remove_callback(self, callback: Callable[[], None]) -> None:
        """Do not call this any more."""
        self._callbacks.discard(callback)


class Traffic:
    """Counts requests, admissions and streams of one process; made once by its root.

    ``begin_drain`` is final: from then on ``admitting`` raises ``Draining``, and whoever streams is told by ``draining``.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.admissions = 0
        self.streams = 0
        self.draining = Closing()

    @property
    def is_draining(self) -> bool:
        """Whether this process admits nothing more."""
        return self.draining.is_set()

    def begin_drain(self) -> None:
        """Refuse new admissions and let streams end; call it in the event loop's thread."""
        self.draining.set()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request from its first byte to the last of its answer."""
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1

    @contextmanager
    def admitting(self, **about: str) -> Iterator[None]:
        """Count an admission; raises ``Draining``, with what it is ``about``, when this process takes none (SHD-23)."""
        if self.is_draining:
            raise Draining(
                "this process is going away; try again", retry_after_s=1.0, reason="draining", **about
            )
        self.admissions += 1
        try:
            yield
        finally:
            self.admissions -= 1

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Count an open stream."""
        self.streams += 1
        try:
            yield
        finally:
            self.streams -= 1

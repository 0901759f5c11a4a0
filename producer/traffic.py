"""What is in flight in this process, and whether it is going away (API-14, API-15)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from shared.domain.errors import Draining


class Traffic:
    """Counts requests, admissions and streams of one process; made once by its root.

    ``begin_drain`` is final: from then on ``admitting`` raises ``Draining``, and whoever streams is told by ``draining``.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.admissions = 0
        self.streams = 0
        self.draining = asyncio.Event()

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

"""Who is told of the commits that one instance makes: listeners of a session, each with the newest seq only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from shared.domain.ids import SessionId


class _Ear:
    """One listener: a seq that it has not taken yet is replaced by a newer one."""

    def __init__(self) -> None:
        self._seq: int | None = None
        self._is_over = False
        self._news = asyncio.Event()

    def tell(self, seq: int) -> None:
        self._seq = seq if self._seq is None else max(self._seq, seq)
        self._news.set()

    def close(self) -> None:
        self._is_over = True
        self._news.set()

    async def __aiter__(self) -> AsyncIterator[int]:
        while True:
            await self._news.wait()
            self._news.clear()
            seq, self._seq = self._seq, None
            if seq is not None:
                yield seq
            if self._is_over:
                return


class News:
    """The listeners of one instance, by session."""

    def __init__(self) -> None:
        self._ears: dict[SessionId, set[_Ear]] = {}

    def tell(self, session: SessionId, seq: int) -> None:
        """Say that a session's log reached a seq."""
        for ear in self._ears.get(session, ()):
            ear.tell(seq)

    def close(self, session: SessionId) -> None:
        """Say that a session is gone: its listeners end."""
        for ear in self._ears.get(session, ()):
            ear.close()

    @contextmanager
    def listen(self, session: SessionId) -> Iterator[_Ear]:
        """Listen for the block."""
        ear = _Ear()
        self._ears.setdefault(session, set()).add(ear)
        try:
            yield ear
        finally:
            ears = self._ears[session]
            ears.discard(ear)
            if not ears:
                del self._ears[session]

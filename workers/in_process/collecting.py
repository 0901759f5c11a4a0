"""Where a whole turn writes: it is collected for the one append at the end, and nothing is stored before (THR-50, THR-58)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from shared.conversations import ConversationMessage
from shared.sessions.vocabulary import Payload, RequestPrepared
from shared.turns.queue import CallEntry
from workers.in_process.journal import messages_of

T = TypeVar("T")


class CollectingJournal:
    """Implements :class:`workers.turns.journal.StepJournal`; one object a turn.

    ``messages`` are whole steps' only. A whole turn is never continued by another attempt, so its calls have no ledger.
    The seq that is answered is the log's as the turn began.
    """

    def __init__(self, seq: int) -> None:
        self.messages: list[ConversationMessage] = []
        self._header: RequestPrepared | None = None
        self._seq = seq

    async def append(
        self, payloads: Sequence[Payload], *, stepped: bool = False, calls: Sequence[CallEntry] = ()
    ) -> int:
        """Keep the messages among these, and what the model was told beside them."""
        self.messages += messages_of(payloads)
        for payload in payloads:
            if isinstance(payload, RequestPrepared):
                self._header = payload
        return self._seq

    async def flush(self) -> int:
        """See the port."""
        return self._seq

    async def write(self, op: Callable[[], Awaitable[T]]) -> T:
        """See the port. What the host writes is its own: it stands also when the turn is not kept."""
        return await op()

    @property
    def instructions(self) -> str | None:
        """The instructions as they were evaluated for the last request; None without one (THR-53)."""
        return None if self._header is None else self._header.system

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The exact declarations that the last request's calls were made under (THR-56)."""
        return [] if self._header is None else [tool.model_dump(mode="json") for tool in self._header.tools]

"""Reading a session's memory back into what it inherits: its own records, then its ancestors' up to where they were forked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from shared.domain.ids import SessionId
from shared.sessions.records import Head, Record
from workers.context.history import HISTORY_PAGE_RECORDS

#: Gives a page of a session's memory records before a seq (None: the newest), last first.
ReadSessionBack = Callable[[SessionId, int | None], Awaitable[Sequence[Record]]]
ReadHead = Callable[[SessionId], Awaitable[Head]]


class LineageReader:
    """Pages of a session's memory records, last first, that go on in its parent where its own log begins.

    One object a reading; the first call says before which seq of the session's own log. A head is read only where there
    may be something to inherit: when the caller knows of it, or knows nothing (``may_inherit``), and when the oldest turn of
    the log is not its first.
    """

    def __init__(
        self, session: SessionId, read_back: ReadSessionBack, read_head: ReadHead, *, may_inherit: bool
    ) -> None:
        self._session = session
        self._read_back = read_back
        self._read_head = read_head
        self._may_inherit = may_inherit
        self._before: int | None = None
        self._has_begun = False

    async def __call__(self, before: int | None) -> Sequence[Record]:
        """Return the next page; shorter than a page only where nothing is inherited any more."""
        if not self._has_begun:
            self._has_begun, self._before = True, before
        records: list[Record] = []
        while len(records) < HISTORY_PAGE_RECORDS:
            page = await self._read_back(self._session, self._before)
            records.extend(page)
            if page:
                self._before = page[-1].seq
                self._may_inherit = self._may_inherit or (page[-1].turn or 1) > 1
            if len(page) < HISTORY_PAGE_RECORDS and not await self._go_up():
                break
        return records

    async def _go_up(self) -> bool:
        """Go on in the parent, below what was inherited of it; False when nothing was."""
        if not self._may_inherit:
            return False
        head = await self._read_head(self._session)
        if head.parent is None or head.inherited is None:
            return False
        self._session, self._before = head.parent, head.inherited + 1
        return True

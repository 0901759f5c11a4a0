"""Check, then append: a decision is asked again, with what others wrote, until its commit is the first."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shared.domain.errors import RevisionConflict, SessionContended
from shared.host.port import Decide
from shared.sessions.log import READ_MAX_RECORDS
from shared.sessions.records import Draft, Head, Record
from shared.sessions.vocabulary import refuse_reserved


@dataclass(frozen=True, slots=True)
class Transaction:
    """A decision to commit. ``head`` reads the head, ``read`` one page after a seq, ``append`` commits at a revision."""

    head: Callable[[], Awaitable[Head]]
    read: Callable[[int], Awaitable[Sequence[Record]]]
    append: Callable[[Sequence[Draft], int], Awaitable[object]]

    async def run(self, decide: Decide, *, after: int, retries: int) -> Any:
        """Return the decision's answer once its records are stored; it may append none, and then nothing is written.

        Raises ``ReservedKind`` for a framework kind and ``SessionContended`` when others were first ``retries`` times
        after the first; nothing is stored then.
        """
        for _ in range(retries + 1):
            head = await self.head()
            records = await read_through(self.read, after=after, through=head.seq)
            answer = decide(records)
            decision = await answer if inspect.isawaitable(answer) else answer
            refuse_reserved([draft.kind for draft in decision.drafts])
            if not decision.drafts:
                return decision.answer
            try:
                await self.append(tuple(decision.drafts), head.revision)
            except RevisionConflict:
                continue
            return decision.answer
        raise SessionContended("others were always first", session=head.id, tries=retries + 1)


async def read_through(
    read: Callable[[int], Awaitable[Sequence[Record]]], *, after: int, through: int
) -> list[Record]:
    """Read page by page what stands after one seq, up to another."""
    records: list[Record] = []
    full = after < through
    while full:
        page = await read(records[-1].seq if records else after)
        records.extend(record for record in page if record.seq <= through)
        full = len(page) == READ_MAX_RECORDS and page[-1].seq < through
    return records

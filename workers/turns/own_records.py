"""What an attempt stored of its turn: enough to tell how the log stands, if nobody else wrote to it, and what it shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from shared.domain.canonical import chain_tail
from shared.domain.ids import SessionId
from shared.sessions.records import Draft, Record
from shared.sessions.vocabulary import MEMORY_KINDS
from shared.turns.queue import Opened
from workers.context.history import PastTurn, past_turn

#: When a record was stored only the log knows; no fold looks at it.
_AT: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(slots=True)
class OwnRecords:
    """Notes each commit's records as it is stored, in order."""

    _digests: list[bytes] = field(default_factory=list)
    _memory: list[tuple[int, Draft]] = field(default_factory=list)

    def note(self, drafts: Sequence[Draft]) -> None:
        """Note the records of the next commit."""
        for draft in drafts:
            if draft.kind in MEMORY_KINDS:
                self._memory.append((len(self._digests), draft))
            self._digests.append(draft.digest)

    def tail_after(self, tail: bytes, opened: Opened) -> bytes:
        """Return the log's tail behind them, where they alone follow ``tail``."""
        for n, digest in enumerate(self._digests):
            tail = chain_tail(tail, opened.started_seq + n, opened.number, digest)
        return tail

    def as_past_turn(self, session_id: SessionId, opened: Opened) -> PastTurn:
        """Return the turn as later ones show it. Raises ``CorruptRecord`` as a reading of the log does."""
        return past_turn(
            [
                Record(
                    session_id,
                    opened.started_seq + n,
                    opened.number,
                    draft.kind,
                    _AT,
                    draft.text,
                    draft.digest,
                )
                for n, draft in self._memory
            ]
        )

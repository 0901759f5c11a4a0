"""The port of the activity store: how far each processor is in each session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from memory_pipeline.activity.work import PreparedActivity, ProcessorKey
from shared.domain.ids import OwnerId, SessionId
from shared.jobs.queue import JobClaim


@dataclass(frozen=True, slots=True)
class ActivityProgress:
    """A processor's cursor in a session, and the work that is pinned behind it, read at once (ACT-08)."""

    job_id: str
    key: ProcessorKey
    session_id: SessionId
    owner: OwnerId
    through_seq: int
    pending: PreparedActivity | None


@dataclass(frozen=True, slots=True)
class ActivityView:
    """A processor's progress as the session's owner may see it (ACT-49).

    ``pending_seq`` is the record whose output is pinned. ``status`` is the item's: ready, running, idle or parked;
    ``last_failure`` the code of its last failed try, kept after a success.
    """

    key: ProcessorKey
    session_id: SessionId
    through_seq: int
    pending_seq: int | None
    advanced_at: datetime | None
    status: str
    attempts: int
    last_failure: str | None


class ActivityStore(Protocol):
    """Stores progress; every move of it is fenced by the claim of its job (ACT-40, 41).

    All may raise ``StoreBusy`` (nothing stored) and ``StoreUnavailable`` (a write's outcome is unknown).
    """

    async def load(self, job_id: str) -> ActivityProgress | None:
        """Read the progress of a job; None when its session was removed. Raises ``MemoryCorrupt``."""
        ...

    async def pin(self, claim: JobClaim, through_seq: int, prepared: PreparedActivity) -> None:
        """Save what was extracted behind the cursor ``through_seq``; the same again is answered the same.

        Raises ``FenceLost`` when claim or cursor is not the stored one; ``ProcessingRefused`` with reason
        ``work-conflict`` when other work is pinned; ``InputTooLarge`` above 16 MiB. Progress stays as it was then.
        """
        ...

    async def advance(
        self, claim: JobClaim, through_seq: int, to_seq: int, prepared: PreparedActivity | None
    ) -> None:
        """Move the cursor to ``to_seq`` and clear the pinned work in one transaction (ACT-17).

        Raises ``FenceLost`` when claim, cursor or pinned work is not the stored one.
        """
        ...

    async def owe_again(self, claim: JobClaim) -> None:
        """Say that the claimed item is not done: it is ready again as soon as it is settled."""
        ...

    async def register(self, key: ProcessorKey) -> None:
        """Switch a processor on: from now on every ended turn owes it a pass."""
        ...

    async def retire(self, key: ProcessorKey) -> None:
        """Switch a processor off; its progress stays."""
        ...

    async def inspect(self, owner: OwnerId, session_id: SessionId) -> Sequence[ActivityView]:
        """Read the progress of every processor in an owner's session; another owner's reads as empty."""
        ...

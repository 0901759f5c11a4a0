"""The port of the remembering store: admission of intents, their saved steps, and what an owner may see of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, Protocol

from memory_pipeline.remembering.intents import Checkpoint, Intent, Outcome, Progress
from shared.domain.ids import OwnerId
from shared.jobs.queue import JobClaim

#: How many unfinished intents one owner may have; overshoot is at most the admissions in flight.
INTENTS_PER_OWNER: Final = 1_000
LIST_MAX: Final = 200

#: ``queued`` not tried yet; ``running`` under a lease; ``retrying`` failed and due again; ``parked`` given up until an
#: operator puts it back; ``completed`` settled for good.
Status = Literal["queued", "running", "retrying", "parked", "completed"]


@dataclass(frozen=True, slots=True)
class Admitted:
    """The receipt of an admission. ``queued`` promises processing only, not that anything will be recalled (REM-03)."""

    intent_id: str
    status: Literal["queued", "duplicate"]
    job_id: str


@dataclass(frozen=True, slots=True)
class IntentView:
    """An intent as its owner may see it. ``last_failure`` is the code of the last failed try, kept after a success."""

    intent: Intent
    status: Status
    outcome: Outcome | None
    why: str | None
    attempts: int
    last_failure: str | None
    created_at: datetime
    updated_at: datetime
    completed_at: datetime | None


class RememberingStore(Protocol):
    """Stores intents and their progress.

    All may raise ``StoreBusy`` (nothing stored) and ``StoreUnavailable`` (a write's outcome is unknown).
    """

    async def admit(self, intent: Intent, owner: OwnerId) -> Admitted:
        """Persist an intent and the job that is owed for it in one transaction (REM-02, 04).

        The same id and content answer ``duplicate`` with the first job, also at capacity; other content raises
        ``IntentConflict``. ``IntentsFull`` at the owner's capacity: nothing owed is evicted (REM-45).
        """
        ...

    async def load(self, job_id: str) -> Checkpoint | None:
        """Read the intent of a job; None when there is none. Raises ``MemoryCorrupt`` for parts that do not fit."""
        ...

    async def save(self, claim: JobClaim, checkpoint: Checkpoint, progress: Progress) -> Checkpoint:
        """Save the next step under the claim's fence, and only if nobody saved since ``checkpoint`` was read.

        Raises ``FenceLost`` otherwise; nothing is stored then, and the caller dispatches nothing.
        """
        ...

    async def get(self, owner: OwnerId, intent_id: str) -> IntentView:
        """Read an owner's intent; raises ``IntentMissing`` (another owner's reads the same)."""
        ...

    async def list(
        self, owner: OwnerId, *, limit: int = 50, before: tuple[datetime, str] | None = None
    ) -> Sequence[IntentView]:
        """Read an owner's intents, newest first; ``before`` is the last page's (creation time, id). At most ``LIST_MAX``."""
        ...

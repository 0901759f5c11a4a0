"""The finite pass over one intent: exactly one saved step a call, so that a crash costs one step and repeats no other.

::

    Pending ──extract──▶ Proposed ──merge──▶ Prepared ──dispatch──▶ Completed
       │                  │    ▲                │
       │                  │    └───conflict─────┘
       └─ no fact, ───────┴─ no change, ──────────▶ Completed
          no source          rejected

1. A proposal is saved before the target is read, and never extracted again (REM-21, 25).
2. A command is saved before it is dispatched, and dispatched unchanged until its outcome is definite (REM-22, 23): a lost
   answer, an unreachable store or a reused operation id leave it as it is.
3. Only a definite ``MemoryConflict`` leads back to ``Proposed``, and so to a new operation id (REM-24).
4. No lock and no database transaction is held while a model or the writer is awaited (REM-18, 19).

Suppression by an edit, deletion or Forget of a source, and the cleanup after it, are not here: they come with the areas of
memory that admit such events. Until then a source that is gone is ``rejected`` before extraction and refused after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from memory_pipeline.remembering.extraction import (
    SOURCE_MAX_BYTES,
    Extract,
    check_evidence,
    check_proposal_size,
    check_source,
    proposed_facts,
)
from memory_pipeline.remembering.intents import (
    Checkpoint,
    Completed,
    Pending,
    Prepared,
    Progress,
    Proposal,
    Proposed,
    operation_id,
)
from memory_pipeline.remembering.merge import NoChange, PutContent, Reject, merge
from memory_pipeline.remembering.port import RememberingStore
from memory_pipeline.remembering.sources import LoadSource
from memory_pipeline.store.documents import Content, Document, Put
from memory_pipeline.store.port import MemoryReader, MemoryWriter
from shared.domain.errors import MemoryConflict, MemoryWithdrawn, RebasesSpent
from shared.domain.failpoints import Failpoints
from shared.jobs.queue import JobClaim

#: Commands that an intent makes in a row. Then every try of its item makes one more, and the pool's backoff is between.
REBASES_MAX = 20


@dataclass(frozen=True, slots=True)
class Remembering:
    """The parts of the pass, given by the host. ``now_ms`` reads the clock of extraction; ``scopes`` are a new document's."""

    store: RememberingStore
    load_source: LoadSource
    extract: Extract
    reader: MemoryReader
    writer: MemoryWriter
    failpoints: Failpoints
    now_ms: Callable[[], int]
    scopes: tuple[str, ...]
    rebases_max: int = REBASES_MAX

    async def process(self, claim: JobClaim) -> Completed | None:
        """Advance a job's intent until it is completed; None when the job has no intent. Raises what ``advance`` does."""
        checkpoint = await self._load(claim)
        while checkpoint is not None and not isinstance(checkpoint.progress, Completed):
            checkpoint = await self._step(claim, checkpoint)
        return (
            checkpoint.progress
            if checkpoint is not None and isinstance(checkpoint.progress, Completed)
            else None
        )

    async def advance(self, claim: JobClaim) -> Progress | None:
        """Do and save exactly one step of a job's intent and return where it is; None when the job has no intent.

        Raises ``FenceLost`` when the item is another worker's: nothing is saved or dispatched then; ``ProcessingRefused``
        with reason ``source-changed``, ``invalid-evidence`` or ``budget``; ``RebasesSpent`` after ``rebases_max``
        commands that met another revision; and what source, model, reader and writer raise. Progress stays then as it was.
        """
        checkpoint = await self._load(claim)
        if checkpoint is not None and not isinstance(checkpoint.progress, Completed):
            checkpoint = await self._step(claim, checkpoint)
        return checkpoint.progress if checkpoint is not None else None

    async def _load(self, claim: JobClaim) -> Checkpoint | None:
        checkpoint = await self.store.load(claim.job_id)
        await self.failpoints.hit("remember.claimed")
        return checkpoint

    async def _step(self, claim: JobClaim, at: Checkpoint) -> Checkpoint:
        match at.progress:
            case Pending():
                return await self._propose(claim, at)
            case Proposed() as proposed:
                return await self._prepare(claim, at, proposed)
            case Prepared() as prepared:
                return await self._dispatch(claim, at, prepared)
            case Completed():
                return at
            case unknown:
                assert_never(unknown)

    async def _complete(self, claim: JobClaim, at: Checkpoint, completed: Completed) -> Checkpoint:
        saved = await self.store.save(claim, at, completed)
        await self.failpoints.hit("remember.settled")
        return saved

    async def _propose(self, claim: JobClaim, at: Checkpoint) -> Checkpoint:
        """Extract, then check the source once more, since the model may have taken long (REM-28)."""
        source = await self.load_source(at.intent.source, at.owner)
        if source is None:
            return await self._complete(claim, at, Completed("rejected", "source-missing"))
        check_source(source, at.intent)
        if len(source.text.encode()) > SOURCE_MAX_BYTES:
            return await self._complete(claim, at, Completed("rejected", "source-too-large"))
        extraction = await self.extract(source)
        await self.failpoints.hit("remember.extracted")
        facts = proposed_facts(extraction, source.text)
        if not extraction.facts:
            return await self._complete(claim, at, Completed("no-change", "no-facts"))
        if not facts:
            return await self._complete(claim, at, Completed("rejected", "invalid-evidence"))
        proposal = Proposal(
            source=at.intent.source.reference(),
            facts=facts,
            recorded_at=source.recorded_at,
            extracted_at=self.now_ms(),
        )
        source = check_source(await self.load_source(at.intent.source, at.owner), at.intent)
        check_evidence(check_proposal_size(proposal), source)
        saved = await self.store.save(claim, at, Proposed(proposal, attempt=0))
        await self.failpoints.hit("remember.proposed")
        return saved

    async def _prepare(self, claim: JobClaim, at: Checkpoint, proposed: Proposed) -> Checkpoint:
        """Merge into the target as it is now, and save the exact command."""
        intent, proposal = at.intent, proposed.proposal
        source = check_source(await self.load_source(intent.source, at.owner), intent)
        check_evidence(proposal, source)
        current = await self.reader.read(intent.target)
        decision = merge(current, proposal, intent.source)
        await self.failpoints.hit("remember.merged")
        match decision:
            case Reject(why):
                return await self._complete(claim, at, Completed("rejected", why, proposal, proposed.attempt))
            case NoChange(why):
                done = Completed("no-change", why, proposal, proposed.attempt, current)
                return await self._complete(claim, at, done)
            case PutContent(content):
                attempt = proposed.attempt + 1
                command = self._command(at, attempt, content, current)
                saved = await self.store.save(claim, at, Prepared(proposal, attempt, command))
                await self.failpoints.hit("remember.prepared")
                return saved

    def _command(self, at: Checkpoint, attempt: int, content: Content, current: Document | None) -> Put:
        """Return the command of an attempt; a document that exists keeps its locator and scopes."""
        target = at.intent.target
        return Put(
            key=target,
            operation_id=operation_id(at.intent, attempt),
            expected_revision=current.source.revision if current is not None else None,
            locator=current.source.locator if current is not None else f"memory/{target.id}",
            content=content,
            scopes=current.scopes if current is not None else self.scopes,
        )

    async def _dispatch(self, claim: JobClaim, at: Checkpoint, prepared: Prepared) -> Checkpoint:
        """Send the saved command, also while its source cannot be read: its outcome may be unknown (REM-30)."""
        proposal, attempt = prepared.proposal, prepared.attempt
        try:
            written = await self.writer.write(prepared.command, owner=at.owner)
        except MemoryWithdrawn:
            done = Completed("rejected", "target-withdrawn", proposal, attempt)
            return await self._complete(claim, at, done)
        except MemoryConflict:
            saved = await self.store.save(claim, at, Proposed(proposal, attempt))
            if attempt >= self.rebases_max:
                raise RebasesSpent(
                    f"{attempt} commands met another revision", intent=at.intent.id, attempts=attempt
                ) from None
            return saved
        await self.failpoints.hit("remember.dispatched")
        return await self._complete(claim, at, Completed("applied", None, proposal, attempt, written))

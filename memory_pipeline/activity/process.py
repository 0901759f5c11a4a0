"""One finite pass over the committed records of a session: extract, pin, apply, advance.

::

    cursor ──page──▶ judge ──take──▶ extract ──▶ pin ──▶ apply ──▶ advance ──▶ cursor
                      │ ╰─skip: the next advance moves over it, or one at the page's end
                      ╰─wait: the pass ends before it

1. The tail is captured once; what is appended meanwhile is a later pass's (ACT-09, 10).
2. Pinned work wins: it is applied as it was saved, and never extracted again (ACT-19).
3. Nothing is applied unless log and cursor fit each other: a gap, a shorter log or a changed record stops the pass.
4. The cursor never passes a record that waits for its turn's end; that end owes the next pass.
5. A run of records that are nobody's input costs no commit of its own beside one taken, else one commit a page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from memory_pipeline.activity.port import ActivityProgress, ActivityStore
from memory_pipeline.activity.work import (
    ActivityProcessor,
    CommittedActivity,
    PassLimits,
    PassResult,
    PreparedActivity,
    ProcessorKey,
    Verdict,
    work_id,
)
from memory_pipeline.remembering.sources import END_KIND, TurnOutcome, checked_digest, turn_outcome
from shared.domain.errors import ProcessingRefused
from shared.domain.failpoints import Failpoints
from shared.jobs.queue import JobClaim
from shared.sessions.log import SessionLog
from shared.sessions.records import Record
from shared.sessions.vocabulary import TurnEnded, read_stored

PAGE_MAX = 128


async def process_committed_activity(
    claim: JobClaim,
    *,
    store: ActivityStore,
    log: SessionLog,
    processors: Mapping[ProcessorKey, ActivityProcessor],
    limits: PassLimits,
    failpoints: Failpoints,
) -> PassResult:
    """Process what is committed of the claimed session up to ``limits``; the item is owed again when more is left.

    The claim's lease must outlast the caller's deadline: it is not renewed. Raises ``FenceLost`` when the item is another
    worker's; ``ProcessingRefused`` with reason ``noncontiguous`` (nothing of that record applied), ``unknown-processor``
    or ``work-conflict``; and what log, ``extract`` and ``apply`` raise. Work once pinned stays pinned then.
    """
    progress = await store.load(claim.job_id)
    if progress is None:
        return PassResult(0, 0, 0, 0, 0, waiting=False)
    processor = processors.get(progress.key)
    if processor is None:
        raise ProcessingRefused(
            "the processor is not served here",
            reason="unknown-processor",
            processor=progress.key.processor,
            version=progress.key.version,
        )
    await failpoints.hit("activity.claimed")
    tail = (await log.head(progress.session_id, progress.owner)).seq
    one = _Pass(claim, store, log, processor, failpoints, progress, tail)
    result = await one.run(limits)
    if result.remaining and not result.waiting:
        await store.owe_again(claim)
    return result


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A move of the cursor to ``to_seq``: over one taken record and what is nobody's input around it, or only over that."""

    taken: CommittedActivity | None
    to_seq: int


class _Pass:
    """The state of one pass. ``_through`` is the stored cursor, ``_pending`` the stored pinned work."""

    def __init__(
        self,
        claim: JobClaim,
        store: ActivityStore,
        log: SessionLog,
        processor: ActivityProcessor,
        failpoints: Failpoints,
        progress: ActivityProgress,
        tail: int,
    ) -> None:
        self._claim = claim
        self._store = store
        self._log = log
        self._processor = processor
        self._failpoints = failpoints
        self._progress = progress
        self._tail = tail
        self._through = progress.through_seq
        self._pending = progress.pending
        self._outcomes: dict[int, TurnOutcome] = {}
        self._waiting = False
        self._applied = 0

    async def run(self, limits: PassLimits) -> PassResult:
        """Move the cursor as far as tail, limits and open turns allow."""
        started_at = self._through
        bound = min(self._tail, self._through + limits.max_records)
        if self._pending is not None:
            bound = max(bound, self._pending.seq)
        if max(bound, self._through) > self._tail:
            self._refuse("the log is shorter than the progress in it")
        if self._pending is not None and self._pending.seq <= self._through:
            self._refuse("the pinned work is behind the cursor")
        while self._through < bound and not self._waiting:
            page = await self._read_page(min(limits.page_size, bound - self._through))
            for stretch in await self._plan(page):
                await self._cover(stretch)
        return PassResult(
            captured_tail=self._tail,
            through_seq=self._through,
            processed=self._through - started_at,
            applied=self._applied,
            remaining=self._tail - self._through,
            waiting=self._waiting,
        )

    async def _read_page(self, size: int) -> Sequence[Record]:
        """Read the next page whole; a page with pinned work reaches to it."""
        if self._pending is not None:
            size = max(size, self._pending.seq - self._through)
        if size > PAGE_MAX:
            self._refuse("the pinned work is too far behind the cursor")
        page = await self._log.read(self._progress.session_id, after=self._through, limit=size)
        expected = range(self._through + 1, self._through + size + 1)
        if [record.seq for record in page] != list(expected):
            self._refuse("the log has a gap")
        return page

    async def _plan(self, page: Sequence[Record]) -> Sequence[_Stretch]:
        """Divide a page into moves of the cursor; it may end before the page does."""
        taken: list[CommittedActivity] = []
        end = self._through
        for record in page:
            verdict, outcome = await self._judge(record, page)
            if verdict == "wait":
                self._waiting = True
                break
            if verdict == "take":
                identity = work_id(self._progress.key, record.session_id, record.seq)
                taken.append(CommittedActivity(self._progress.owner, record, outcome, identity))
            end = record.seq
        if not taken:
            return [_Stretch(None, end)] if end > self._through else []
        ends = [one.record.seq - 1 for one in taken[1:]] + [end]
        return [_Stretch(one, to_seq) for one, to_seq in zip(taken, ends, strict=True)]

    async def _judge(self, record: Record, page: Sequence[Record]) -> tuple[Verdict, TurnOutcome | None]:
        if self._pending is not None and record.seq <= self._pending.seq:
            # Judged before the work was pinned; what is pinned wins.
            return ("take" if record.seq == self._pending.seq else "skip"), None
        if not self._processor.selects(record):
            return "skip", None
        outcome = None if record.turn is None else await self._outcome(record, record.turn, page)
        return self._processor.judge(record, outcome), outcome

    async def _outcome(self, record: Record, turn: int, page: Sequence[Record]) -> TurnOutcome:
        """Return how a turn stands in the captured log; a turn that ends on the page costs no read."""
        if turn not in self._outcomes:
            for other in page:
                if other.turn == turn and other.kind == END_KIND:
                    self._outcomes[turn] = read_stored(TurnEnded, other).reason
                    break
            else:
                self._outcomes[turn] = await turn_outcome(
                    self._log, record.session_id, turn, after=record.seq, through=self._tail
                )
        return self._outcomes[turn]

    async def _cover(self, stretch: _Stretch) -> None:
        prepared = None
        if stretch.taken is not None:
            prepared = self._pending or await self._pin(stretch.taken)
            self._check_pinned(prepared, stretch.taken)
            await self._processor.apply(self._progress.owner, prepared)
            await self._failpoints.hit("activity.applied")
            self._applied += 1
        await self._store.advance(self._claim, self._through, stretch.to_seq, prepared)
        self._through, self._pending = stretch.to_seq, None
        await self._failpoints.hit("activity.advanced")

    async def _pin(self, taken: CommittedActivity) -> PreparedActivity:
        output = await self._processor.extract(taken)
        await self._failpoints.hit("activity.extracted")
        prepared = self._prepared(taken, output)
        await self._store.pin(self._claim, self._through, prepared)
        await self._failpoints.hit("activity.pinned")
        return prepared

    def _check_pinned(self, prepared: PreparedActivity, taken: CommittedActivity) -> None:
        if prepared != self._prepared(taken, prepared.output):
            self._refuse("the pinned work is not the record's")

    def _prepared(self, taken: CommittedActivity, output: object) -> PreparedActivity:
        return PreparedActivity(
            processor=self._progress.key.processor,
            processor_version=self._progress.key.version,
            session_id=taken.record.session_id,
            seq=taken.record.seq,
            work_id=taken.work_id,
            record_digest=checked_digest(taken.record),
            output=output,
        )

    def _refuse(self, message: str) -> NoReturn:
        raise ProcessingRefused(
            message,
            reason="noncontiguous",
            session=self._progress.session_id,
            through_seq=self._through,
            captured_tail=self._tail,
        )

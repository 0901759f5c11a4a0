"""Rules of a pass that need no server: identities, bounds, pages, what is waited for; over the twins in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from memory_pipeline.activity.inproc import InprocActivityStore
from memory_pipeline.activity.process import process_committed_activity
from memory_pipeline.activity.work import (
    PENDING_MAX_BYTES,
    ActivityProcessor,
    CommittedActivity,
    PassLimits,
    PassResult,
    PreparedActivity,
    ProcessorKey,
    Verdict,
    encode_pending,
    work_id,
)
from memory_pipeline.remembering.sources import TurnOutcome
from shared.domain.canonical import digest_of
from shared.domain.errors import InputTooLarge, InvalidInput, ModelUnavailable, ProcessingRefused
from shared.domain.failpoints import Failpoints
from shared.domain.ids import OwnerId, SessionId
from shared.sessions.inproc import InprocSessionLog, InprocStore
from shared.sessions.log import NewSession
from shared.sessions.records import Draft, Record, draft
from tests.support.memory_world import turn_ended, turn_started

KEY = ProcessorKey("notes", "1")
OWNER = OwnerId("ann")
SESSION = SessionId("ses_1")


@dataclass
class Stage:
    """A session in memory and a processor that takes records of kind ``note``, noting what it does."""

    log_store: InprocStore = field(default_factory=InprocStore)
    store: InprocActivityStore = field(default_factory=InprocActivityStore)
    done: list[tuple[str, int]] = field(default_factory=list)
    seen: dict[int, TurnOutcome | None] = field(default_factory=dict)
    output: Any = "out"
    failing: bool = False
    meanwhile: Callable[[], None] | None = None

    async def start(self) -> None:
        self.log = InprocSessionLog(self.log_store)
        await self.log.create(NewSession(SESSION, OWNER))
        await self.store.register(KEY)

    def append(self, *drafts: Draft, turn: int | None = None) -> None:
        self.log_store.append(self.log_store.owned(SESSION, OWNER), drafts, turn=turn)

    def judge(self, record: Record, outcome: TurnOutcome | None) -> Verdict:
        self.seen[record.seq] = outcome
        return "wait" if outcome == "open" else "take"

    async def extract(self, activity: CommittedActivity) -> Any:
        self.done.append(("extract", activity.record.seq))
        if self.meanwhile is not None:
            self.meanwhile()
        return self.output

    async def apply(self, owner: OwnerId, prepared: PreparedActivity) -> None:
        if self.failing:
            raise ModelUnavailable("away")
        self.done.append(("apply", prepared.seq))

    async def run(self, **limits: int) -> PassResult:
        [job] = self.store.owe(SESSION, OWNER)
        processor = ActivityProcessor(
            KEY, lambda record: record.kind in ("note", "turn.started"), self.judge, self.extract, self.apply
        )
        claim = self.store.claim(job)
        result = await process_committed_activity(
            claim,
            store=self.store,
            log=self.log,
            processors={KEY: processor},
            limits=PassLimits(**limits),
            failpoints=Failpoints(),
        )
        self.again = self.store.settle(claim)
        return result


async def stage() -> Stage:
    made = Stage()
    await made.start()
    return made


def note(n: int = 0) -> Draft:
    return draft("note", {"n": n})


def other() -> Draft:
    return draft("other", {})


@pytest.mark.behaviour("ACT-16")
def test_the_work_id_is_a_function_of_processor_version_session_and_seq_alone() -> None:
    identity = work_id(KEY, "s", 7)
    assert identity == digest_of(["turnkeeper/activity@1", "notes", "1", "s", 7])
    others = [
        work_id(ProcessorKey("notes", "2"), "s", 7),
        work_id(ProcessorKey("note", "1"), "s", 7),
        work_id(KEY, "t", 7),
        work_id(KEY, "s", 8),
    ]
    assert len({identity, *others}) == 5


@pytest.mark.behaviour("ACT-06")
@pytest.mark.parametrize(
    "limits", [{"max_records": 0}, {"max_records": 4_097}, {"page_size": 0}, {"page_size": 129}]
)
def test_limits_out_of_bounds_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(InvalidInput):
        PassLimits(**limits)


@pytest.mark.behaviour("ACT-47", "ACT-48")
async def test_work_at_the_bound_is_pinned_and_one_byte_more_leaves_the_progress_as_it_was() -> None:
    one = await stage()
    one.append(note())
    one.output = ""
    size = PENDING_MAX_BYTES - len(encode_pending(await prepared_of(one)))
    one.output = "x" * (size + 1)
    before = await one.store.inspect(OWNER, SESSION)
    with pytest.raises(InputTooLarge):
        await one.run()
    [view] = await one.store.inspect(OWNER, SESSION)
    assert (view.through_seq, view.pending_seq, before) == (0, None, [])
    one.output = "x" * size
    assert (await one.run()).applied == 1


async def prepared_of(one: Stage) -> PreparedActivity:
    [record] = await one.log.read(SESSION)
    return PreparedActivity(
        processor=KEY.processor,
        processor_version=KEY.version,
        session_id=SESSION,
        seq=1,
        work_id=work_id(KEY, SESSION, 1),
        record_digest=record.digest.hex(),
        output=one.output,
    )


@pytest.mark.behaviour("ACT-09", "ACT-15")
@pytest.mark.parametrize("page_size", [1, 2, 3, 16])
async def test_pages_of_any_size_take_the_same_records_in_order(page_size: int) -> None:
    one = await stage()
    one.append(other(), other(), note(), other(), note(), note(), other())
    result = await one.run(page_size=page_size)
    assert one.done == [(what, seq) for seq in (3, 5, 6) for what in ("extract", "apply")]
    assert result == PassResult(7, 7, 7, 3, 0, waiting=False)
    assert one.again == "idle"


@pytest.mark.behaviour("ACT-19", "ACT-24")
@pytest.mark.parametrize("page_size", [1, 16])
async def test_work_that_could_not_be_applied_is_applied_later_as_it_was_saved(page_size: int) -> None:
    one = await stage()
    one.append(other(), other(), note(), note())
    one.failing = True
    with pytest.raises(ModelUnavailable):
        await one.run()
    [view] = await one.store.inspect(OWNER, SESSION)
    assert (view.through_seq, view.pending_seq) == (0, 3)
    one.failing, one.output = False, "another"
    assert (await one.run(page_size=page_size)).through_seq == 4
    assert one.done == [("extract", 3), ("apply", 3), ("extract", 4), ("apply", 4)]


@pytest.mark.behaviour("ACT-12", "ACT-14")
async def test_a_rule_sees_how_a_records_turn_stands_in_the_captured_log() -> None:
    one = await stage()
    one.append(note())
    one.append(turn_started("a"), note(), turn_ended("failed"), turn=1)
    one.append(turn_started("b"), *[other()] * 20, note(), turn_ended("completed"), turn=2)
    one.append(turn_started("c"), note(), turn=3)
    result = await one.run(page_size=8)
    assert one.seen == {
        1: None,
        2: "failed",
        3: "failed",
        5: "completed",
        26: "completed",
        28: "open",
    }
    assert (result.through_seq, result.remaining, result.waiting, one.again) == (27, 2, True, "idle")


@pytest.mark.behaviour("ACT-06", "ACT-50")
async def test_a_bound_smaller_than_the_backlog_leaves_the_rest_owed() -> None:
    one = await stage()
    one.append(*[note(n) for n in range(5)])
    result = await one.run(max_records=2, page_size=128)
    assert (result.processed, result.remaining, one.again) == (2, 3, "ready")
    assert (await one.run(max_records=3)).remaining == 0 and one.again == "idle"


@pytest.mark.behaviour("ACT-11")
@pytest.mark.parametrize(
    "harm", ["shorter than the cursor", "shorter than the pinned work", "a gap", "changed"]
)
async def test_a_log_that_does_not_fit_the_progress_stops_before_anything_is_applied(harm: str) -> None:
    one = await stage()
    one.append(note(1), note(2), note(3))
    one.failing = True
    if harm == "shorter than the cursor":
        one.failing = False
        await one.run()
    else:
        with pytest.raises(ModelUnavailable):
            await one.run()
    one.failing = False
    session = one.log_store.owned(SESSION, OWNER)
    match harm:
        case "shorter than the cursor":
            del session.records[2:]
            session.seq = 2
        case "shorter than the pinned work":
            session.records.clear()
            session.seq = 0
        case "a gap":
            del session.records[0]
        case _:
            changed = draft("note", {"n": 9})
            first = session.records[0]
            session.records[0] = Record(SESSION, 1, None, "note", first.at, changed.text, changed.digest)
    one.done.clear()
    before = await one.store.inspect(OWNER, SESSION)
    with pytest.raises(ProcessingRefused) as refused:
        await one.run()
    assert refused.value.fields["reason"] == "noncontiguous"
    [after] = await one.store.inspect(OWNER, SESSION)
    assert (after.through_seq, after.pending_seq) == (before[0].through_seq, before[0].pending_seq)
    assert one.done == []


@pytest.mark.behaviour("ACT-10")
async def test_an_end_that_is_committed_behind_the_captured_tail_is_left_to_a_later_pass() -> None:
    one = await stage()
    one.append(note())
    one.append(turn_started("a"), turn=1)
    one.meanwhile = lambda: one.append(turn_ended("completed"), turn=1)
    result = await one.run(page_size=1)
    assert one.seen == {1: None, 2: "open"}
    assert (result.captured_tail, result.through_seq, result.waiting) == (2, 1, True)

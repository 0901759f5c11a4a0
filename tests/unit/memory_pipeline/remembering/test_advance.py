"""The table of ``advance``: what each step does, saves and never touches; over the twins in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from memory_pipeline.remembering.advance import Remembering
from memory_pipeline.remembering.extraction import SOURCE_MAX_BYTES, model_extraction
from memory_pipeline.remembering.inproc import InprocRememberingStore
from memory_pipeline.remembering.intents import (
    Completed,
    Intent,
    Pending,
    Position,
    Prepared,
    Proposed,
    Source,
    check_checkpoint,
    operation_id,
)
from memory_pipeline.remembering.sources import SourceText
from memory_pipeline.store.documents import Command, Document, MemoryKey, NamespaceAddress
from memory_pipeline.store.inproc import InprocMemoryStore
from shared.domain.errors import (
    FenceLost,
    MemoryConflict,
    MemoryCorrupt,
    MemoryOperationConflict,
    MemoryWithdrawn,
    ModelOutputInvalid,
    ProcessingRefused,
    RebasesSpent,
    StoreUnavailable,
    TurnkeeperError,
)
from shared.domain.failpoints import Failpoints
from shared.domain.ids import OwnerId
from shared.jobs.queue import JobClaim
from tests.support.scripted_facts import ScriptedFacts, fact

OWNER = OwnerId("ann")
TEXT = "I love jazz."
NAMESPACE = NamespaceAddress('[1,"profile",1,{"owner":"ann"}]')
SOURCE = Source(
    key=MemoryKey(namespace=NAMESPACE, id="s:1"),
    locator="session/s/records/1",
    revision="r",
    position=Position(authority_generation="s", sequence=1),
)
INTENT = Intent(
    id="i", invocation_id="t", source=SOURCE, target=MemoryKey(namespace=NAMESPACE, id="profile-1")
)


@dataclass
class Stage:
    """One intent, and parts that note what they are asked; ``raised`` is what the writer raises next."""

    text: str = TEXT
    facts: Sequence[Any] = (fact("jazz", "The user loves jazz.", "love jazz"),)
    source: Source | None = SOURCE
    asked: list[str] = field(default_factory=list)
    sent: list[Command] = field(default_factory=list)
    raised: list[TurnkeeperError] = field(default_factory=list)

    async def start(self, **given: Any) -> tuple[Remembering, JobClaim]:
        self.model = ScriptedFacts({self.text: self.facts})
        self.store = InprocRememberingStore()
        self.memory = InprocMemoryStore()
        admitted = await self.store.admit(INTENT, OWNER)
        standard: dict[str, Any] = {
            "store": self.store,
            "load_source": self.load,
            "extract": model_extraction(self.model, model_name="m", instructions="What lasts."),
            "reader": self,
            "writer": self,
            "failpoints": Failpoints(),
            "now_ms": lambda: 7,
            "scopes": ("private",),
        }
        return Remembering(**standard | given), self.store.claim(admitted.job_id)

    async def load(self, source: Source, owner: OwnerId) -> SourceText | None:
        assert (source, owner) == (SOURCE, OWNER)
        self.asked.append("source")
        return SourceText(self.source, self.text, 5) if self.source is not None else None

    async def read(self, key: MemoryKey) -> Document | None:
        self.asked.append("target")
        return await self.memory.read(key)

    async def read_many(self, keys: Sequence[MemoryKey]) -> Sequence[Document | None]:
        return await self.memory.read_many(keys)

    async def write(self, command: Command, *, owner: OwnerId) -> Document:
        self.asked.append("writer")
        self.sent.append(command)
        if self.raised:
            raise self.raised.pop(0)
        return await self.memory.write(command, owner=owner)


@pytest.mark.behaviour("REM-21", "REM-22", "REM-28")
async def test_a_proposal_is_saved_before_the_target_is_read_and_a_command_before_it_is_sent() -> None:
    stage = Stage()
    worker, claim = await stage.start()
    proposed = await worker.advance(claim)
    assert isinstance(proposed, Proposed) and proposed.attempt == 0
    assert stage.asked == ["source", "source"]
    prepared = await worker.advance(claim)
    assert isinstance(prepared, Prepared)
    assert stage.asked[2:] == ["source", "target"]
    assert prepared.command.operation_id == "remembering/i/remember/1"
    done = await worker.advance(claim)
    assert stage.asked[4:] == ["writer"]
    assert isinstance(done, Completed) and done.outcome == "applied"
    assert stage.sent == [prepared.command]
    assert done.applied == await stage.memory.read(INTENT.target)
    assert await worker.advance(claim) == done and len(stage.asked) == 5


@pytest.mark.behaviour("REM-32", "REM-34")
@pytest.mark.parametrize(
    ("stage", "outcome", "why"),
    [
        (Stage(facts=()), "no-change", "no-facts"),
        (Stage(facts=(fact("jazz", "x", "not there"),)), "rejected", "invalid-evidence"),
        (Stage(source=None), "rejected", "source-missing"),
        (Stage(text="x" * (SOURCE_MAX_BYTES + 1)), "rejected", "source-too-large"),
    ],
    ids=["no fact", "no evidence", "no source", "a large source"],
)
async def test_what_has_no_accepted_fact_is_completed_and_its_target_never_read(
    stage: Stage, outcome: str, why: str
) -> None:
    worker, claim = await stage.start()
    done = await worker.process(claim)
    assert done is not None and (done.outcome, done.why, done.proposal) == (outcome, why, None)
    assert not {"target", "writer"} & set(stage.asked)
    assert len(stage.model.asked) == (0 if why.startswith("source-") else 1)


@pytest.mark.behaviour("REM-34")
async def test_facts_without_evidence_are_left_out_and_the_others_kept() -> None:
    stage = Stage(facts=(fact("a", "Invented.", "nowhere"), fact("jazz", "The user loves jazz.", "jazz")))
    worker, claim = await stage.start()
    done = await worker.process(claim)
    assert done is not None and done.applied is not None and done.applied.content is not None
    assert done.applied.content.text == "The user loves jazz."


CHANGED = SOURCE.model_copy(update={"revision": "other"})


@pytest.mark.behaviour("REM-28", "REM-34")
@pytest.mark.parametrize(
    ("step", "source"), [("pending", CHANGED), ("proposed", CHANGED), ("proposed", None)]
)
async def test_a_source_that_changed_is_refused_and_nothing_is_saved(
    step: str, source: Source | None
) -> None:
    stage = Stage()
    worker, claim = await stage.start()
    if step == "proposed":
        await worker.advance(claim)
    stage.source = source
    before = await stage.store.load(claim.job_id)
    with pytest.raises(ProcessingRefused) as refused:
        await worker.process(claim)
    assert refused.value.fields["reason"] == "source-changed"
    assert await stage.store.load(claim.job_id) == before
    assert "writer" not in stage.asked


@pytest.mark.behaviour("REM-24", "REM-25")
async def test_a_definite_conflict_leads_to_a_new_command_of_the_same_proposal() -> None:
    stage = Stage(raised=[MemoryConflict("moved", expected=None, actual="1")])
    worker, claim = await stage.start()
    proposed = await worker.advance(claim)
    await worker.advance(claim)
    back = await worker.advance(claim)
    assert isinstance(proposed, Proposed) and isinstance(back, Proposed)
    assert (back.proposal, back.attempt) == (proposed.proposal, 1)
    done = await worker.process(claim)
    assert done is not None and (done.outcome, done.attempt) == ("applied", 2)
    assert [command.operation_id for command in stage.sent] == [
        operation_id(INTENT, 1),
        operation_id(INTENT, 2),
    ]
    assert len(stage.model.asked) == 1


@pytest.mark.behaviour("REM-23", "REM-24", "REM-27", "REM-30")
@pytest.mark.parametrize("error", [StoreUnavailable("lost"), MemoryOperationConflict("used")])
async def test_any_other_failure_of_the_writer_leaves_the_saved_command_as_it_is(
    error: TurnkeeperError,
) -> None:
    stage = Stage(raised=[error])
    worker, claim = await stage.start()
    with pytest.raises(type(error)):
        await worker.process(claim)
    stage.source = None
    done = await worker.process(claim)
    assert done is not None and done.outcome == "applied"
    assert len(stage.sent) == 2 and stage.sent[0] == stage.sent[1]


async def test_a_withdrawn_target_completes_the_intent_as_rejected() -> None:
    stage = Stage(raised=[MemoryWithdrawn("final")])
    worker, claim = await stage.start()
    done = await worker.process(claim)
    assert done is not None and (done.outcome, done.why) == ("rejected", "target-withdrawn")


@pytest.mark.behaviour("REM-24")
async def test_commands_that_always_conflict_are_bounded_and_the_next_claim_begins_with_a_merge() -> None:
    stage = Stage(raised=[MemoryConflict("moved") for _ in range(3)])
    worker, claim = await stage.start(rebases_max=3)
    with pytest.raises(RebasesSpent):
        await worker.process(claim)
    assert len(stage.sent) == 3
    checkpoint = await stage.store.load(claim.job_id)
    assert checkpoint is not None and isinstance(checkpoint.progress, Proposed)
    done = await worker.process(stage.store.claim(claim.job_id))
    assert done is not None and (done.outcome, done.attempt) == ("applied", 4)


@pytest.mark.behaviour("REM-58")
async def test_a_model_that_answers_garbage_leaves_the_intent_pending_and_the_memory_as_it_was() -> None:
    stage = Stage()
    worker, claim = await stage.start()
    stage.model.failures.append(ModelOutputInvalid("no JSON", reason="not-json"))
    with pytest.raises(ModelOutputInvalid):
        await worker.process(claim)
    checkpoint = await stage.store.load(claim.job_id)
    assert checkpoint is not None and checkpoint.progress == Pending() and checkpoint.version == 0
    assert await stage.memory.read(INTENT.target) is None


@pytest.mark.behaviour("REM-50")
@pytest.mark.parametrize("point", ["remember.extracted", "remember.merged", "remember.dispatched"])
async def test_a_worker_that_was_superseded_between_two_steps_saves_nothing(point: str) -> None:
    stage = Stage()
    worker, claim = await stage.start()

    async def supersede() -> None:
        stage.store.claim(claim.job_id)

    with pytest.raises(FenceLost):
        await replace(worker, failpoints=Failpoints({point: supersede})).process(claim)


async def test_parts_that_do_not_belong_together_are_corrupt() -> None:
    stage = Stage()
    worker, claim = await stage.start()
    await worker.advance(claim)
    await worker.advance(claim)
    checkpoint = await stage.store.load(claim.job_id)
    assert checkpoint is not None and isinstance(checkpoint.progress, Prepared)
    assert check_checkpoint(checkpoint) is checkpoint
    other = MemoryKey(namespace=NAMESPACE, id="profile-2")
    harmed = [
        replace(checkpoint, progress=replace(checkpoint.progress, attempt=2)),
        replace(checkpoint, intent=INTENT.model_copy(update={"target": other})),
        replace(
            checkpoint,
            intent=INTENT.model_copy(update={"source": SOURCE.model_copy(update={"revision": "x"})}),
        ),
    ]
    for one in harmed:
        with pytest.raises(MemoryCorrupt):
            check_checkpoint(one)

"""What both adapters of the two progress stores promise: the twin in memory and the one on Postgres."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import uuid4

import pytest

from memory_pipeline.activity.inproc import InprocActivityStore
from memory_pipeline.activity.port import ActivityStore
from memory_pipeline.activity.work import PENDING_MAX_BYTES, PreparedActivity, work_id
from memory_pipeline.remembering.inproc import InprocRememberingStore
from memory_pipeline.remembering.intents import (
    Completed,
    Intent,
    Pending,
    Position,
    Proposal,
    Proposed,
    ProposedFact,
    Source,
)
from memory_pipeline.remembering.port import RememberingStore
from memory_pipeline.store.documents import MemoryKey, NamespaceAddress
from shared.domain.errors import (
    FenceLost,
    InputTooLarge,
    IntentConflict,
    IntentMissing,
    IntentsFull,
    ProcessingRefused,
)
from shared.domain.ids import OwnerId, SessionId
from shared.jobs.postgres import PostgresJobQueue
from shared.jobs.queue import ATTEMPTS_MAX, JobClaim, Pool
from tests.support.memory_world import KEY, OWNER, MemoryWorld, memory_world
from tests.support.scripted_facts import ScriptedFacts

BOB = OwnerId("bob")
SESSION = SessionId("ses_1")
LIMIT = 3


@dataclass
class Subject:
    """One backend; ``takeover`` lets a lease pass and gives the item to another worker."""

    intents: RememberingStore
    activity: ActivityStore
    world: MemoryWorld | None

    async def owe(self) -> str:
        if isinstance(self.activity, InprocActivityStore):
            [job] = self.activity.owe(SESSION, OWNER)
            return job
        assert self.world is not None
        await self.world.rows("SELECT activity_owe_v1(%s, %s)", SESSION, OWNER)
        [row] = await self.world.rows("SELECT job_id FROM activity_progress")
        job_id: str = row["job_id"]
        return job_id

    async def claim(self, pool: Pool, job_id: str) -> JobClaim:
        if self.world is not None:
            found = {claim.job_id: claim for claim in await self.world.claims(pool)}
            return found[job_id]
        twin = self.intents if pool == "remember" else self.activity
        assert isinstance(twin, InprocRememberingStore | InprocActivityStore)
        return twin.claim(job_id)

    async def takeover(self, claim: JobClaim) -> JobClaim:
        if self.world is not None:
            await self.world.expire(claim)
        return await self.claim(claim.pool, claim.job_id)


@pytest.fixture(params=["inproc", "postgres"])
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    """Each backend, with the shipped processor switched on."""
    if request.param == "inproc":
        twin = InprocActivityStore()
        await twin.register(KEY)
        yield Subject(InprocRememberingStore(intents_per_owner=LIMIT), twin, None)
        return
    url = request.getfixturevalue("database_url")
    async with memory_world(url, ScriptedFacts(), intents_per_owner=LIMIT) as world:
        yield Subject(world.intents, world.activity, world)


def intent(name: str, **given: object) -> Intent:
    namespace = NamespaceAddress("n")
    made = Intent(
        id=name,
        invocation_id="t",
        source=Source(
            key=MemoryKey(namespace=namespace, id="s:1"),
            locator="l",
            revision="r",
            position=Position(authority_generation="s", sequence=1),
        ),
        target=MemoryKey(namespace=namespace, id="profile-1"),
    )
    return made.model_copy(update=given)


def proposed(of: Intent) -> Proposed:
    one = ProposedFact(subject="a", statement="b", start_byte=0, end_byte=1, quote="c")
    return Proposed(Proposal(source=of.source.reference(), facts=(one,), recorded_at=1, extracted_at=2), 0)


def prepared(seq: int = 1, output: object = "out") -> PreparedActivity:
    return PreparedActivity(
        processor=KEY.processor,
        processor_version=KEY.version,
        session_id=SESSION,
        seq=seq,
        work_id=work_id(KEY, SESSION, seq),
        record_digest="0" * 64,
        output=output,
    )


@pytest.mark.behaviour("REM-02", "REM-45")
async def test_admission_answers_queued_then_duplicate_and_refuses_other_content_and_more_than_fits(
    subject: Subject,
) -> None:
    first = await subject.intents.admit(intent("1"), OWNER)
    assert (first.intent_id, first.status) == ("1", "queued")
    for name in ("2", "3"):
        await subject.intents.admit(intent(name), OWNER)
    with pytest.raises(IntentsFull):
        await subject.intents.admit(intent("4"), OWNER)
    again = await subject.intents.admit(intent("1"), OWNER)
    assert (again.status, again.job_id) == ("duplicate", first.job_id), "also at capacity"
    with pytest.raises(IntentConflict):
        await subject.intents.admit(intent("1", invocation_id="other"), OWNER)
    assert (await subject.intents.admit(intent("1"), BOB)).status == "queued", "ids are an owner's own"
    assert len(await subject.intents.list(OWNER)) == 3


@pytest.mark.behaviour("REM-45")
async def test_a_completed_intent_makes_room(subject: Subject) -> None:
    for name in ("1", "2", "3"):
        last = await subject.intents.admit(intent(name), OWNER)
    claim = await subject.claim("remember", last.job_id)
    checkpoint = await subject.intents.load(last.job_id)
    assert checkpoint is not None
    await subject.intents.save(claim, checkpoint, Completed("no-change", "no-facts"))
    assert (await subject.intents.admit(intent("4"), OWNER)).status == "queued"


@pytest.mark.behaviour("REM-50")
async def test_a_step_is_saved_only_under_the_present_claim_and_on_the_version_that_was_read(
    subject: Subject,
) -> None:
    admitted = await subject.intents.admit(intent("1"), OWNER)
    old = await subject.claim("remember", admitted.job_id)
    read = await subject.intents.load(admitted.job_id)
    assert read is not None and (read.progress, read.version, read.owner) == (Pending(), 0, OWNER)
    saved = await subject.intents.save(old, read, proposed(intent("1")))
    assert saved == await subject.intents.load(admitted.job_id) and saved.version == 1
    with pytest.raises(FenceLost):
        await subject.intents.save(old, read, Completed("rejected", "late"))
    new = await subject.takeover(old)
    with pytest.raises(FenceLost):
        await subject.intents.save(old, saved, Completed("rejected", "late"))
    assert await subject.intents.load(admitted.job_id) == saved
    done = Completed("no-change", "known", proposed(intent("1")).proposal, 0)
    completed = await subject.intents.save(new, saved, done)
    assert completed.progress == done and await subject.intents.load(admitted.job_id) == completed
    view = await subject.intents.get(OWNER, "1")
    assert (view.status, view.outcome, view.why) == ("completed", "no-change", "known")
    assert view.completed_at is not None


async def test_intents_are_listed_newest_first_in_pages_and_to_their_owner_only(subject: Subject) -> None:
    for name in ("1", "2", "3"):
        await subject.intents.admit(intent(name), OWNER)
    page = await subject.intents.list(OWNER, limit=2)
    rest = await subject.intents.list(OWNER, before=(page[-1].created_at, page[-1].intent.id))
    assert [view.intent.id for view in (*page, *rest)] == ["3", "2", "1"]
    assert await subject.intents.list(BOB) == []
    with pytest.raises(IntentMissing):
        await subject.intents.get(BOB, "1")
    assert await subject.intents.load(str(uuid4())) is None


@pytest.mark.behaviour("ACT-15", "ACT-17", "ACT-41")
async def test_work_is_pinned_once_and_the_cursor_moves_only_with_what_is_pinned(subject: Subject) -> None:
    job = await subject.owe()
    claim = await subject.claim("activity", job)
    await subject.activity.pin(claim, 0, prepared())
    await subject.activity.pin(claim, 0, prepared())
    with pytest.raises(ProcessingRefused) as refused:
        await subject.activity.pin(claim, 0, prepared(output="other"))
    assert refused.value.fields["reason"] == "work-conflict"
    for through, to, pinned in ((0, 1, None), (0, 1, prepared(output="other")), (1, 2, prepared())):
        with pytest.raises(FenceLost):
            await subject.activity.advance(claim, through, to, pinned)
    progress = await subject.activity.load(job)
    assert progress is not None and (progress.through_seq, progress.pending) == (0, prepared())
    await subject.activity.advance(claim, 0, 4, prepared())
    with pytest.raises(FenceLost):
        await subject.activity.advance(claim, 0, 4, prepared())
    [view] = await subject.activity.inspect(OWNER, SESSION)
    assert (view.through_seq, view.pending_seq) == (4, None) and view.advanced_at is not None
    assert await subject.activity.inspect(BOB, SESSION) == []


@pytest.mark.behaviour("ACT-40", "ACT-41")
async def test_a_superseded_claim_can_neither_pin_nor_advance(subject: Subject) -> None:
    old = await subject.claim("activity", await subject.owe())
    new = await subject.takeover(old)
    assert new.fence.epoch > old.fence.epoch
    with pytest.raises(FenceLost):
        await subject.activity.pin(old, 0, prepared())
    with pytest.raises(FenceLost):
        await subject.activity.advance(old, 0, 4, None)
    await subject.activity.advance(new, 0, 4, None)


@pytest.mark.behaviour("ACT-47", "ACT-48")
async def test_work_above_its_bound_is_refused_and_the_progress_stays(subject: Subject) -> None:
    job = await subject.owe()
    claim = await subject.claim("activity", job)
    with pytest.raises(InputTooLarge):
        await subject.activity.pin(claim, 0, prepared(output="x" * PENDING_MAX_BYTES))
    progress = await subject.activity.load(job)
    assert progress is not None and progress.pending is None


async def test_progress_that_nobody_has_is_none(subject: Subject) -> None:
    assert await subject.activity.load(str(uuid4())) is None


@pytest.mark.behaviour("DST-13")
async def test_a_cursor_that_moved_begins_the_tries_of_its_pass_anew(database_url: str) -> None:
    """A session with more than a pass can hold is cut at its deadline again and again, and gets on each time."""
    async with memory_world(database_url, ScriptedFacts()) as world:
        subject = Subject(world.intents, world.activity, world)
        job = await subject.owe()
        for through in range(2 * ATTEMPTS_MAX):
            claim = await subject.claim("activity", job)
            await world.activity.advance(claim, through, through + 1, None)
            settled = await PostgresJobQueue(world.database).settle(claim, "retry", failure="timeout")
            assert settled == "ready"
        [row] = await world.rows("SELECT attempts FROM jobs WHERE id = %s", job)
        assert row["attempts"] == 1
        for _ in range(ATTEMPTS_MAX - 1):
            claim = await subject.claim("activity", job)
            settled = await PostgresJobQueue(world.database).settle(claim, "retry", failure="timeout")
        assert settled == "parked"

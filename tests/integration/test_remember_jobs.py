"""Remembering over a real database: from a user's words to the profile, through crashes, races and outages."""

from __future__ import annotations

import asyncio

import pytest

from memory_pipeline.remembering.admission import remember_statement
from memory_pipeline.remembering.intents import Completed, Pending, Prepared, Proposed
from memory_pipeline.store.documents import Attribution, Command, Content, Document, MemoryKey, Put
from shared.domain.errors import (
    FenceLost,
    IntentConflict,
    IntentMissing,
    ModelUnavailable,
    ProcessingRefused,
    RebasesSpent,
    SessionMissing,
    StoreUnavailable,
)
from shared.domain.failpoints import FailpointError, Failpoints
from shared.domain.ids import OwnerId, SessionId
from tests.support.memory_world import OWNER, MemoryWorld, memory_world
from tests.support.scripted_facts import ScriptedFacts, fact

BOB = OwnerId("bob")
LOVE, HATE = "I love jazz.", "Actually, I hate jazz."
JAZZ = {
    LOVE: [fact("opinion-of-jazz", "The user loves jazz.", "love jazz")],
    HATE: [fact("opinion-of-jazz", "The user hates jazz.", "hate jazz")],
}
POINTS = (
    "remember.claimed",
    "remember.extracted",
    "remember.proposed",
    "remember.merged",
    "remember.prepared",
    "remember.dispatched",
    "remember.settled",
)


async def admit(world: MemoryWorld, session: SessionId, text: str = LOVE, owner: OwnerId = OWNER) -> None:
    """Run a turn and the activity pass that admits its statement."""
    await world.turn(session, text, owner)
    for claim in await world.claims("activity"):
        await world.run_activity(claim)
        await world.settle(claim)


async def edit(world: MemoryWorld, text: str) -> None:
    """Add a line by hand, as an owner's correction does."""
    current = await world.profile()
    assert current is not None and current.content is not None
    old = current.content
    human = Attribution(origin_id=f"edit:{text}", speaker="owner", locator="api", interpretation=text)
    content = Content(
        text=f"{old.text}\n{text}",
        attributions=(*old.attributions, human),
        metadata=old.metadata | {"subjects": [*old.metadata["subjects"], ""]},
        recorded_at=old.recorded_at,
    )
    command = Put(
        key=current.key,
        operation_id=f"edit/{text}",
        expected_revision=current.source.revision,
        locator=current.source.locator,
        content=content,
        scopes=current.scopes,
    )
    await world.documents.write(command, owner=OWNER)


@pytest.mark.behaviour("REM-01", "REM-17", "REM-18", "REM-19", "REM-21", "REM-22")
async def test_a_remember_job_is_fourteen_statements_and_six_commits_with_claim_and_settlement(
    database_url: str,
) -> None:
    async with memory_world(database_url, ScriptedFacts(JAZZ)) as world:
        session = await world.session()
        await admit(world, session)
        world.database.counters.reset()
        claim = await world.claim("remember")
        assert isinstance(await world.remembering().process(claim), Completed)
        await world.settle(claim)
        units = world.database.counters.snapshot()
        assert {name: (count.statements, count.commits) for name, count in units.items()} == {
            "remember.claim": (1, 1),
            "intent.load": (1, 0),
            "session.head": (3, 0),
            "session.read": (3, 0),
            "memory.read": (1, 0),
            "memory.write": (1, 1),
            "intent.save": (3, 3),
            "remember.settle": (1, 1),
        }
        document = await world.profile()
        assert document is not None and document.content is not None
        assert document.content.text == "The user loves jazz."
        assert document.content.metadata == {"subjects": ["opinion-of-jazz"]}
        [said] = document.content.attributions
        assert (said.origin_id, said.speaker) == (f"{session}:1", "user")
        assert said.locator == f"session/{session}/records/1"
        assert document.scopes == ("private",)


@pytest.mark.behaviour("REM-05", "REM-06")
async def test_each_call_of_advance_saves_exactly_one_step(database_url: str) -> None:
    async with memory_world(database_url, ScriptedFacts(JAZZ)) as world:
        await admit(world, await world.session())
        claim = await world.claim("remember")
        steps, versions = [], []
        for _ in range(4):
            steps.append(type(await world.remembering().advance(claim)))
            [row] = await world.rows("SELECT version FROM memory_intents")
            versions.append(row["version"])
        assert steps == [Proposed, Prepared, Completed, Completed]
        assert versions == [1, 2, 3, 3]


@pytest.mark.behaviour("REM-26")
async def test_a_later_statement_replaces_the_earlier_one_and_history_keeps_both(database_url: str) -> None:
    async with memory_world(database_url, ScriptedFacts(JAZZ)) as world:
        await admit(world, await world.session(), LOVE)
        await admit(world, await world.session(), HATE)
        await world.drain()
        assert await world.facts() == ["The user hates jazz."]
        current = await world.profile()
        assert current is not None
        told = [d.content.text for d in await world.documents.history(current.key) if d.content is not None]
        assert told == ["The user hates jazz.", "The user loves jazz."]


@pytest.mark.behaviour("REM-26")
async def test_an_earlier_statement_that_is_processed_late_does_not_win(database_url: str) -> None:
    async with memory_world(database_url, ScriptedFacts(JAZZ)) as world:
        await admit(world, await world.session(), LOVE)
        early = await world.claim("remember")
        await admit(world, await world.session(), HATE)
        late = await world.claim("remember")
        await world.remembering().process(late)
        done = await world.remembering().process(early)
        assert done is not None and (done.outcome, done.why) == ("no-change", "known")
        assert await world.facts() == ["The user hates jazz."]


@pytest.mark.behaviour("REM-21", "REM-22", "REM-23", "REM-25")
@pytest.mark.parametrize("point", POINTS)
async def test_a_worker_that_dies_between_any_two_saves_leaves_the_fact_once(
    database_url: str, point: str
) -> None:
    model = ScriptedFacts(JAZZ)
    async with memory_world(database_url, model) as world:
        await admit(world, await world.session())
        dead = await world.claim("remember")
        with pytest.raises(FailpointError):
            await world.remembering(failpoints=Failpoints.parse(f"{point}=raise")).process(dead)
        await world.expire(dead)
        claim = await world.claim("remember")
        assert claim.fence.epoch == dead.fence.epoch + 1
        done = await world.remembering().process(claim)
        assert done is not None and (done.outcome, done.attempt) == ("applied", 1)
        assert len(model.asked) == (2 if point == "remember.extracted" else 1)
        document = await world.profile()
        assert document is not None and document.generation == 1
        assert await world.facts() == ["The user loves jazz."]


@pytest.mark.behaviour("REM-24", "REM-25", "REM-26")
async def test_sixteen_workers_on_one_target_come_to_a_serial_result_with_every_fact(
    database_url: str,
) -> None:
    facts = {f"My code {n} is {n}.": [fact(f"code-{n}", f"Code {n} is {n}.", f"is {n}")] for n in range(16)}
    model = ScriptedFacts(facts)
    async with memory_world(database_url, model) as world:
        for text in facts:
            await admit(world, await world.session(), text)
        claims = await world.claims("remember")
        assert len(claims) == 16
        model.may_answer.clear()
        jobs = [asyncio.create_task(world.remembering().process(claim)) for claim in claims]
        model.may_answer.set()
        done = await asyncio.gather(*jobs)
        assert [one.outcome for one in done if one is not None] == ["applied"] * 16
        assert sorted(await world.facts()) == sorted(f"Code {n} is {n}." for n in range(16))
        document = await world.profile()
        assert document is not None and document.generation == 16
        assert len(model.asked) == 16
        attempts = [one.attempt for one in done if one is not None]
        assert min(attempts) == 1 and max(attempts) <= 16


@pytest.mark.behaviour("REM-24")
async def test_two_workers_on_one_intent_make_one_contribution(database_url: str) -> None:
    model = ScriptedFacts(JAZZ)
    async with memory_world(database_url, model) as world:
        await admit(world, await world.session())
        model.may_answer.clear()
        first = await world.claim("remember")
        slow = asyncio.create_task(world.remembering().process(first))
        await world.expire(first)
        second = await world.claim("remember")
        quick = asyncio.create_task(world.remembering().process(second))
        model.may_answer.set()
        done = await quick
        with pytest.raises(FenceLost):
            await slow
        assert done is not None and done.outcome == "applied"
        document = await world.profile()
        assert document is not None and document.generation == 1


@pytest.mark.behaviour("REM-23")
@pytest.mark.parametrize(
    "point", ["remember.extracted", "remember.merged", "remember.prepared", "remember.dispatched"]
)
async def test_a_worker_whose_lease_passed_saves_nothing_more_and_at_most_repeats_the_saved_command(
    database_url: str, point: str
) -> None:
    async with memory_world(database_url, ScriptedFacts(JAZZ)) as world:
        await admit(world, await world.session())
        reached, resume = asyncio.Event(), asyncio.Event()

        async def pause() -> None:
            reached.set()
            await resume.wait()

        old = await world.claim("remember")
        late = world.remembering(failpoints=Failpoints({point: pause}))
        paused = asyncio.create_task(late.process(old))
        async with asyncio.timeout(10):
            await reached.wait()
        await world.expire(old)
        done = await world.remembering().process(await world.claim("remember"))
        stored = await world.rows("SELECT * FROM memory_intents")
        resume.set()
        with pytest.raises(FenceLost):
            await paused
        assert await world.rows("SELECT * FROM memory_intents") == stored
        document = await world.profile()
        assert document is not None and done is not None and document == done.applied
        assert document.generation == 1


@pytest.mark.behaviour("REM-25", "REM-26")
async def test_edits_between_every_merge_and_dispatch_survive_and_nothing_is_extracted_again(
    database_url: str,
) -> None:
    model = ScriptedFacts(JAZZ | {"I like tea.": [fact("drink", "The user likes tea.", "like tea")]})
    async with memory_world(database_url, model) as world:
        await admit(world, await world.session())
        await world.drain()
        await admit(world, await world.session(), "I like tea.")
        claim = await world.claim("remember")
        seen: list[str] = []
        for n in range(3):
            while not isinstance(progress := await world.remembering().advance(claim), Prepared):
                assert isinstance(progress, Proposed)
            seen.append(progress.command.operation_id)
            await edit(world, f"Edit {n}.")
        done = await world.remembering().process(claim)
        assert done is not None and (done.outcome, done.attempt) == ("applied", 4)
        assert len(set(seen)) == 3
        assert await world.facts() == [
            "The user loves jazz.",
            "Edit 0.",
            "Edit 1.",
            "Edit 2.",
            "The user likes tea.",
        ]
        assert model.asked.count("I like tea.") == 1


@pytest.mark.behaviour("REM-24")
async def test_after_twenty_commands_in_a_row_an_intent_gives_its_worker_back(database_url: str) -> None:
    async with memory_world(database_url, ScriptedFacts(JAZZ)) as world:
        await admit(world, await world.session())
        await world.drain()
        await admit(world, await world.session(), HATE)
        claim = await world.claim("remember")

        class Contended:
            """A writer before which somebody else always writes."""

            writes = 0

            async def write(self, command: Command, *, owner: OwnerId) -> Document:
                self.writes += 1
                await edit(world, f"Edit {self.writes}.")
                return await world.documents.write(command, owner=owner)

        writer = Contended()
        with pytest.raises(RebasesSpent):
            await world.remembering(writer=writer).process(claim)
        with pytest.raises(RebasesSpent):
            await world.remembering(writer=writer).process(claim)
        assert writer.writes == 21, "later tries make one command each"
        done = await world.remembering().process(claim)
        assert done is not None and (done.outcome, done.attempt) == ("applied", 22)


@pytest.mark.behaviour("REM-23", "REM-30")
async def test_a_command_with_an_unknown_outcome_is_sent_again_unchanged_even_without_its_source(
    database_url: str,
) -> None:
    async with memory_world(database_url, ScriptedFacts(JAZZ)) as world:
        session = await world.session()
        await admit(world, session)
        claim = await world.claim("remember")

        class Lossy:
            """A writer whose answers are lost."""

            async def write(self, command: Command, *, owner: OwnerId) -> Document:
                await world.documents.write(command, owner=owner)
                raise StoreUnavailable("the answer is lost")

        with pytest.raises(StoreUnavailable):
            await world.remembering(writer=Lossy()).process(claim)
        await edit(world, "A correction.")
        await world.log.remove(session, OWNER)
        done = await world.remembering().process(claim)
        assert done is not None and (done.outcome, done.attempt) == ("applied", 1)
        assert await world.facts() == ["The user loves jazz.", "A correction."]


@pytest.mark.behaviour("REM-28")
@pytest.mark.parametrize("point", ["remember.extracted", "remember.proposed"])
async def test_a_source_that_goes_away_after_its_extraction_leads_to_no_command(
    database_url: str, point: str
) -> None:
    async with memory_world(database_url, ScriptedFacts(JAZZ)) as world:
        session = await world.session()
        await admit(world, session)

        async def remove() -> None:
            await world.log.remove(session, OWNER)

        worker = world.remembering(failpoints=Failpoints({point: remove}))
        with pytest.raises(ProcessingRefused) as refused:
            await worker.process(await world.claim("remember"))
        assert refused.value.fields["reason"] == "source-changed"
        assert await world.profile() is None
        [row] = await world.rows("SELECT command FROM memory_intents")
        assert row["command"] is None


async def test_a_source_that_is_gone_before_its_extraction_is_rejected_and_no_model_is_asked(
    database_url: str,
) -> None:
    model = ScriptedFacts(JAZZ)
    async with memory_world(database_url, model) as world:
        session = await world.session()
        await admit(world, session)
        await world.log.remove(session, OWNER)
        done = await world.remembering().process(await world.claim("remember"))
        assert done is not None and (done.outcome, done.why) == ("rejected", "source-missing")
        assert model.asked == []


@pytest.mark.behaviour("REM-02", "REM-03", "REM-61")
async def test_an_outage_of_the_model_shows_in_the_receipt_until_the_retry_succeeds(
    database_url: str,
) -> None:
    model = ScriptedFacts(JAZZ)
    model.failures.append(ModelUnavailable("away"))
    async with memory_world(database_url, model) as world:
        await admit(world, await world.session())
        [view] = await world.intents.list(OWNER)
        assert (view.status, view.last_failure) == ("queued", None)
        claim = await world.claim("remember")
        with pytest.raises(ModelUnavailable):
            await world.remembering().process(claim)
        await world.jobs.settle(claim, "retry", failure="model.unavailable")
        view = await world.intents.get(OWNER, view.intent.id)
        assert (view.status, view.attempts, view.last_failure) == ("retrying", 1, "model.unavailable")
        await world.drain()
        view = await world.intents.get(OWNER, view.intent.id)
        assert (view.status, view.outcome, view.last_failure) == ("completed", "applied", "model.unavailable")


@pytest.mark.behaviour("REM-35")
async def test_two_owners_share_nothing_and_see_nothing_of_each_other(database_url: str) -> None:
    async with memory_world(database_url, ScriptedFacts(JAZZ)) as world:
        session = await world.session()
        await admit(world, session, LOVE)
        await admit(world, await world.session(BOB), HATE, BOB)
        await world.drain()
        assert await world.facts() == ["The user loves jazz."]
        assert await world.facts(BOB) == ["The user hates jazz."]
        [view] = await world.intents.list(OWNER)
        with pytest.raises(IntentMissing):
            await world.intents.get(BOB, view.intent.id)
        with pytest.raises(SessionMissing):
            await ask(world, session, 1, BOB)
        # An intent of Bob's that names Ann's statement loads nothing of hers.
        forged = await world.intents.admit(view.intent.model_copy(update={"id": "forged"}), BOB)
        [claim] = await world.claims("remember")
        assert claim.job_id == forged.job_id
        done = await world.remembering().process(claim)
        assert done is not None and (done.outcome, done.why) == ("rejected", "source-missing")


async def ask(world: MemoryWorld, session: SessionId, seq: int, owner: OwnerId = OWNER) -> tuple[str, str]:
    """Ask that a statement be remembered; return id and status of the receipt."""
    admitted = await remember_statement(
        store=world.intents,
        log=world.log,
        reader=world.documents,
        owner=owner,
        namespace=world.namespace(owner),
        session_id=session,
        seq=seq,
    )
    return admitted.intent_id, admitted.status


@pytest.mark.behaviour("REM-02", "REM-04", "REM-14")
async def test_an_owner_asks_for_a_statement_of_their_own_once_whatever_else_remembers_it(
    database_url: str,
) -> None:
    model = ScriptedFacts(JAZZ)
    async with memory_world(database_url, model) as world:
        session = await world.session()
        await world.turn(session, LOVE)
        first, status = await ask(world, session, 1)
        assert status == "queued" and model.asked == [], "no model is asked in the foreground"
        assert await ask(world, session, 1) == (first, "duplicate")
        await world.drain()
        assert await world.facts() == ["The user loves jazz."]
        outcomes = sorted(str(view.outcome) for view in await world.intents.list(OWNER))
        assert outcomes == ["applied", "no-change"], "the pass had admitted it as well"


@pytest.mark.behaviour("REM-14", "ACT-30")
async def test_no_other_record_and_no_unfinished_turn_can_be_asked_for(database_url: str) -> None:
    async with memory_world(database_url, ScriptedFacts(JAZZ)) as world:
        session = await world.session()
        await world.turn(session, LOVE)
        await world.turn(session, LOVE, outcome="cancelled")
        await world.open_turn(session, LOVE)
        reasons = {}
        for seq in (0, 2, 3, 4, 5, 9, 99):
            with pytest.raises(ProcessingRefused) as refused:
                await ask(world, session, seq)
            reasons[seq] = refused.value.fields["reason"]
        assert reasons == dict.fromkeys((0, 2, 3, 4, 99), "no-statement") | dict.fromkeys(
            (5, 9), "turn-unended"
        )
        assert await world.intents.list(OWNER) == []


@pytest.mark.behaviour("REM-02")
async def test_one_intent_admitted_by_many_at_once_is_one_job_and_other_content_conflicts(
    database_url: str,
) -> None:
    async with memory_world(database_url, ScriptedFacts(JAZZ)) as world:
        await admit(world, await world.session())
        [view] = await world.intents.list(OWNER)
        intent = view.intent.model_copy(update={"id": "one"})
        admitted = await asyncio.gather(*(world.intents.admit(intent, OWNER) for _ in range(8)))
        assert sorted(one.status for one in admitted) == ["duplicate"] * 7 + ["queued"]
        assert len({one.job_id for one in admitted}) == 1
        with pytest.raises(IntentConflict):
            await world.intents.admit(intent.model_copy(update={"invocation_id": "other"}), OWNER)


async def test_a_job_without_an_intent_is_done(database_url: str) -> None:
    async with memory_world(database_url, ScriptedFacts()) as world:
        await world.jobs.owe("remember", "gone", OWNER)
        claim = await world.claim("remember")
        assert await world.remembering().process(claim) is None
        assert await world.remembering().advance(claim) is None


@pytest.mark.behaviour("REM-26", "REM-27")
async def test_a_withdrawn_profile_rejects_what_was_prepared_and_the_next_intent_has_a_new_one(
    database_url: str,
) -> None:
    async with memory_world(database_url, ScriptedFacts(JAZZ)) as world:
        await admit(world, await world.session(), LOVE)
        claim = await world.claim("remember")
        while not isinstance(await world.remembering().advance(claim), Prepared):
            pass
        await world.withdraw_profile()
        done = await world.remembering().process(claim)
        assert done is not None and (done.outcome, done.why) == ("rejected", "target-withdrawn")
        await admit(world, await world.session(), HATE)
        [second] = [view for view in await world.intents.list(OWNER) if view.status != "completed"]
        assert second.intent.target == MemoryKey(namespace=world.namespace(), id="profile-2")


async def test_a_pending_intent_is_loaded_as_it_was_admitted(database_url: str) -> None:
    async with memory_world(database_url, ScriptedFacts(JAZZ)) as world:
        await admit(world, await world.session())
        [view] = await world.intents.list(OWNER)
        claim = await world.claim("remember")
        loaded = await world.intents.load(claim.job_id)
        assert loaded is not None
        assert (loaded.intent, loaded.progress, loaded.version) == (view.intent, Pending(), 0)

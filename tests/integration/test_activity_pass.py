"""Activity passes over real sessions: what is taken, what a crash or a lost lease leaves, what a pass costs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from memory_pipeline.activity.work import (
    CommittedActivity,
    PassLimits,
    PreparedActivity,
    ProcessorKey,
    work_id,
)
from shared.domain.errors import FenceLost, IntentsFull, ProcessingRefused
from shared.domain.failpoints import FailpointError, Failpoints
from shared.domain.ids import OwnerId
from shared.turns.queue import Outcome
from tests.support.memory_world import KEY, OWNER, MemoryWorld, memory_world
from tests.support.scripted_facts import ScriptedFacts

BOB = OwnerId("bob")
POINTS = (
    "activity.claimed",
    "activity.extracted",
    "activity.pinned",
    "activity.applied",
    "activity.advanced",
)


async def intents(world: MemoryWorld) -> list[tuple[str, str]]:
    """Owner and source of every admitted intent, oldest first."""
    found = await world.rows(
        "SELECT owner, intent::json #>> '{source,key,id}' AS id FROM memory_intents ORDER BY created_at"
    )
    return [(row["owner"], row["id"]) for row in found]


async def cursor(world: MemoryWorld) -> tuple[int, str | None]:
    [row] = await world.rows("SELECT through_seq, pending FROM activity_progress")
    return row["through_seq"], row["pending"]


class Counted:
    """The shipped processor with its calls counted; ``before`` runs at the start of an extract or apply."""

    def __init__(self, world: MemoryWorld) -> None:
        self.shipped = world.statements()
        self.calls: list[tuple[str, int]] = []
        self.before: dict[str, Any] = {}

    async def extract(self, activity: CommittedActivity) -> Any:
        self.calls.append(("extract", activity.record.seq))
        if "extract" in self.before:
            await self.before["extract"]()
        return await self.shipped.extract(activity)

    async def apply(self, owner: OwnerId, prepared: PreparedActivity) -> None:
        self.calls.append(("apply", prepared.seq))
        if "apply" in self.before:
            await self.before["apply"]()
        await self.shipped.apply(owner, prepared)

    @property
    def served(self) -> dict[ProcessorKey, Any]:
        return {KEY: replace(self.shipped, extract=self.extract, apply=self.apply)}


@pytest.mark.behaviour("ACT-08", "ACT-09", "ACT-15", "ACT-17", "ACT-18", "ACT-50")
async def test_a_pass_over_a_one_turn_session_is_seven_statements_and_three_commits(
    database_url: str,
) -> None:
    async with memory_world(database_url, ScriptedFacts()) as world:
        session = await world.session()
        await world.turn(session, "I love jazz.")
        world.database.counters.reset()
        claim = await world.claim("activity")
        result = await world.run_activity(claim)
        assert await world.settle(claim) == "idle"
        units = world.database.counters.snapshot()
        assert {name: (count.statements, count.commits) for name, count in units.items()} == {
            "activity.claim": (1, 1),
            "activity.load": (1, 0),
            "session.head": (1, 0),
            "session.read": (1, 0),
            "memory.read": (1, 0),
            "activity.pin": (1, 1),
            "intent.admit": (1, 1),
            "activity.advance": (1, 1),
            "activity.settle": (1, 1),
        }
        assert (result.captured_tail, result.through_seq, result.processed, result.applied) == (4, 4, 4, 1)
        assert await intents(world) == [(OWNER, f"{session}:1")]


@pytest.mark.behaviour("ACT-18")
async def test_records_that_are_nobodys_input_cost_one_commit_a_page(database_url: str) -> None:
    async with memory_world(database_url, ScriptedFacts()) as world:
        await world.turn(await world.session(), "I love jazz.", origin="inbox", steps=30)
        claim = await world.claim("activity")
        world.database.counters.reset()
        result = await world.run_activity(claim)
        units = world.database.counters.snapshot()
        assert (units["session.read"].calls, units["activity.advance"].commits) == (3, 3)
        assert "activity.pin" not in units
        assert (result.through_seq, result.applied, result.remaining) == (33, 0, 0)


@pytest.mark.behaviour("ACT-13", "ACT-14", "ACT-29", "ACT-30")
@pytest.mark.parametrize(
    ("outcome", "taken"),
    [("completed", 1), ("partial", 1), ("failed", 0), ("cancelled", 0), ("interrupted", 0)],
)
async def test_only_statements_of_turns_that_ended_with_a_reply_are_taken(
    database_url: str, outcome: Outcome, taken: int
) -> None:
    async with memory_world(database_url, ScriptedFacts()) as world:
        session = await world.session()
        await world.turn(session, "I love jazz.", outcome=outcome)
        claim = await world.claim("activity")
        result = await world.run_activity(claim)
        assert (result.applied, result.remaining) == (taken, 0)
        assert await intents(world) == [(OWNER, f"{session}:1")] * taken


@pytest.mark.behaviour("ACT-14", "REM-10", "REM-11")
async def test_a_turn_that_is_still_open_is_waited_for_and_its_end_owes_the_pass_that_takes_it(
    database_url: str,
) -> None:
    async with memory_world(database_url, ScriptedFacts()) as world:
        session = await world.session()
        await world.turn(session, "I love jazz.")
        open_turn = await world.open_turn(session, "I hate jazz.")
        claim = await world.claim("activity")
        result = await world.run_activity(claim)
        assert (result.through_seq, result.remaining, result.waiting) == (4, 1, True)
        assert await world.settle(claim) == "idle", "waiting owes nothing by itself"
        await world.end_turn(open_turn)
        claim = await world.claim("activity")
        result = await world.run_activity(claim)
        assert (result.processed, result.remaining, result.waiting) == (4, 0, False)
        assert await intents(world) == [(OWNER, f"{session}:1"), (OWNER, f"{session}:5")]


@pytest.mark.behaviour("ACT-10")
async def test_records_committed_during_a_pass_are_left_to_the_next_one_which_is_owed(
    database_url: str,
) -> None:
    async with memory_world(database_url, ScriptedFacts()) as world:
        session = await world.session()
        await world.turn(session, "I love jazz.")
        counted = Counted(world)
        counted.before["extract"] = lambda: world.turn(session, "I hate jazz.")
        claim = await world.claim("activity")
        result = await world.run_activity(claim, processors=counted.served)
        assert (result.captured_tail, result.through_seq, result.remaining) == (4, 4, 0)
        assert await world.settle(claim) == "ready"
        del counted.before["extract"]
        await world.run_activity(await world.claim("activity"), processors=counted.served)
        assert counted.calls == [("extract", 1), ("apply", 1), ("extract", 5), ("apply", 5)]


@pytest.mark.behaviour("ACT-06", "ACT-50")
async def test_a_pass_stops_at_its_bound_and_owes_the_rest(database_url: str) -> None:
    async with memory_world(database_url, ScriptedFacts()) as world:
        session = await world.session()
        for _ in range(3):
            await world.turn(session, "I love jazz.")
        seen = []
        while claims := await world.claims("activity"):
            result = await world.run_activity(claims[0], limits=PassLimits(max_records=5, page_size=128))
            seen.append((result.processed, result.remaining))
            await world.settle(claims[0])
        assert seen == [(5, 7), (5, 2), (2, 0)]
        assert len(await intents(world)) == 3


@pytest.mark.behaviour("ACT-15", "ACT-19", "ACT-24", "ACT-40")
@pytest.mark.parametrize("point", POINTS)
async def test_a_worker_that_dies_between_any_two_steps_leaves_one_intent_and_one_pinned_extraction(
    database_url: str, point: str
) -> None:
    async with memory_world(database_url, ScriptedFacts()) as world:
        await world.turn(await world.session(), "I love jazz.")
        counted = Counted(world)
        dead = await world.claim("activity")
        with pytest.raises(FailpointError):
            await world.run_activity(
                dead, processors=counted.served, failpoints=Failpoints.parse(f"{point}=raise")
            )
        await world.expire(dead)
        claim = await world.claim("activity")
        assert claim.fence.epoch == dead.fence.epoch + 1
        await world.run_activity(claim, processors=counted.served)
        assert await world.settle(claim) == "idle"
        extracts = [call for call in counted.calls if call[0] == "extract"]
        assert len(extracts) == (2 if point == "activity.extracted" else 1)
        assert len(await intents(world)) == 1
        assert await cursor(world) == (4, None)


@pytest.mark.behaviour("ACT-19")
async def test_pinned_work_is_applied_as_it_was_saved_though_the_target_changed_since(
    database_url: str,
) -> None:
    async with memory_world(database_url, ScriptedFacts()) as world:
        await world.turn(await world.session(), "I love jazz.")
        dead = await world.claim("activity")
        with pytest.raises(FailpointError):
            await world.run_activity(dead, failpoints=Failpoints.parse("activity.applied=raise"))
        await world.withdraw_profile()
        await world.expire(dead)
        await world.run_activity(await world.claim("activity"))
        [row] = await world.rows("SELECT intent::json #>> '{target,id}' AS target FROM memory_intents")
        assert row["target"] == "profile-1"


@pytest.mark.behaviour("ACT-41", "ACT-42")
@pytest.mark.parametrize("during", ["extract", "apply"])
async def test_a_worker_whose_lease_passed_can_neither_pin_nor_advance(
    database_url: str, during: str
) -> None:
    async with memory_world(database_url, ScriptedFacts()) as world:
        await world.turn(await world.session(), "I love jazz.")
        late, reached, resume = Counted(world), asyncio.Event(), asyncio.Event()

        async def pause() -> None:
            reached.set()
            await resume.wait()

        late.before[during] = pause
        old = await world.claim("activity")
        paused = asyncio.create_task(world.run_activity(old, processors=late.served))
        async with asyncio.timeout(10):
            await reached.wait()
        await world.expire(old)
        new = await world.claim("activity")
        before = await cursor(world)
        resume.set()
        with pytest.raises(FenceLost):
            await paused
        assert await cursor(world) == before
        await world.run_activity(new)
        assert (await cursor(world), len(await intents(world))) == ((4, None), 1)


@pytest.mark.behaviour("ACT-11")
async def test_a_log_restored_to_before_the_cursor_stops_the_pass_and_changes_nothing(
    database_url: str,
) -> None:
    async with memory_world(database_url, ScriptedFacts()) as world:
        session = await world.session()
        await world.turn(session, "I love jazz.")
        claim = await world.claim("activity")
        await world.rows("UPDATE activity_progress SET through_seq = 5")
        with pytest.raises(ProcessingRefused) as refused:
            await world.run_activity(claim)
        assert refused.value.fields["reason"] == "noncontiguous"
        assert (await cursor(world), await intents(world)) == ((5, None), [])


@pytest.mark.behaviour("ACT-11", "ACT-20")
@pytest.mark.parametrize("harm", ["gap", "changed"])
async def test_a_gap_or_a_changed_record_behind_pinned_work_stops_before_it_is_applied(
    database_url: str, harm: str
) -> None:
    async with memory_world(database_url, ScriptedFacts()) as world:
        await world.turn(await world.session(), "I love jazz.")
        dead = await world.claim("activity")
        with pytest.raises(FailpointError):
            await world.run_activity(dead, failpoints=Failpoints.parse("activity.pinned=raise"))
        if harm == "gap":
            await world.rows("DELETE FROM records WHERE seq = 1")
        else:
            text = '{"changed":true}'
            await world.rows(
                "UPDATE records SET data = %s, digest = sha256(convert_to(kind, 'UTF8') || '\\x00'"
                " || convert_to(%s, 'UTF8')) WHERE seq = 1",
                text,
                text,
            )
        pinned = await cursor(world)
        await world.expire(dead)
        with pytest.raises(ProcessingRefused) as refused:
            await world.run_activity(await world.claim("activity"))
        assert refused.value.fields["reason"] == "noncontiguous"
        assert (await cursor(world), await intents(world)) == (pinned, [])


@pytest.mark.behaviour("ACT-21", "ACT-49")
async def test_another_version_of_a_processor_has_its_own_progress_and_work_ids(database_url: str) -> None:
    async with memory_world(database_url, ScriptedFacts()) as world:
        second = ProcessorKey(KEY.processor, "2")
        await world.activity.register(second)
        session = await world.session()
        await world.turn(session, "I love jazz.")
        served = {key: replace(world.statements(), key=key) for key in (KEY, second)}
        for claim in await world.claims("activity"):
            await world.run_activity(claim, processors=served)
        views = await world.activity.inspect(OWNER, session)
        assert [(view.key, view.through_seq, view.pending_seq) for view in views] == [
            (KEY, 4, None),
            (second, 4, None),
        ]
        assert all(view.advanced_at is not None for view in views)
        found = {row["id"] for row in await world.rows("SELECT id FROM memory_intents")}
        assert found == {work_id(KEY, session, 1), work_id(second, session, 1)}
        assert await world.activity.inspect(BOB, session) == []


async def test_a_processor_that_is_not_served_here_is_refused_and_a_retired_one_is_owed_nothing(
    database_url: str,
) -> None:
    async with memory_world(database_url, ScriptedFacts()) as world:
        session = await world.session()
        await world.turn(session, "I love jazz.")
        claim = await world.claim("activity")
        with pytest.raises(ProcessingRefused) as refused:
            await world.run_activity(claim, processors={})
        assert refused.value.fields["reason"] == "unknown-processor"
        await world.jobs.settle(claim, "done")
        await world.activity.retire(KEY)
        await world.turn(session, "I hate jazz.")
        assert await world.claims("activity") == []


@pytest.mark.behaviour("REM-12", "REM-45")
async def test_when_an_owner_is_full_the_pass_fails_typed_and_its_work_stays_pinned(
    database_url: str,
) -> None:
    async with memory_world(database_url, ScriptedFacts(), intents_per_owner=1) as world:
        session = await world.session()
        await world.turn(session, "I love jazz.")
        await world.turn(session, "I love tea.")
        full = await world.claim("activity")
        with pytest.raises(IntentsFull):
            await world.run_activity(full)
        assert await intents(world) == [(OWNER, f"{session}:1")], "what is owed is not evicted"
        through, pending = await cursor(world)
        assert through == 4 and pending is not None
        await world.jobs.settle(full, "retry", failure="memory.intents-full")
        await world.remembering().process(await world.claim("remember"))
        await world.run_activity(await world.claim("activity"))
        assert await intents(world) == [(OWNER, f"{session}:1"), (OWNER, f"{session}:5")]

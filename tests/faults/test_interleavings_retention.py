"""Interleavings of what takes away: pruning beside an admission and a retry, archiving beside another archiver."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from shared.domain.errors import ArchiveRefused
from shared.domain.ids import new_session_id, new_turn_id
from shared.sessions.log import NewSession
from shared.sessions.records import draft
from shared.transfer.archiving import plan_ranges
from shared.transfer.postgres import PostgresArchives, PostgresTransferStore
from shared.transfer.retention import Policy, Retention
from tests.faults.world import OWNER, admit_call, outcome, run_as, world
from tests.support.mutations import Mutation, Scenario, mutation, prove
from tests.support.transfer_world import age

POLICY = Policy(sessions_after=timedelta(days=300))


async def scenario_admission_between_look_and_lock(url: str) -> None:
    """A session that was found old is judged again under its head: it was written to since."""
    async with world(url) as w:
        first, second = await w.session(), await w.session()
        age(url, 400)
        batches = Retention(w.database).batches(POLICY)
        gone = (await anext(batches)).sessions  # both were found old by now
        await w.admit(second)
        gone += sum([part.sessions async for part in batches])
        left = await w.rows("SELECT id FROM sessions")
        assert (gone, [row["id"] for row in left]) == (1, [second]), first


async def scenario_admission_to_a_fork(url: str) -> None:
    """A removal that waits for an admission to a descendant is judged by what that left: nothing of the family goes."""
    async with world(url) as w:
        session, fork = await w.session(), new_session_id()
        await w.log.fork(NewSession(fork, OWNER), session, inherit=True)
        age(url, 400)
        async with w.transaction() as admitter:
            await run_as(admitter, admit_call(fork, new_turn_id()), "turn_admit_v3")
            pruning = asyncio.create_task(Retention(w.database).prune(POLICY))
            await w.waits(pruning, "prune_session_v1")
        assert (await pruning).sessions == 0
        assert len(await w.rows("SELECT 1 FROM sessions")) == 2
        assert len(await w.claims()) == 1


async def scenario_retry_of_what_is_pruned(url: str) -> None:
    """A row that is put back at this moment is passed over: its head is held."""
    async with world(url) as w:
        lost = await w.admit(session := await w.session())
        await w.rows(
            "UPDATE turns SET status = 'ended', outcome = 'interrupted', code = 'turn.lease', ended_at = clock_timestamp()"
        )
        await w.admit(session)
        await w.open(claim := await w.claim())
        await w.end(claim)
        age(url, 100)
        async with w.transaction() as operator:
            await operator.execute("SELECT turn_retry_v1(%s)", (lost.turn_id,))
            pruning = asyncio.create_task(Retention(w.database).prune(Policy()))
            await w.waits(pruning, "prune_turns_v1")
        await pruning
        assert [claim.turn_id for claim in await w.claims()] == [lost.turn_id]


async def scenario_two_archivers(url: str) -> None:
    """An archiver that waited for another one finds its range moved, and moves nothing."""
    async with world(url) as w:
        session, archives = await w.session(), PostgresArchives(w.database)
        await w.log.commit(session, OWNER, [draft("host.note", {"n": n}) for n in range(5)], commit_id="c")
        records, later = await w.records(session), datetime.now(UTC) + timedelta(hours=1)
        store = PostgresTransferStore(w.database)
        [part] = [a async for a in plan_ranges(w.log, store, archives, session, OWNER, before=later)]
        async with w.transaction() as other:
            await other.execute(
                "SELECT archive_range_v1(%s, %s, %s, %s, %s, %s, 1000, 1000000)",
                (session, OWNER, part.first_seq, part.last_seq, part.tail_before, part.tail_after),
            )
            late = asyncio.create_task(outcome(archives.archive(session, OWNER, part)))
            await w.waits(late, "archive_range_v1")
        refusal = await late
        assert isinstance(refusal, ArchiveRefused)
        assert refusal.fields["reason"] == "moved"
        assert await w.records(session) == records


PROOFS: list[tuple[Scenario, Mutation]] = [
    (
        scenario_admission_between_look_and_lock,
        mutation(
            "pruning believes the look",
            "prune_session_v1",
            ("AND session_is_kept_v1(s, p_before);\n  IF FOUND", "AND false;\n  IF FOUND"),
        ),
    ),
    (
        scenario_admission_to_a_fork,
        mutation(
            "pruning locks no descendants",
            "prune_session_v1",
            (
                "FROM (SELECT id FROM sessions WHERE parent = ANY (v_generation) ORDER BY id FOR UPDATE) children;",
                "FROM (SELECT id FROM sessions WHERE parent = ANY (v_generation) ORDER BY id) children;",
            ),
        ),
    ),
    (
        scenario_retry_of_what_is_pruned,
        mutation(
            "pruning of rows locks no head",
            "prune_turns_v1",
            ("WHERE s.id = ANY (v_sessions) ORDER BY s.id FOR NO KEY UPDATE SKIP LOCKED) l;", ") l;"),
        ),
    ),
    (
        scenario_two_archivers,
        mutation(
            "archiving locks no head",
            "archive_range_v1",
            (
                "WHERE id = p_session AND owner = p_owner FOR NO KEY UPDATE;",
                "WHERE id = p_session AND owner = p_owner;",
            ),
        ),
    ),
]


@pytest.mark.behaviour("OPS-12")
async def test_an_old_session_that_is_written_to_as_it_is_judged_stays(database_url: str) -> None:
    await scenario_admission_between_look_and_lock(database_url)


@pytest.mark.behaviour("OPS-12")
async def test_an_old_session_whose_fork_is_written_to_as_it_is_judged_stays(database_url: str) -> None:
    await scenario_admission_to_a_fork(database_url)


@pytest.mark.behaviour("OPS-12")
async def test_an_old_row_that_is_put_back_at_this_moment_stays(database_url: str) -> None:
    await scenario_retry_of_what_is_pruned(database_url)


@pytest.mark.behaviour("THR-104")
async def test_of_two_archivers_of_one_range_one_moves_it(database_url: str) -> None:
    await scenario_two_archivers(database_url)


@pytest.mark.mutation
@pytest.mark.parametrize(("scenario", "change"), PROOFS, ids=[change.name for _, change in PROOFS])
async def test_scenario_fails_without_its_rule(
    scenario: Scenario, change: Mutation, database_url: str
) -> None:
    await prove(database_url, scenario, change)

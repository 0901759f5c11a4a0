"""Interleavings of a host's doors: forks beside removals, checked appends beside others, extensions beside claims."""

from __future__ import annotations

import asyncio

import pytest

from shared.conformance.turn_stage import commit_id, step
from shared.domain.errors import RevisionConflict, SessionMissing
from shared.domain.ids import new_session_id
from shared.sessions.log import NewSession
from shared.sessions.records import draft
from tests.faults.world import OWNER, hold_row, outcome, world
from tests.support.mutations import Mutation, Scenario, mutation, prove


async def scenario_fork_beside_a_removal(url: str) -> None:
    """A fork that waits for its parent's removal finds no parent, and no child is left without one."""
    async with world(url) as w:
        parent, child = await w.session(), new_session_id()
        async with w.transaction() as remover:
            await remover.execute("SELECT session_remove_v3(%s, %s)", (parent, OWNER))
            fork = asyncio.create_task(outcome(w.log.fork(NewSession(child, OWNER), parent, inherit=True)))
            await w.waits(fork, "session_fork_v1")
        assert isinstance(await fork, SessionMissing)
        assert await w.rows("SELECT 1 FROM sessions WHERE parent = %s", parent) == []


async def scenario_removal_beside_a_fork(url: str) -> None:
    """The mirror of it: a removal that waits for a fork takes the child with it."""
    async with world(url) as w:
        parent, child = await w.session(), new_session_id()
        async with w.transaction() as forker:
            await forker.execute(
                "SELECT session_fork_v1(%s, %s, %s, '', '\\x00', true)", (child, parent, OWNER)
            )
            removal = asyncio.create_task(w.log.remove(parent, OWNER))
            await w.waits(removal, "session_remove_v3")
        assert await removal == [parent, child]
        assert await w.rows("SELECT 1 FROM sessions WHERE id = ANY (%s)", [parent, child]) == []


async def scenario_checked_append_beside_another(url: str) -> None:
    """An append that expects a revision waits for someone else's commit, and is judged by what that left."""
    async with world(url) as w:
        claim = await w.held_turn()
        read = (await w.head(claim.session_id)).revision
        note = draft("host.note", {"n": 1})
        async with w.transaction() as other:
            await other.execute(
                "SELECT * FROM session_commit_v1(%s, %s, NULL, '', NULL, NULL, %s, %s, %s, NULL)",
                (claim.session_id, OWNER, [note.kind], [note.text], [note.digest]),
            )
            late = asyncio.create_task(
                outcome(w.queue.append(claim, commit_id(claim, "late"), [step()], expect=read))
            )
            await w.waits(late, "turn_append_v2")
        assert isinstance(await late, RevisionConflict)
        assert await w.kinds(claim.session_id) == ["turn.started", "host.note"]


async def scenario_extension_beside_a_claim(url: str) -> None:
    """A write judged in time extends no lease but its own: the row may have been claimed meanwhile."""
    async with world(url) as w:
        claim = await w.held_turn()
        async with w.transaction() as taker:
            await hold_row(taker, claim.turn_id)
            write = asyncio.create_task(
                w.queue.append(claim, commit_id(claim, "slow"), [step()], extend_s=3_600.0)
            )
            await w.waits(write, "turn_append_v2")
            await taker.execute(
                "UPDATE turns SET epoch = epoch + 1, token = gen_random_uuid(),"
                " expires_at = clock_timestamp() + interval '10 s' WHERE id = %s",
                (claim.turn_id,),
            )
        await write
        [row] = await w.rows(
            "SELECT expires_at < clock_timestamp() + interval '1 minute' AS own FROM turns WHERE id = %s",
            claim.turn_id,
        )
        assert row["own"]


PROOFS: list[tuple[Scenario, Mutation]] = [
    (
        scenario_fork_beside_a_removal,
        mutation(
            "fork locks no parent",
            "session_fork_v1",
            (
                "WHERE id = p_parent AND owner = p_owner FOR NO KEY UPDATE",
                "WHERE id = p_parent AND owner = p_owner",
            ),
        ),
    ),
    (
        scenario_removal_beside_a_fork,
        mutation(
            "removal locks no parent",
            "session_remove_v3",
            (
                "PERFORM 1 FROM sessions WHERE id = p_session AND owner = p_owner FOR UPDATE;",
                "PERFORM 1 FROM sessions WHERE id = p_session AND owner = p_owner;",
            ),
        ),
    ),
    (
        scenario_checked_append_beside_another,
        mutation(
            "append checks no revision", "turn_append_v2", ("AND p_expect <> v_head.revision", "AND false")
        ),
    ),
    (
        scenario_extension_beside_a_claim,
        mutation(
            "extension of any holder's lease",
            "turn_append_v2",
            ("WHERE id = p_id AND epoch = p_epoch AND token = p_token;", "WHERE id = p_id;"),
        ),
    ),
]


@pytest.mark.behaviour("SES-71", "SES-12")
async def test_a_fork_and_a_removal_leave_no_orphan_whichever_is_first(database_url: str) -> None:
    await scenario_fork_beside_a_removal(database_url)
    await scenario_removal_beside_a_fork(database_url)


@pytest.mark.behaviour("SES-49")
async def test_a_checked_append_is_judged_after_it_waited(database_url: str) -> None:
    await scenario_checked_append_beside_another(database_url)


@pytest.mark.behaviour("SES-87")
async def test_a_write_extends_its_own_lease_alone(database_url: str) -> None:
    await scenario_extension_beside_a_claim(database_url)


@pytest.mark.mutation
@pytest.mark.parametrize(("scenario", "change"), PROOFS, ids=[change.name for _, change in PROOFS])
async def test_scenario_fails_without_its_rule(
    scenario: Scenario, change: Mutation, database_url: str
) -> None:
    await prove(database_url, scenario, change)

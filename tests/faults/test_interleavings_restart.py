"""A crash of the database beside held leases (core 13: 16), with its mutation proofs. Each has servers of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from shared.conformance.turn_stage import fences, seen
from shared.database.embedded import EmbeddedServers
from shared.domain.ids import WorkerId
from tests.faults.world import world
from tests.support.mutations import Mutation, apply, mutation

CrashScenario = Callable[[EmbeddedServers], Awaitable[None]]


async def scenario_crash_after_an_asynchronous_renewal(servers: EmbeddedServers) -> None:
    """(16) The database crashes between a renewal and its flush: the lease may be shorter, the claim is not undone."""
    async with world(servers.database_url) as w:
        # What is not flushed by its own commit stays unflushed until the crash.
        await w.rows("ALTER SYSTEM SET wal_writer_delay = '10s'")
        await w.rows("SELECT pg_reload_conf()")
        await w.admit(await w.session())
        claim = await w.claim("w1", lease_s=60.0)
        claimed_until = (await w.row(claim.turn_id))["expires_at"]
        assert (await w.queue.renew(fences(claim), 600.0)).renewed == {claim.turn_id}
        renewed_until = (await w.row(claim.turn_id))["expires_at"]
    servers.restart_postgres(immediate=True)
    async with world(servers.database_url) as w:
        row = await w.row(claim.turn_id)
        assert (row["status"], row["epoch"], row["token"]) == (
            "running",
            claim.fence.epoch,
            claim.fence.token,
        )
        assert claimed_until <= row["expires_at"] <= renewed_until
        assert await w.claims("w2") == []
        assert (await w.open(claim)).result == "opened"
        await w.end(claim)
        assert await w.kinds(claim.session_id) == ["turn.started", "turn.ended"]


async def scenario_silence_counts_from_the_start_of_the_database(servers: EmbeddedServers) -> None:
    """Nobody could be seen while the database was away: a takeover soon after its start calls no holder gone."""
    async with world(servers.database_url) as w:
        claim = await w.held_turn("w1")
        await w.queue.seen(seen(WorkerId("w1")))
        await w.rows("UPDATE workers SET last_seen = last_seen - interval '1 h'")
    servers.restart_postgres(immediate=True)
    async with world(servers.database_url) as w:
        await w.expire(claim.turn_id)
        taken = await w.claim("w2", lease_s=60.0)
        assert (taken.turn_id, taken.suspect) == (claim.turn_id, False)


PROOFS: list[tuple[CrashScenario, Mutation]] = [
    (
        scenario_crash_after_an_asynchronous_renewal,
        mutation(
            "claims commit asynchronously",
            "turn_claim_v4",
            (
                "BEGIN\n  IF p_takeovers THEN",
                "BEGIN\n  PERFORM set_config('synchronous_commit', 'off', true);\n  IF p_takeovers THEN",
            ),
        ),
    ),
    (
        scenario_silence_counts_from_the_start_of_the_database,
        mutation(
            "silence counts from last seen alone",
            "turn_take_over_v2",
            ("pg_postmaster_start_time() < v_silent_since", "true"),
        ),
    ),
]


@pytest.mark.behaviour("DST-25")
async def test_crash_shortens_a_lease_at_most(own_servers: EmbeddedServers) -> None:
    await scenario_crash_after_an_asynchronous_renewal(own_servers)


async def test_holder_is_not_gone_because_the_database_was_away(own_servers: EmbeddedServers) -> None:
    await scenario_silence_counts_from_the_start_of_the_database(own_servers)


@pytest.mark.mutation
@pytest.mark.parametrize(("scenario", "change"), [pytest.param(s, m, id=m.name) for s, m in PROOFS])
async def test_scenario_fails_without_its_rule(
    own_servers: EmbeddedServers, scenario: CrashScenario, change: Mutation
) -> None:
    apply(own_servers.database_url, change)
    with pytest.raises(AssertionError):
        await scenario(own_servers)

"""Interleavings of a host's begins and admissions, and of sweeps (core 13: 12), with mutation proofs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from shared.conformance.turn_stage import fences
from shared.database.pool import Database
from shared.domain.errors import SessionBusy, StoreUnavailable, TurnkeeperError, TurnRefused
from shared.domain.ids import OwnerId, SessionId, WorkerId, new_turn_id
from shared.sessions.records import draft
from shared.turns.admission import TurnToAdmit
from shared.turns.postgres import PostgresTurnQueue
from shared.turns.queue import Admission, AdmissionLimits, Begun, Receipt
from tests.faults.world import (
    LEASE_S,
    OWNER,
    World,
    admission,
    admit_call,
    hold_head,
    outcome,
    run_as,
    world,
)
from tests.support.mutations import Mutation, Scenario, mutation, prove

HOST = WorkerId("host")
COUNT = "UPDATE quota SET used = used + 1 WHERE owner = %s RETURNING used"


async def begin(w: World, one: Admission, hook: Quota | None = None) -> Begun | TurnkeeperError:
    """Begin a turn in a host's process."""
    started = draft("turn.started", {"v": 1, "turn_id": str(one.turn_id)})
    call = w.queue.begin(
        one,
        HOST,
        lease_s=LEASE_S,
        commit_id="begin",
        drafts=[started],
        limits=AdmissionLimits(),
        admit=hook,
    )
    return await outcome(call)


@dataclass(slots=True)
class Quota:
    """A host's quota in a table of its own, counted in the transaction that stores the turn."""

    most: int = 100
    first: bool = False
    stored: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event | None = None
    dies: bool = False

    async def admit(self, turn: TurnToAdmit, proceed: Callable[[], Awaitable[None]]) -> None:
        """See the port."""
        if self.first:
            await proceed()
        [row] = await turn.transaction.execute(COUNT, [turn.owner])
        if row["used"] > self.most:
            raise TurnRefused("no more of yours", session=turn.session_id, reason="quota")
        if not self.first:
            await proceed()
        self.stored.set()
        if self.go_on is not None:
            await self.go_on.wait()
        if self.dies:
            await turn.transaction.execute("SELECT pg_terminate_backend(pg_backend_pid())")


async def quota_table(w: World, owner: OwnerId = OWNER) -> None:
    await w.rows("CREATE TABLE quota (owner text PRIMARY KEY, used int NOT NULL DEFAULT 0)")
    await w.rows("INSERT INTO quota (owner) VALUES (%s)", owner)


async def used(w: World) -> int:
    [row] = await w.rows("SELECT used FROM quota")
    return int(row["used"])


async def admit(w: World, session: SessionId, hook: Quota, **given: Any) -> Receipt | TurnkeeperError:
    return await outcome(w.queue.admit(admission(session, **given), AdmissionLimits(), admit=hook))


async def scenario_begin_waits_for_an_admission(url: str) -> None:
    """A begin that waited for another turn's admission finds the session busy, and opens nothing."""
    async with world(url) as w:
        session = await w.session()
        first = new_turn_id()
        async with w.transaction() as producer:
            await run_as(producer, admit_call(session, first), "turn_admit_v3")
            beginning = asyncio.create_task(begin(w, admission(session)))
            await w.waits(beginning, "turn_begin_v2")
        busy = await beginning
        assert isinstance(busy, SessionBusy)
        assert busy.fields == {"turn": str(first)}
        assert await w.kinds(session) == []


async def scenario_begin_is_repeated_while_the_first_try_waits(url: str) -> None:
    """Two tries of one begin behind a lock: one opens the turn, the other adopts it, under one fence."""
    async with world(url) as w:
        session = await w.session()
        one = admission(session, key="k")
        async with w.transaction() as blocker:
            await hold_head(blocker, session)
            tries = [asyncio.create_task(begin(w, one)) for _ in range(2)]
            for each in tries:
                await w.waits(each, "turn_begin_v2")
        answers = await asyncio.gather(*tries)
        begun = [answer for answer in answers if isinstance(answer, Begun)]
        assert sorted(answer.opened.result for answer in begun) == ["adopted", "opened"]
        assert len({answer.claim.fence for answer in begun}) == 1
        assert await w.kinds(session) == ["turn.started"]


async def scenario_slow_hook_while_the_open_turn_renews(url: str) -> None:
    """(12) A host's admission dwells with the head locked and the last connection taken; the open turn keeps its lease."""
    async with world(url, connections=2) as w:
        await quota_table(w)
        claim = await w.held_turn()
        polls = Database(url, connections=1)
        await polls.open()
        try:
            keeper = PostgresTurnQueue(w.database, polls=polls)
            go_on = asyncio.Event()
            hook = Quota(first=True, go_on=go_on)
            admitting = asyncio.create_task(admit(w, claim.session_id, hook))
            await hook.stored.wait()
            renewing = asyncio.create_task(keeper.renew(fences(claim), LEASE_S))
            try:
                assert not await w.waits(renewing, "turn_renew_v1")
            finally:
                go_on.set()
                renewal = await renewing
                receipt = await admitting
            assert renewal.renewed == {claim.turn_id}
            assert isinstance(receipt, Receipt)
            assert await w.append(claim, "after") == 2
        finally:
            await polls.close()


async def scenario_quota_is_counted_with_the_turn(url: str) -> None:
    """What the host counts and what the queue stores are one transaction: both, or neither."""
    for first in (True, False):
        async with world(url) as w:
            await w.rows("DROP TABLE IF EXISTS quota")
            await quota_table(w)
            session, hook = await w.session(), Quota(most=1, first=first)
            stored = await admit(w, session, hook, key="k")
            assert isinstance(stored, Receipt)
            repeated = await admit(w, session, Quota(most=2, first=first), key="k")
            assert isinstance(repeated, Receipt)
            assert (repeated.turn_id, await used(w)) == (stored.turn_id, 1)
            busy = await begin(w, admission(session), Quota(most=9, first=first))
            assert (type(busy), await used(w)) == (SessionBusy, 1)
            refused = await admit(w, session, hook)
            assert (type(refused), await used(w)) == (TurnRefused, 1)
            assert await w.statuses(session) == ["ready"]
            died = await admit(w, session, Quota(first=first, dies=True))
            assert (type(died), await used(w)) == (StoreUnavailable, 1)
            assert await w.statuses(session) == ["ready"]


async def scenario_sweep_passes_over_a_busy_session(url: str) -> None:
    """A batch of the sweep waits for no session: one whose head is locked is reaped next time."""
    async with world(url) as w:
        claims = [await w.held_turn(f"w{n}", on_worker_loss="interrupt") for n in range(3)]
        await w.expire(*[claim.turn_id for claim in claims])
        async with w.transaction() as blocker:
            await hold_head(blocker, claims[1].session_id)
            sweep = asyncio.create_task(w.queue.reap())
            assert not await w.waits(sweep, "turn_reap_v2")
            assert {view.turn_id for view in await sweep} == {claims[0].turn_id, claims[2].turn_id}
        assert [view.turn_id for view in await w.queue.reap()] == [claims[1].turn_id]


async def scenario_outage_of_hours(url: str) -> None:
    """(DST-20) The database was away for hours: a turn that was open goes on, and only an hour of trying ends it."""
    async with world(url) as w:
        claim = await w.held_turn()
        await w.rows("UPDATE turns SET expires_at = clock_timestamp() - interval '5 h'")
        for minutes, found in ((59, 0), (61, 1)):
            await w.rows(
                "CREATE OR REPLACE FUNCTION database_started_v1() RETURNS timestamptz LANGUAGE sql STABLE"
                f" RETURN clock_timestamp() - interval '{minutes} min'"
            )
            if not found:
                assert await w.queue.reap() == []
                async with w.transaction() as worker:
                    taken = await worker.execute(
                        b"SELECT cardinality(turn_take_over_v2('w2', 'turns', '{1}', 1, 60, 3, false)) AS n"
                    )
                    assert await taken.fetchone() == {"n": 1}
                    await worker.execute("ROLLBACK")
            else:
                assert await w.claims("w2") == []
                assert [view.turn_id for view in await w.queue.reap()] == [claim.turn_id]


HEAD_LOCK = (
    "SELECT * INTO v_head FROM sessions WHERE id = p_session AND owner = p_owner FOR NO KEY UPDATE;",
    "SELECT * INTO v_head FROM sessions WHERE id = p_session AND owner = p_owner;",
)

PROOFS: list[tuple[Scenario, Mutation]] = [
    (
        scenario_begin_waits_for_an_admission,
        mutation("begin locks no head", "turn_begin_v2", HEAD_LOCK),
    ),
    (
        scenario_begin_waits_for_an_admission,
        mutation(
            "begin looks at open turns only",
            "turn_begin_v2",
            ("IF FOUND THEN result := 'busy';", "IF v_head.open_turn IS NOT NULL THEN result := 'busy';"),
        ),
    ),
    (
        scenario_begin_is_repeated_while_the_first_try_waits,
        mutation(
            "a repeat is a duplicate",
            "turn_begin_v2",
            ("IF v_turn.id <> p_id THEN", "IF true THEN"),
        ),
    ),
    (
        scenario_slow_hook_while_the_open_turn_renews,
        mutation(
            "a renewal takes the head",
            "turn_renew_v1",
            (
                "PERFORM set_config('synchronous_commit', 'off', true);",
                "PERFORM 1 FROM sessions s JOIN turns t ON t.session_id = s.id WHERE t.id = ANY (p_ids) FOR NO KEY UPDATE OF s;",
            ),
        ),
    ),
    (
        scenario_sweep_passes_over_a_busy_session,
        mutation(
            "the sweep waits for heads",
            "turn_reap_v1",
            ("FOR NO KEY UPDATE SKIP LOCKED", "FOR NO KEY UPDATE"),
        ),
    ),
    (
        scenario_outage_of_hours,
        mutation(
            "the hour counts from the lease",
            "turn_is_dead_v1",
            ("GREATEST((p_turn).expires_at, database_started_v1())", "(p_turn).expires_at"),
        ),
    ),
    (
        scenario_outage_of_hours,
        mutation(
            "takeovers look back an hour",
            "turn_take_over_v2",
            ("ELSE '-infinity' END", "ELSE v_now - interval '1 hour' END"),
        ),
    ),
]


async def test_begin_that_waited_for_an_admission_is_busy(database_url: str) -> None:
    await scenario_begin_waits_for_an_admission(database_url)


async def test_begin_beside_its_first_try_adopts_what_that_opened(database_url: str) -> None:
    await scenario_begin_is_repeated_while_the_first_try_waits(database_url)


@pytest.mark.behaviour("SES-94", "SES-132")
async def test_slow_admission_of_a_host_costs_the_open_turn_no_lease(database_url: str) -> None:
    await scenario_slow_hook_while_the_open_turn_renews(database_url)


@pytest.mark.behaviour("SES-134", "SES-135", "SES-136", "SES-138")
async def test_quota_of_a_host_is_counted_with_the_turn_or_not_at_all(database_url: str) -> None:
    await scenario_quota_is_counted_with_the_turn(database_url)


@pytest.mark.behaviour("SES-123")
async def test_sweep_waits_for_no_session(database_url: str) -> None:
    await scenario_sweep_passes_over_a_busy_session(database_url)


@pytest.mark.behaviour("DST-20")
async def test_open_turn_outlives_an_outage_of_hours(database_url: str) -> None:
    await scenario_outage_of_hours(database_url)


@pytest.mark.mutation
@pytest.mark.parametrize(("scenario", "change"), [pytest.param(s, m, id=m.name) for s, m in PROOFS])
async def test_scenario_fails_without_its_rule(
    database_url: str, scenario: Scenario, change: Mutation
) -> None:
    await prove(database_url, scenario, change)

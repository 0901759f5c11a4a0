"""Retention: what is past its window and owed to nobody leaves; what anybody still owes, or is owed, stays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

import psycopg
import pytest

from shared.domain.errors import InvalidInput, TurnMissing
from shared.domain.ids import OwnerId, SessionId, TurnId
from shared.sessions.log import NewSession
from shared.sessions.records import draft
from shared.transfer.postgres import PostgresArchives, PostgresTransferStore
from shared.transfer.retention import Policy, Pruned, Retention
from shared.transfer.verify import verify_session
from tests.faults.world import OWNER, World, world
from tests.support.transfer_world import age, count
from workers.sweeps import RetentionSweep, retention_sweeps

DAY: Final = timedelta(days=1)
#: Rows leave after 90 days, sessions after 300.
POLICY: Final = Policy(sessions_after=300 * DAY)


@asynccontextmanager
async def aged(url: str) -> AsyncIterator[tuple[World, Retention]]:
    async with world(url) as w:
        yield w, Retention(w.database)


async def talk(w: World, session: SessionId, turns: int, owner: OwnerId = OWNER) -> list[TurnId]:
    """Carry some turns of a session to their ends."""
    done = []
    for _ in range(turns):
        await w.admit(session, owner)
        claim = await w.claim()
        await w.open(claim)
        await w.reply(claim)
        await w.end(claim)
        done.append(claim.turn_id)
    return done


async def kept(w: World) -> set[SessionId]:
    return {SessionId(row["id"]) for row in await w.rows("SELECT id FROM sessions")}


@pytest.mark.behaviour("OPS-12")
async def test_finished_turns_and_their_keys_leave_after_the_window_and_the_newest_stays(
    database_url: str,
) -> None:
    async with aged(database_url) as (w, retention):
        session = await w.session()
        turns = await talk(w, session, 4)
        await w.log.commit(session, OWNER, [draft("note", {})], commit_id="c")
        assert (await retention.prune(POLICY)).all == 0, "nothing is old yet"
        age(database_url, 91)
        records = await w.records(session)
        assert await retention.prune(POLICY) == Pruned(turns=3, keys=1)
        assert [row["id"] for row in await w.rows("SELECT id FROM turns")] == turns[-1:]
        assert count(database_url, "session_keys", "space IN ('turn', 'run')") == 2
        with pytest.raises(TurnMissing):
            await w.queue.get(turns[0], OWNER)
        assert await w.records(session) == records, "the log keeps what happened"
        await talk(w, session, 1)
        assert (await w.head(session)).turns == 5


@pytest.mark.behaviour("OPS-12")
async def test_an_admission_repeated_within_the_window_finds_its_receipt(database_url: str) -> None:
    async with aged(database_url) as (w, retention):
        session = await w.session()
        receipt = await w.admit(session, key="once")
        claim = await w.claim()
        await w.open(claim)
        await w.end(claim)
        await talk(w, session, 1)
        age(database_url, 89)
        await retention.prune(POLICY)
        again = await w.log.find_turn(session, OWNER, "once")
        assert again == receipt.turn_id
        age(database_url, 2)
        await retention.prune(POLICY)
        assert await w.log.find_turn(session, OWNER, "once") is None


#: What keeps an old session of two turns: its set-up, and how much of its rows may go all the same.
OWED: Final[Mapping[str, Sequence[str]]] = {
    "an unfinished turn": (
        "UPDATE turns SET status = 'ready', ended_at = NULL WHERE session_id = %(s)s AND position ="
        " (SELECT max(position) FROM turns WHERE session_id = %(s)s)",
    ),
    "an item that waits": (
        "INSERT INTO inbox_items (session_id, id, seq, source, content) VALUES (%(s)s, 'i', 1, 'x', '1')",
    ),
    "a result that it owes": ("INSERT INTO deliveries (child, parent, body) VALUES (%(s)s, 'p', '{}')",),
    "a result owed to it": ("INSERT INTO deliveries (child, parent, body) VALUES ('c', %(s)s, '{}')",),
    "activity that was not read": (
        "INSERT INTO jobs (pool, id, owner) VALUES ('activity', 'j', 'ann')",
        "INSERT INTO activity_progress (processor, version, session_id, owner, job_id)"
        " VALUES ('p', '1', %(s)s, 'ann', 'j')",
    ),
    "a younger fork": ("INSERT INTO sessions (id, owner, parent, tail) VALUES ('f', 'ann', %(s)s, '\\x00')",),
    "a younger fork of a fork": (
        "INSERT INTO sessions (id, owner, parent, tail, active_at, updated_at) VALUES"
        " ('f', 'ann', %(s)s, '\\x00', now() - interval '900 days', now() - interval '900 days')",
        "INSERT INTO sessions (id, owner, parent, tail) VALUES ('g', 'ann', 'f', '\\x00')",
    ),
}


@pytest.mark.behaviour("OPS-12")
@pytest.mark.parametrize("what", OWED)
async def test_an_old_session_stays_while_anything_is_owed(database_url: str, what: str) -> None:
    async with aged(database_url) as (w, retention):
        session, idle = await w.session(), await w.session()
        await talk(w, session, 2)
        age(database_url, 400)
        for statement in OWED[what]:
            async with w.admin.cursor() as cursor:
                await cursor.execute(statement.encode(), {"s": session})
        would = await retention.prune(POLICY, dry=True)
        gone = await retention.prune(POLICY)
        assert (would.sessions, gone.sessions) == (1, 1)
        assert session in await kept(w)
        assert idle not in await kept(w)
        assert await w.records(session)


@pytest.mark.behaviour("OPS-12")
async def test_an_old_session_leaves_with_all_that_it_has_and_its_children(database_url: str) -> None:
    async with aged(database_url) as (w, retention):
        session = await w.session()
        await talk(w, session, 2)
        await w.log.fork(NewSession(SessionId("fork"), OWNER), session, inherit=True)
        age(database_url, 400)
        young = await w.session()
        other = await w.session(OwnerId("bo"))
        assert (await retention.prune(POLICY, dry=True)).sessions == 2
        assert (await retention.prune(POLICY)).sessions == 2
        assert await kept(w) == {young, other}
        for table in ("turns", "records", "session_keys", "tool_calls"):
            assert count(database_url, table) == 0


@pytest.mark.behaviour("OPS-12")
async def test_an_owner_narrows_it_and_no_age_keeps_all_sessions(database_url: str) -> None:
    async with aged(database_url) as (w, retention):
        mine, theirs = await w.session(), await w.session(OwnerId("bo"))
        await talk(w, mine, 2)
        await talk(w, theirs, 2, OwnerId("bo"))
        age(database_url, 400)
        assert await retention.prune(Policy(owner=OwnerId("bo"))) == Pruned(turns=1)
        assert await kept(w) == {mine, theirs}
        assert await retention.prune(Policy(owner=OWNER, sessions_after=DAY)) == Pruned(sessions=1)
        assert await kept(w) == {theirs}
        with pytest.raises(InvalidInput):
            Policy(sessions_after=-DAY)


@pytest.mark.behaviour("OPS-12")
async def test_keys_of_waiting_items_and_unfinished_tasks_stay(database_url: str) -> None:
    async with aged(database_url) as (w, retention):
        session = await w.session()
        for space, key in (("inbox", "waits"), ("inbox", "gone"), ("task", "child"), ("task", "done")):
            await w.rows(
                "INSERT INTO session_keys VALUES (%s, %s, %s, '', '1', clock_timestamp())",
                session,
                space,
                key,
            )
        await w.rows(
            "INSERT INTO inbox_items (session_id, id, seq, source, content) VALUES (%s, 'waits', 1, 'x', '1')",
            session,
        )
        await w.log.create(NewSession(SessionId("child"), OWNER))
        await w.admit(SessionId("child"))
        age(database_url, 100)
        assert await retention.prune(Policy(), dry=True) == Pruned(keys=2)
        assert await retention.prune(Policy()) == Pruned(keys=2)
        left = await w.rows("SELECT key FROM session_keys WHERE session_id = %s ORDER BY key", session)
        assert [row["key"] for row in left] == ["child", "waits"]


async def remembered(w: World, intent: str, progress: str, days: int) -> None:
    """An intent with its item and the receipt of its write, all some days old."""
    done = progress == "completed"
    by = f"interval '{days} days'"
    await w.rows("INSERT INTO owners (id) VALUES ('ann') ON CONFLICT DO NOTHING")
    await w.rows(
        "INSERT INTO jobs (pool, id, owner, status) VALUES ('remember', %s, 'ann', %s)",
        intent,
        "idle" if done else "ready",
    )
    await w.rows(
        "INSERT INTO memory_intents (owner, id, job_id, intent, progress, created_at, completed_at) VALUES"
        f" ('ann', %s, %s, '{{}}', %s, clock_timestamp() - {by}, CASE WHEN %s THEN clock_timestamp() - {by} END)",
        intent,
        intent,
        progress,
        done,
    )
    await w.rows(
        "INSERT INTO memory_receipts (namespace, operation_id, id, generation, command, created_at)"
        f" VALUES ('n', %s, 'd', 1, '', clock_timestamp() - {by})",
        intent,
    )


@pytest.mark.behaviour("OPS-12")
async def test_no_receipt_leaves_that_unfinished_work_could_ask_for(database_url: str) -> None:
    async with aged(database_url) as (w, retention):
        for intent, progress, days in (
            ("old", "completed", 200),
            ("stuck", "prepared", 150),
            ("later", "completed", 100),
        ):
            await remembered(w, intent, progress, days)
        await remembered(w, "young", "completed", 10)
        assert await retention.prune(Policy(), dry=True) == Pruned(receipts=1, intents=2)
        assert await retention.prune(Policy()) == Pruned(receipts=1, intents=2)
        receipts = {row["operation_id"] for row in await w.rows("SELECT operation_id FROM memory_receipts")}
        assert receipts == {"stuck", "later", "young"}
        assert {row["id"] for row in await w.rows("SELECT id FROM memory_intents")} == {"stuck", "young"}
        assert {row["id"] for row in await w.rows("SELECT id FROM jobs")} == {"stuck", "young"}


@pytest.mark.behaviour("OPS-12")
async def test_a_session_that_somebody_works_with_is_passed_over_and_waits_for_nobody(
    database_url: str,
) -> None:
    async with aged(database_url) as (w, retention):
        busy, idle = await w.session(), await w.session()
        await talk(w, busy, 2)
        await talk(w, idle, 2)
        age(database_url, 400)
        async with w.transaction() as connection:
            await connection.execute("SELECT 1 FROM sessions WHERE id = %s FOR NO KEY UPDATE", [busy])
            async with asyncio.timeout(30):
                assert (await retention.prune(POLICY)).sessions == 1
        assert await kept(w) == {busy}


@pytest.mark.behaviour("OPS-12")
async def test_pruning_beside_live_traffic_loses_nothing_of_it(database_url: str) -> None:
    async with aged(database_url) as (w, retention):
        session = await w.session()
        await talk(w, session, 6)
        age(database_url, 91)
        small = Retention(w.database, batch_rows=1)

        async def traffic() -> None:
            await talk(w, session, 6)

        gone, _ = await asyncio.gather(small.prune(Policy()), traffic())
        gone_later = await small.prune(Policy())
        assert gone.turns + gone_later.turns == 6
        assert (await w.head(session)).turns == 12
        store, archives = PostgresTransferStore(w.database), PostgresArchives(w.database)
        await verify_session(w.log, store, archives, session)
        assert (await retention.prune(Policy())).all == 0


@pytest.mark.behaviour("OPS-12")
async def test_the_sweep_takes_bounded_parts_and_rests_after_a_pass(database_url: str) -> None:
    async with aged(database_url) as (w, _):
        session = await w.session()
        await talk(w, session, 40)
        age(database_url, 91)
        retention = Retention(w.database, batch_rows=1)
        [sweep] = retention_sweeps(retention, key_window_days=90, sessions_keep_days=0, every_s=3_600)
        first = await sweep.act()
        assert first == 20, "a pass under a lease takes a bounded part"
        assert await sweep.act() + await sweep.act() == 19
        age(database_url, 91)
        await talk(w, session, 2)
        age(database_url, 91)
        assert await sweep.act() == 0, "then it rests"
        assert retention_sweeps(retention, key_window_days=0, sessions_keep_days=0, every_s=1) == ()
        nothing = RetentionSweep(retention, Policy(rows_after=None), every_s=1)
        assert await nothing.act() == 0


PLANS: Final = {
    "turns": (
        "SELECT t.id FROM turns t WHERE t.status IN ('ended', 'cancelled', 'refused', 'expired')"
        " AND t.ended_at < now() - interval '90 days' AND t.ended_at >= '1970-01-01'"
        " AND (t.ended_at, t.id) > ('1970-01-01', '00000000-0000-0000-0000-000000000000')"
        " ORDER BY t.ended_at, t.id LIMIT 500",
        "turns_ended",
    ),
    "keys": (
        "SELECT k.session_id FROM session_keys k WHERE k.created_at < now() - interval '90 days'"
        " AND NOT key_is_kept_v1(k) LIMIT 500",
        "session_keys_made",
    ),
}


@pytest.mark.behaviour("OPS-12")
@pytest.mark.parametrize("what", PLANS)
def test_at_size_a_batch_looks_at_what_is_old_and_not_at_all_there_is(database_url: str, what: str) -> None:
    statement, index = PLANS[what]
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("INSERT INTO owners (id) VALUES ('ann')")
        connection.execute(
            "INSERT INTO turns (id, session_id, owner, position, origin, status, fingerprint, run_id, ended_at)"
            " SELECT gen_random_uuid(), 's' || n / 10, 'ann', n %% 10, 'user', 'ended', '', '', now() - n * interval '1 minute'"
            " FROM generate_series(1, 150000) n".replace("%%", "%")
        )
        connection.execute(
            "INSERT INTO session_keys SELECT 's', 'commit', n::text, '', '', now() - (200000 - n) * interval '1 minute'"
            " FROM generate_series(1, 200000) n"
        )
        connection.execute("VACUUM ANALYZE turns")
        connection.execute("VACUUM ANALYZE session_keys")
        row = connection.execute(f"EXPLAIN (FORMAT JSON) {statement}".encode()).fetchone()
        assert row is not None
        assert index in json.dumps(row[0])

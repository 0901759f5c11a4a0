"""Stored sessions under verification: every kind of damage is found and named, live or archived; bounds of reads and commits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import psycopg
import pytest

from shared.database.migrate import check, migrate
from shared.database.pool import Database
from shared.database.schema import VERSION
from shared.domain.bounds import COMMIT_MAX_RECORDS
from shared.domain.errors import InputTooLarge, SchemaOutOfRange, SessionCorrupt
from shared.domain.ids import SessionId
from shared.sessions.log import READ_MAX_RECORDS, NewSession
from shared.sessions.records import draft
from shared.transfer.archiving import archive_session
from shared.transfer.export import stream_export
from shared.transfer.verify import verify_file
from tests.support.transfer_world import ALWAYS, OWNER, TransferWorld, count, fill, transfer_world

FIVE: Final = "session_id = %s AND seq = 5"

#: Damage of the record with seq 5 of 9, and what is named.
DAMAGE: Final[Mapping[str, tuple[str, int, str]]] = {
    "payload": (f"UPDATE records SET data = replace(data, '4', '5') WHERE {FIVE}", 5, "kind, data or digest"),
    "kind": (f"UPDATE records SET kind = 'nota' WHERE {FIVE}", 5, "kind, data or digest"),
    "digest": (
        f"UPDATE records SET digest = set_byte(digest, 0, get_byte(digest, 0) # 1) WHERE {FIVE}",
        5,
        "kind, data or digest",
    ),
    "payload and digest": (
        f"UPDATE records SET data = '{{}}', digest = record_digest_v1(kind, '{{}}') WHERE {FIVE}",
        1,
        "the digest chain",
    ),
    "not JSON": (
        f"UPDATE records SET data = '{{', digest = record_digest_v1(kind, '{{') WHERE {FIVE}",
        5,
        "data",
    ),
    "missing": (f"DELETE FROM records WHERE {FIVE}", 5, "seq"),
    "last missing": ("DELETE FROM records WHERE session_id = %s AND seq = 9", 9, "seq"),
    "one too many": (
        "INSERT INTO records SELECT session_id, 10, turn, kind, at, data, digest FROM records"
        " WHERE session_id = %s AND seq = 9",
        10,
        "seq",
    ),
    "order": (
        "UPDATE records r SET data = o.data, digest = o.digest, at = o.at FROM records o WHERE r.session_id = %s"
        " AND o.session_id = r.session_id AND r.seq IN (5, 6) AND o.seq = 11 - r.seq",
        6,
        "order",
    ),
    "tail": ("UPDATE sessions SET tail = sha256(tail) WHERE id = %s", 1, "the digest chain"),
}


async def corruption(world: TransferWorld, session: SessionId) -> Mapping[str, Any]:
    with pytest.raises(SessionCorrupt) as raised:
        await world.verify(session)
    return raised.value.fields


@pytest.mark.behaviour("OPS-06")
@pytest.mark.parametrize("what", DAMAGE)
async def test_damage_of_a_stored_session_is_found_and_named(database_url: str, what: str) -> None:
    statement, seq, field = DAMAGE[what]
    async with transfer_world(database_url) as world:
        session, other = await world.session(notes=9), await world.session(notes=2)
        assert (await world.verify(session)).seq == 9
        with psycopg.connect(database_url) as connection:
            connection.execute(statement.encode(), [session])
        found = await corruption(world, session)
        assert (found["session"], found["seq"], found["field"]) == (session, seq, field)
        assert (await world.verify(other)).seq == 2


@pytest.mark.behaviour("OPS-06")
async def test_a_turn_number_that_was_changed_is_named(database_url: str) -> None:
    async with transfer_world(database_url) as world:
        session = await world.session(notes=9)
        with psycopg.connect(database_url) as connection:
            connection.execute(
                "UPDATE records SET turn = 1, kind = CASE seq WHEN 2 THEN 'turn.started' ELSE kind END,"
                " digest = CASE seq WHEN 2 THEN record_digest_v1('turn.started', data) ELSE digest END"
                " WHERE session_id = %s AND seq IN (2, 3)",
                [session],
            )
            connection.execute("UPDATE records SET turn = 7 WHERE session_id = %s AND seq = 4", [session])
        found = await corruption(world, session)
        assert (found["seq"], found["field"], found["after"]) == (4, "turn", 0)


@pytest.mark.behaviour("OPS-06", "THR-104")
@pytest.mark.parametrize(
    ("statement", "field"),
    [
        ("UPDATE record_archives SET tail_after = sha256(tail_after)", "the digest chain"),
        ("UPDATE record_archives SET tail_before = sha256(tail_before)", "the digest chain"),
        ("UPDATE record_archives SET body[3].data = '{}'", "kind, data or digest"),
        ("UPDATE record_archives SET body = body[1:2] || body[4:]", "seq"),
        ("DELETE FROM record_archives", "seq"),
    ],
)
async def test_damage_of_an_archived_range_is_found(database_url: str, statement: str, field: str) -> None:
    async with transfer_world(database_url) as world:
        session = await world.session(notes=9)
        await archive_session(world.log, world.store, world.archives, session, OWNER, before=ALWAYS)
        assert (await world.verify(session)).archived_through == 8
        with psycopg.connect(database_url) as connection:
            connection.execute(statement.encode())
        assert (await corruption(world, session))["field"] == field


@pytest.mark.behaviour("THR-104")
async def test_a_damaged_log_is_not_archived(database_url: str) -> None:
    async with transfer_world(database_url) as world:
        session = await world.session(notes=9)
        with psycopg.connect(database_url) as connection:
            connection.execute("UPDATE records SET data = '{}' WHERE seq = 5")
        with pytest.raises(SessionCorrupt):
            await archive_session(world.log, world.store, world.archives, session, OWNER, before=ALWAYS)
        assert count(database_url, "record_archives") == 0
        assert count(database_url, "records") == 9


@pytest.mark.behaviour("THR-104", "THR-T12")
async def test_archived_ranges_read_by_seq_and_backwards_as_they_did_live(database_url: str) -> None:
    async with transfer_world(database_url) as world:
        session = await world.session()
        fill(database_url, session, 3_210)
        live = await world.records(session)
        await archive_session(world.log, world.store, world.archives, session, OWNER, before=ALWAYS)
        assert count(database_url, "records") == 1
        assert [(a.first_seq, a.last_seq) for a in await world.archives.anchors(session)] == [
            (1, 1_000),
            (1_001, 2_000),
            (2_001, 3_000),
            (3_001, 3_209),
        ]
        await world.log.commit(session, OWNER, [draft("note", {"new": n}) for n in range(5)])
        for after in (0, 1, 999, 1_000, 2_998, 3_207, 3_208, 3_209):
            assert (await world.log.read(session, after=after, limit=3))[: 3_210 - after] == live[
                after : after + 3
            ]
        for before in (2, 1_001, 1_500, 3_210, 3_211):
            found = await world.log.read_back(session, before=before, limit=4)
            assert found == live[max(before - 5, 0) : before - 1][::-1]
        assert (await world.records(session))[: len(live)] == live


@pytest.mark.behaviour("THR-104")
async def test_a_fork_of_a_session_whose_turns_are_archived_inherits_them(database_url: str) -> None:
    async with transfer_world(database_url) as world:
        session = await world.session(notes=3)
        with psycopg.connect(database_url) as connection:  # a closed turn, as the log holds it
            connection.execute("UPDATE records SET turn = 1 WHERE seq = 2")
            connection.execute(
                "UPDATE records SET kind = 'turn.ended', digest = record_digest_v1('turn.ended', data) WHERE seq = 2"
            )
            connection.execute(
                "SELECT archive_range_v1(id, owner, 1, 2, sha256(convert_to(id, 'UTF8')),"
                " chain_tail_v1(chain_tail_v1(sha256(convert_to(id, 'UTF8')), 0, NULL, (SELECT array_agg(digest) FROM records"
                " WHERE seq = 1)), 1, 1, (SELECT array_agg(digest) FROM records WHERE seq = 2)), 10, 1000) FROM sessions"
            )
        assert count(database_url, "record_archives") == 1
        from_now = SessionId("fork")
        await world.log.fork(NewSession(from_now, OWNER), session, inherit=True)
        head = await world.log.head(from_now, OWNER)
        assert (head.inherited, head.turns) == (2, 1)


@pytest.mark.behaviour("THR-101", "THR-102", "THR-T11")
async def test_a_read_and_a_commit_hold_a_thousand_records_and_no_more(database_url: str) -> None:
    async with transfer_world(database_url) as world:
        session = await world.session()
        full = [draft("note", {"n": n}) for n in range(COMMIT_MAX_RECORDS)]
        with pytest.raises(InputTooLarge) as raised:
            await world.log.commit(session, OWNER, [*full, full[0]])
        assert (raised.value.field, raised.value.bound) == ("records", "<= 1000 records")
        assert await world.log.read(session) == []
        await world.log.commit(session, OWNER, full)
        await world.log.commit(session, OWNER, [full[0]])
        assert len(await world.log.read(session)) == READ_MAX_RECORDS == COMMIT_MAX_RECORDS
        assert len(await world.log.read(session, limit=READ_MAX_RECORDS + 1)) == READ_MAX_RECORDS
        assert len(await world.log.read_back(session, limit=READ_MAX_RECORDS + 1)) == READ_MAX_RECORDS


@pytest.mark.behaviour("THR-103", "THR-T11")
async def test_an_export_beside_a_writer_ends_at_its_captured_tail(database_url: str, tmp_path: Any) -> None:
    async with transfer_world(database_url) as world:
        session = await world.session()
        fill(database_url, session, 2_500)
        head = await world.log.head(session, OWNER)
        path = tmp_path / "s.jsonl"
        with path.open("wb") as file:
            async for page in stream_export(world.log, world.store, session):
                file.write(page.lines)
                await world.log.commit(session, OWNER, [draft("note", {"late": page.done})])
        with path.open("rb") as file:
            manifest = verify_file(file).manifest
        assert (manifest.seq, manifest.tail) == (2_500, head.tail.hex())
        assert (await world.log.head(session, OWNER)).seq > 2_505


CATALOGUE: Final = """
SELECT md5(string_agg(line, E'\n' ORDER BY line)) FROM (
  SELECT format('%s %s %s', c.relname, c.relkind, c.relfilenode) AS line FROM pg_class c
    WHERE c.relnamespace = 'public'::regnamespace
  UNION ALL SELECT format('%s %s', p.proname, md5(p.prosrc)) FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace
  UNION ALL SELECT format('%s %s %s', a.attrelid::regclass, a.attname, a.atttypid) FROM pg_attribute a
    JOIN pg_class c ON c.oid = a.attrelid WHERE c.relnamespace = 'public'::regnamespace AND a.attnum > 0
  UNION ALL SELECT format('%s %s', relname, n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_user_tables
  UNION ALL SELECT format('schema %s %s', version, compatible_from) FROM schema) all_of_it
"""


@pytest.mark.behaviour("THR-105", "THR-106", "THR-T13")
@pytest.mark.parametrize(
    ("version", "compatible_from"),
    [(VERSION - 1, VERSION - 2), (VERSION + 5, VERSION + 1), (-1, -1), (2**31 - 1, 2**31 - 1)],
    ids=["older", "newer", "unknown below", "unknown above"],
)
async def test_a_start_on_another_layout_fails_and_changes_nothing(
    database_url: str, version: int, compatible_from: int
) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("UPDATE schema SET version = %s, compatible_from = %s", [version, compatible_from])
        connection.execute("SELECT pg_stat_force_next_flush()")

    def catalogue() -> object:
        with psycopg.connect(database_url) as connection:
            row = connection.execute(CATALOGUE.encode()).fetchone()
            assert row is not None
            return row[0]

    before = catalogue()
    with pytest.raises(SchemaOutOfRange) as raised:
        await Database(database_url, connections=1).open()
    assert raised.value.fields["version"] == version
    with pytest.raises(SchemaOutOfRange):
        check(database_url)
    if version > VERSION:
        with pytest.raises(SchemaOutOfRange):
            migrate(database_url)
    assert catalogue() == before


@pytest.mark.behaviour("THR-105")
async def test_a_fresh_layout_of_the_one_current_version_is_accepted(database_url: str) -> None:
    assert check(database_url) == VERSION
    async with transfer_world(database_url) as world:
        assert (await world.verify(await world.session(notes=1))).seq == 1

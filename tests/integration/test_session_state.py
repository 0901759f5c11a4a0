"""Nothing is set on a database session, so a pooler may hand each transaction to another one (DST-24)."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from shared.conformance.turn_stage import commit_id, ended, started, step
from shared.database.pool import Database
from shared.database.totals import PoolTotals, read_totals
from shared.domain.ids import WorkerId, new_run_id, new_session_id, new_turn_id
from shared.jobs.postgres import PostgresJobQueue
from shared.leases.postgres import PostgresLeases
from shared.sessions.log import NewSession
from shared.sessions.postgres import PostgresSessionLog
from shared.turns.postgres import PostgresTurnQueue
from shared.turns.queue import Admission, AdmissionLimits, ClaimRequest, Ending
from tests.faults.world import OWNER
from tests.support.brokers import free_port
from tests.support.waiting import wait_until

#: What a statement could leave behind on its session, and what an untouched session answers.
LEFT_BEHIND = {
    "settings": "SELECT name FROM pg_settings WHERE source = 'session' AND name NOT IN ('application_name')",
    "prepared statements": "SELECT name FROM pg_prepared_statements",
    "channels": "SELECT pg_listening_channels()",
    "locks": "SELECT 1 FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'",
    "temporary tables": "SELECT relname FROM pg_class WHERE relpersistence = 't' AND pg_table_is_visible(oid)",
    "cursors": "SELECT name FROM pg_cursors WHERE is_holdable",
}


async def do_everything(database: Database) -> None:
    """Run one turn, one background item, one named lease and the totals through the given connections."""
    queue, log, jobs = PostgresTurnQueue(database), PostgresSessionLog(database), PostgresJobQueue(database)
    worker = WorkerId(f"w {new_turn_id()}")
    session = (await log.create(NewSession(new_session_id(), OWNER))).session_id
    for _ in range(3):
        admission = Admission(new_turn_id(), new_run_id(), session, OWNER, {"text": "hello"})
        await queue.admit(admission, AdmissionLimits())
        [claim] = await queue.claim(ClaimRequest(worker=worker, places=1))
        await queue.renew({claim.turn_id: claim.fence}, 15.0)
        await queue.open(claim, commit_id(claim, "open"), [started(claim)])
        await queue.append(claim, commit_id(claim, "step"), [step(1)], stepped=True)
        await queue.watch(worker, {claim.turn_id: claim.fence})
        await queue.end(claim, commit_id(claim, "end"), [ended()], Ending("completed"))
    await queue.reap()
    await queue.expire()
    assert len(await log.read(session)) == 9
    await jobs.owe("index", str(worker), OWNER)
    [item] = await jobs.claim("index", worker, places=1, lease_s=15.0)
    await jobs.renew("index", {item.job_id: item.fence}, 15.0)
    assert await jobs.settle(item, "done") == "idle"
    leases = PostgresLeases(database)
    assert await leases.release(await leases.acquire(str(worker), str(worker), 15.0))
    await PoolTotals(database, lambda: {("turns", "claims"): 3}, every_s=60).write()
    assert (await read_totals(database))["turns"]["claims"] >= 3


@pytest.mark.behaviour("DST-24")
async def test_no_statement_leaves_anything_behind_on_its_session(database_url: str) -> None:
    database = Database(database_url, connections=1, prepared=False)
    await database.open()
    try:
        await do_everything(database)
        async with database.connection("test") as connection:
            for what, question in LEFT_BEHIND.items():
                found = await (await connection.execute(question)).fetchall()
                assert found == [], f"{what} stay behind: {found}"
    finally:
        await database.close()


@pytest.mark.behaviour("DST-24")
async def test_a_pool_takes_no_more_connections_than_it_was_given(database_url: str) -> None:
    database = Database(database_url, connections=2, name="turnkeeper-bounded")
    await database.open()
    try:
        async with database.connection("a"), database.connection("b"):
            other = Database(database_url, connections=1, name="turnkeeper-looking")
            await other.open()
            async with other.connection("look") as looking:
                counted = await looking.execute(
                    "SELECT count(*) AS n FROM pg_stat_activity WHERE application_name = 'turnkeeper-bounded'"
                )
                row = await counted.fetchone()
            await other.close()
    finally:
        await database.close()
    assert row == {"n": 2}


@pytest.fixture
def pooled_url(database_url: str, tmp_path: Path) -> Iterator[str]:
    """The database behind a PgBouncer in transaction mode that has two server connections for all."""
    program = shutil.which("pgbouncer")
    if program is None:
        pytest.skip("pgbouncer is not installed")
    parts, port = urlsplit(database_url), free_port()
    settings = tmp_path / "pgbouncer.ini"
    settings.write_text(
        "[databases]\n"
        f"* = host={parts.hostname} port={parts.port} user={parts.username} password={parts.password or ''}\n"
        "[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        "auth_type = any\npool_mode = transaction\ndefault_pool_size = 2\nserver_reset_query =\n"
    )
    as_nobody = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None  # it refuses to run as root
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents[:2]:
        folder.chmod(0o755)
    pooler = subprocess.Popen([program, "--quiet", str(settings)], user=as_nobody)
    url = f"postgresql://{parts.username}@127.0.0.1:{port}{parts.path}"
    try:
        wait_until(lambda: port_answers(port) or pooler.poll() is not None, what="pgbouncer")
        assert pooler.poll() is None
        yield url
    finally:
        pooler.terminate()
        pooler.wait(10)


def port_answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
async def pooled(pooled_url: str) -> AsyncIterator[list[Database]]:
    databases = [Database(pooled_url, connections=4, prepared=False) for _ in range(3)]
    for database in databases:
        await database.open()
    yield databases
    for database in databases:
        await database.close()


@pytest.mark.behaviour("DST-24")
async def test_three_processes_share_two_sessions_of_a_transaction_pooler(pooled: list[Database]) -> None:
    for _ in range(2):
        for database in pooled:
            await do_everything(database)

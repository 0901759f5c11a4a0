"""A host's sessions on Postgres: writes that wait, a row that does not decode, a process that is gone, a lost connection."""

from __future__ import annotations

import asyncio
import sys

import pytest

from shared.domain.errors import CorruptRecord, SessionLogError, StoreBusy, TurnClosed, is_store_busy
from shared.host.ownership import HolderProcess, LeaseOwnership, ProcessLiveness, ProcessOwnership
from shared.host.port import NewTurn
from shared.host.sessions import HostSessions
from shared.sessions.records import draft
from shared.turns.queue import Ending
from tests.faults.world import OWNER, World, hold_head, world

TURN = NewTurn({"text": "hello"})
NOTE = [draft("host.note", {"n": 1})]


def sessions_of(w: World, ownership: LeaseOwnership | ProcessOwnership | None = None) -> HostSessions:
    return HostSessions(w.log, w.queue, ownership=ownership)


@pytest.mark.behaviour("SES-27", "SES-30")
async def test_a_record_carries_the_time_it_was_written_and_waiting_holds_no_one_up(
    database_url: str,
) -> None:
    async with world(database_url) as w:
        session = await w.session()
        async with w.transaction() as blocker:
            await hold_head(blocker, session)
            write = asyncio.create_task(w.log.commit(session, OWNER, NOTE))
            assert await w.waits(write, "session_commit_v1")  # which looks with this very loop, meanwhile
            [row] = await w.rows("SELECT clock_timestamp() AS freed_at")
        await write
        [record] = await w.log.read(session)
        assert record.at >= row["freed_at"]


@pytest.mark.behaviour("SES-28", "SES-66")
async def test_a_lock_that_cannot_be_had_in_five_seconds_is_a_busy_store(database_url: str) -> None:
    async with world(database_url) as w:
        sessions = sessions_of(w)
        address = (await sessions.create(OWNER)).address
        async with w.transaction() as blocker:
            await hold_head(blocker, address.id)
            with pytest.raises(SessionLogError) as caught:
                async with sessions.begin(address, TURN):
                    raise AssertionError("the block never runs")
        assert isinstance(caught.value, StoreBusy) and is_store_busy(caught.value)
        assert caught.value.__cause__ is not None
        assert await w.kinds(address.id) == []


@pytest.mark.behaviour("SES-155", "SES-160", "SES-66")
async def test_a_corrupted_row_fails_with_its_place_and_its_neighbours_stay_readable(
    database_url: str,
) -> None:
    async with world(database_url) as w:
        sessions = sessions_of(w)
        address = (await sessions.create(OWNER)).address
        for n in range(3):
            await w.log.commit(address.id, OWNER, [draft("host.note", {"n": n})])
        await w.rows("UPDATE records SET data = '{\"n\":' WHERE session_id = %s AND seq = 2", address.id)
        first, second, third = await sessions.read(address)
        assert (first.data["n"], third.data["n"]) == (0, 2)
        with pytest.raises(SessionLogError) as caught:
            _ = second.data
        assert isinstance(caught.value, CorruptRecord)
        assert (caught.value.fields["session"], caught.value.fields["seq"]) == (address.id, 2)
        assert [r.data["n"] for r in await sessions.read(address, after=2)] == [2]


@pytest.mark.behaviour("SES-105", "SES-111", "SHD-41")
async def test_a_turn_of_a_process_that_was_killed_is_closed_at_the_next_touch(database_url: str) -> None:
    async with world(database_url) as w:
        here = sessions_of(w, ProcessOwnership())
        address = (await here.create(OWNER)).address
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "input()", stdin=asyncio.subprocess.PIPE
        )
        process = HolderProcess(ProcessLiveness().me().host, child.pid, 0)
        elsewhere = HostSessions(w.log, w.queue, ownership=ProcessOwnership(), liveness=_Named(process))
        scope = elsewhere.begin(address, TURN)
        await scope.__aenter__()
        assert (await here.view(address)).open is not None
        child.kill()
        await child.wait()
        assert (await here.view(address)).open is None
        async with here.begin(address, TURN) as writer:
            await writer.end(Ending("completed"))
        assert await w.kinds(address.id) == ["turn.started", "turn.ended"] * 2
        await scope.__aexit__(None, None, None)  # the dead holder's, which stores nothing
        assert await w.kinds(address.id) == ["turn.started", "turn.ended"] * 2


@pytest.mark.behaviour("EVT-62", "SES-50")
async def test_connections_cut_under_an_open_turn_lose_and_double_nothing(database_url: str) -> None:
    async with world(database_url) as w:
        sessions = sessions_of(w)
        address = (await sessions.create(OWNER)).address
        async with sessions.begin(address, TURN) as writer:
            for n in range(20):
                await writer.append([draft("host.note", {"n": n})])
                await w.rows(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
                if n % 5 == 4:
                    await writer.flush()
            await writer.end(Ending("completed"))
        notes = [r.data["n"] for r in await w.records(address.id) if r.kind == "host.note"]
        assert notes == [*range(20)]


async def test_a_removed_session_closes_its_open_turn_and_leaves_no_row(database_url: str) -> None:
    async with world(database_url) as w:
        sessions, other = sessions_of(w), sessions_of(w)
        address = (await sessions.create(OWNER)).address
        child = await sessions.fork(address, inherit=True)
        async with sessions.begin(address, TURN) as writer, other.begin(child.address, TURN):
            await other.remove(address)
            await writer.append(NOTE)
            with pytest.raises(TurnClosed) as caught:
                await writer.flush()
            assert caught.value.fields["reason"] == "removed"
        for table in ("records", "turns", "session_keys"):
            left = await w.rows(
                f"SELECT 1 FROM {table} WHERE session_id = ANY (%s)", [address.id, child.address.id]
            )
            assert left == []


class _Named(ProcessLiveness):
    """Runs under another process's name."""

    def __init__(self, process: HolderProcess) -> None:
        self._process = process

    def me(self) -> HolderProcess:
        return self._process

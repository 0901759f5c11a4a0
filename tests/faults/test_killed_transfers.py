"""Exports, imports, archiving and pruning as real processes that are killed half way: what is there, and what a repeat does."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from shared.domain.errors import SessionMissing
from shared.domain.ids import SessionId
from shared.sessions.records import draft
from shared.transfer.verify import verify_file
from tests.support.producer_process import run_cli
from tests.support.transfer_world import OWNER, age, count, fill, transfer_world

RECORDS = 3_500
COPY = SessionId("copy")


def cli(url: str, cwd: Path, *arguments: str, kill: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command; with ``kill`` it dies at that point."""
    armed = {"TURNKEEPER_FAILPOINTS": kill} if kill else {}
    done = run_cli(*arguments, cwd=cwd, DATABASE_URL=url, TURNKEEPER_ENV="test", **armed)
    assert done.returncode == (-signal.SIGKILL if kill else 0), done.stderr
    return done


@pytest.mark.behaviour("THR-103", "OPS-06")
@pytest.mark.parametrize("hit", [1, 3])
async def test_a_killed_export_leaves_no_file_and_goes_on_where_it_was(
    database_url: str, tmp_path: Path, hit: int
) -> None:
    out, part = tmp_path / "s.jsonl", tmp_path / "s.jsonl.part"
    async with transfer_world(database_url) as world:
        session = await world.session()
        fill(database_url, session, RECORDS)
        cli(
            database_url,
            tmp_path,
            "export",
            session,
            "--out",
            str(out),
            kill=f"export.page-written=kill@{hit}",
        )
        assert (out.exists(), part.exists()) == (False, True)
        kept = part.read_bytes()
        with part.open("ab") as file:
            file.write(b'{"check":"torn')  # the machine died inside a write
        await world.log.commit(session, OWNER, [draft("note", {"late": True})])
        cli(database_url, tmp_path, "export", session, "--out", str(out), "--resume")
    assert part.exists() is False
    assert out.read_bytes().startswith(kept)
    with out.open("rb") as file:
        assert verify_file(file).manifest.seq == RECORDS, "it is still of the captured moment"


@pytest.mark.behaviour("THR-107", "OPS-06")
@pytest.mark.parametrize("point", ["import.page-added=kill@2", "import.filled=kill"])
async def test_a_killed_import_leaves_nothing_and_its_repeat_makes_all(
    database_url: str, tmp_path: Path, point: str
) -> None:
    async with transfer_world(database_url) as world:
        session = await world.session(notes=3)
        fill(database_url, (await world.session()), 1)
        file = await world.export(await long_session(world.url, await world.session()), tmp_path / "s.jsonl")
        arguments = ("import", str(file), "--session", COPY)
        cli(database_url, tmp_path, *arguments, kill=point)
        with pytest.raises(SessionMissing):
            await world.log.head(COPY, OWNER)
        assert await world.records(COPY) == []
        assert count(database_url, "session_keys", "session_id = 'copy'") == 0
        done = json.loads(cli(database_url, tmp_path, *arguments, "--json").stdout)
        assert (done["seq"], done["duplicate"]) == (RECORDS, False)
        assert (await world.verify(COPY)).seq == RECORDS
        assert (await world.verify(session)).seq == 3


async def long_session(url: str, session: SessionId) -> SessionId:
    fill(url, session, RECORDS)
    return session


@pytest.mark.behaviour("THR-107")
async def test_an_import_killed_after_its_commit_is_found_by_its_repeat(
    database_url: str, tmp_path: Path
) -> None:
    async with transfer_world(database_url) as world:
        file = await world.export(await world.session(notes=5), tmp_path / "s.jsonl")
        arguments = ("import", str(file), "--session", COPY)
        cli(database_url, tmp_path, *arguments, kill="import.committed=kill")
        before = await world.records(COPY)
        done = json.loads(cli(database_url, tmp_path, *arguments, "--json").stdout)
        assert (done["seq"], done["duplicate"]) == (5, True)
        assert await world.records(COPY) == before


@pytest.mark.behaviour("THR-104")
async def test_archiving_killed_between_two_ranges_leaves_a_whole_log_and_goes_on(
    database_url: str, tmp_path: Path
) -> None:
    async with transfer_world(database_url) as world:
        session = await world.session()
        fill(database_url, session, RECORDS)
        live = await world.records(session)
        arguments = ("prune", "--archive-older-than", "0s", "--json")
        cli(database_url, tmp_path, *arguments, kill="archive.range-moved=kill@2")
        assert count(database_url, "record_archives") == 2
        assert await world.records(session) == live
        assert (await world.verify(session)).archived_through == 2_000
        done = json.loads(cli(database_url, tmp_path, *arguments).stdout)
        assert done["archived"] == RECORDS - 2_001
        assert await world.records(session) == live
        assert (await world.verify(session)).archived_through == RECORDS - 1


@pytest.mark.behaviour("OPS-12")
async def test_a_killed_prune_leaves_whole_sessions_and_its_repeat_finishes(
    database_url: str, tmp_path: Path
) -> None:
    async with transfer_world(database_url) as world:
        old = [await world.session(notes=2) for _ in range(3)]
        age(database_url, 400)
        young = await world.session(notes=2)
        arguments = ("prune", "--sessions-older-than", "365d", "--json")
        cli(database_url, tmp_path, *arguments, kill="prune.batch-done=kill")
        assert count(database_url, "sessions") == 3
        for session in old:
            if count(database_url, "sessions", f"id = '{session}'"):
                assert (await world.verify(session)).seq == 2
        done = json.loads(cli(database_url, tmp_path, *arguments).stdout)
        assert done["sessions"] == 2
        assert (await world.verify(young)).seq == 2
        assert count(database_url, "records") == 2

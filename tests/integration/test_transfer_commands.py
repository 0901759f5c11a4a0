"""export, import, verify and prune as a user runs them: real processes, exit statuses, stdout as data, progress on stderr."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from producer.cli.progress import LINE_EVERY_S, showing
from shared.domain.ids import OwnerId, SessionId
from shared.transfer.lines import FIRST_CHECK, encode_line, read_lines
from tests.support.producer_process import clean_environment, run_cli
from tests.support.transfer_world import OWNER, age, count, fill, transfer_world


class Cli:
    """Commands against one database."""

    def __init__(self, url: str, cwd: Path) -> None:
        self.url, self.cwd = url, cwd

    def run(self, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        done = run_cli(*arguments, cwd=self.cwd, DATABASE_URL=self.url)
        assert done.returncode == status, (done.stdout, done.stderr)
        return done

    def json(self, *arguments: str, status: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run(*arguments, "--json", status=status).stdout)
        return found

    def refused(self, *arguments: str) -> str:
        done = self.run(*arguments, status=2)
        assert done.stdout == ""
        return done.stderr.rsplit("[", 1)[-1].rstrip("]\n")


@pytest.mark.behaviour("OPS-06", "THR-107")
async def test_a_session_goes_to_a_file_and_comes_back_elsewhere_and_beside_itself(
    database_url: str, tmp_path: Path
) -> None:
    cli = Cli(database_url, tmp_path)
    async with transfer_world(database_url) as world:
        session = await world.session(notes=5)
        told = cli.json("export", session, "--out", "s.jsonl")
        assert (told["session"], told["records"], told["keys"]) == (session, 5, 5)
        assert cli.run("export", session).stdout.encode().splitlines()[1:-1]
        assert cli.json("verify", "./s.jsonl")["ok"] is True
        copied = cli.json("import", "s.jsonl", "--session", "copy", "--owner", "bo")
        assert copied == {"session_id": "copy", "owner": "bo", "seq": 5, "duplicate": False}
        assert cli.json("import", "s.jsonl", "--session", "copy", "--owner", "bo")["duplicate"] is True
        assert (await world.log.head(SessionId("copy"), OwnerId("bo"))).seq == 5
        assert cli.refused("import", "s.jsonl") == "session.exists"
        before = await world.records(session)
        await world.log.remove(session, OWNER)
        assert "5 records, owner ann" in cli.run("import", "s.jsonl").stdout
        assert await world.records(session) == before
        assert cli.json("verify", "--all") == {"ok": True, "sessions": 2, "damaged": []}


@pytest.mark.behaviour("OPS-06")
async def test_verify_ends_with_one_for_damage_and_names_it(database_url: str, tmp_path: Path) -> None:
    cli = Cli(database_url, tmp_path)
    async with transfer_world(database_url) as world:
        sound, broken = await world.session(notes=4), await world.session(notes=4)
        cli.run("export", sound, "--out", "s.jsonl")
    file = tmp_path / "s.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"n\\":2', b'"n\\":3'))
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE records SET data = '{}' WHERE session_id = %s AND seq = 3", [broken])
    assert cli.run("verify", sound).stdout == f"{sound}: sound, 4 records\n"
    found = cli.json("verify", broken, status=1)
    assert (found["code"], found["seq"], found["field"]) == ("session.corrupt", 3, "kind, data or digest")
    damaged = cli.run("verify", "./s.jsonl", status=1).stdout
    assert "line 4" in damaged
    assert "[transfer.invalid]" in damaged
    everything = cli.json("verify", "--all", status=1)
    assert (everything["sessions"], [one["session"] for one in everything["damaged"]]) == (2, [broken])
    assert cli.refused("import", "s.jsonl", "--session", "x") == "transfer.invalid"
    assert cli.refused("export", broken, "--out", "b.jsonl") == "session.corrupt"
    assert not (tmp_path / "b.jsonl").exists()


@pytest.mark.behaviour("OPS-06", "THR-107")
async def test_wrong_calls_are_refused_with_their_code_and_nothing_is_made(
    database_url: str, tmp_path: Path
) -> None:
    cli = Cli(database_url, tmp_path)
    async with transfer_world(database_url) as world:
        session = await world.session(notes=1)
    (tmp_path / "there").write_text("mine")
    assert cli.refused("export", "nobody") == "session.missing"
    assert cli.refused("export", session, "--owner", "bo") == "session.missing"
    assert cli.refused("export", session, "--out", "there") == "input.invalid"
    assert cli.refused("export", session, "--resume") == "input.invalid"
    assert cli.refused("import", "absent") == "input.invalid"
    assert cli.refused("import", "there") == "transfer.invalid"
    assert cli.refused("verify") == "input.invalid"
    assert cli.refused("verify", "nobody") == "session.missing"
    assert cli.refused("verify", "./absent") == "input.invalid"
    for wrong in ("90", "d", "-1d", "1y", ""):
        assert cli.refused("prune", f"--older-than={wrong}") == "input.invalid"
    assert (tmp_path / "there").read_text() == "mine"
    cli.run("export", session, "--out", "s.jsonl")
    (tmp_path / "newer.jsonl").write_bytes(written_anew(tmp_path / "s.jsonl", format=2))
    assert cli.refused("import", "newer.jsonl", "--session", "x") == "transfer.version"
    assert count(database_url, "sessions") == 1


def written_anew(file: Path, **manifest: object) -> bytes:
    """Return a transfer file with other words in its manifest and right checks, as another version would write it."""
    check, lines = FIRST_CHECK, []
    with file.open("rb") as stream:
        for line in read_lines(stream):
            raw, check = encode_line(check, {**line.said, **(manifest if line.number == 1 else {})})
            lines.append(raw)
    return b"".join(lines)


@pytest.mark.behaviour("OPS-12", "OPS-06", "THR-104")
async def test_prune_says_what_would_go_then_takes_it_and_archives(database_url: str, tmp_path: Path) -> None:
    cli = Cli(database_url, tmp_path)
    async with transfer_world(database_url) as world:
        old, busy = await world.session(notes=3), await world.session(notes=3)
        age(database_url, 200)
        await world.log.commit(busy, OWNER, [], commit_id="now")
        arguments = (
            "prune",
            "--older-than",
            "26w",
            "--sessions-older-than",
            "180d",
            "--archive-older-than",
            "30d",
        )
        would = cli.json(*arguments, "--dry-run")
        assert (would["sessions"], would["keys"], would["archived"], would["dry_run"]) == (1, 6, 4, True)
        assert count(database_url, "sessions") == 2
        assert count(database_url, "record_archives") == 0
        gone = cli.json(*arguments)
        assert (gone["sessions"], gone["keys"], gone["archived"]) == (1, 3, 2)
        assert count(database_url, "sessions", f"id = '{old}'") == 0
        assert (await world.verify(busy)).archived_through == 2
        said = cli.run("prune", "--archive-older-than", "30d").stdout
        assert said == "gone: 0 turns, 0 keys, 0 receipts, 0 intents, 0 sessions\narchived: 0 records\n"


class Steps:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.behaviour("OPS-11")
def test_progress_elsewhere_is_a_plain_line_now_and_then_with_rate_and_rest() -> None:
    out, clock = io.StringIO(), Steps()
    with showing("export s", "lines", stream=out, clock=clock) as show:
        show(10, 1_000)
        clock.now = LINE_EVERY_S
        show(200, 1_000)
        show(300, 1_000)
        clock.now = 2 * LINE_EVERY_S
        show(1_000, 1_000)
    assert (
        out.getvalue()
        == "export s: 200 of 1000 lines, 100/s, 8 s left\nexport s: 1000 of 1000 lines, 250/s\n"
    )


@pytest.mark.behaviour("OPS-11")
async def test_progress_on_a_terminal_is_a_bar_and_stdout_stays_data(
    database_url: str, tmp_path: Path
) -> None:
    async with transfer_world(database_url) as world:
        session = await world.session()
        fill(database_url, session, 3_000)
    shown = on_a_terminal(database_url, tmp_path, "export", session)
    assert "export" in shown
    assert "3000/3000" in shown.replace(" ", "")
    assert "lines/s" in shown
    plain = Cli(database_url, tmp_path)
    assert plain.json("verify", "./out.jsonl")["records"] == 3_000
    piped = plain.run("export", session, "--out", "t.jsonl").stderr
    assert piped.splitlines()[-1].startswith(f"export {session}: 3000 of 3000 lines, ")
    assert "\x1b" not in piped


def on_a_terminal(url: str, cwd: Path, *arguments: str) -> str:
    """Run a command with a terminal for stderr and a file for stdout; returns what the terminal showed."""
    screen, terminal = pty.openpty()
    with (cwd / "out.jsonl").open("wb") as out:
        running = subprocess.Popen(
            [sys.executable, "-m", "producer.cli", *arguments],
            cwd=cwd,
            env=clean_environment(DATABASE_URL=url, TERM="xterm"),
            stdout=out,
            stderr=terminal,
        )
        os.close(terminal)
        shown = read_all(screen)
        assert running.wait(60) == 0
    return shown


def read_all(screen: int) -> str:
    """Everything that was shown, until the terminal's other side is closed."""
    shown = b""
    while True:
        try:
            more = os.read(screen, 65_536)
        except OSError:
            break
        if not more:
            break
        shown += more
    os.close(screen)
    return shown.decode()

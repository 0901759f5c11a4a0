"""The embedded PostgreSQL and Valkey: what they keep, whom they stop, and what a crashed run leaves (OPS-01)."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from shared.database.embedded import EmbeddedServers
from shared.database.embedded.binaries import POSTGRES_NAMES, VALKEY_NAMES, find_postgres
from shared.database.embedded.child import Child, RunAs
from shared.database.embedded.home import find_leftovers
from shared.domain.errors import ConfigError, HomeInUse

END_BOUND_S = 30.0

SUPERVISOR = """
import signal, sys
from pathlib import Path
import psycopg
from shared.database.embedded import EmbeddedServers
servers = EmbeddedServers(Path(sys.argv[1])).start()
with psycopg.connect(servers.database_url, autocommit=True) as connection:
    connection.execute("CREATE EXTENSION vector")
    connection.execute("CREATE TABLE kept AS SELECT '[1,2]'::vector AS v")
print("pids", servers.postgres_pid, servers.valkey_pid, flush=True)
if sys.argv[2] == "hang":
    signal.pause()
servers.stop()
print("stopped", flush=True)
"""


def execute(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def ask_valkey(url: str, *lines: str) -> str:
    host, port = url.rsplit("@", 1)[1].split("/")[0].split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall("".join(f"{line}\r\n" for line in (*lines, "QUIT")).encode())
        return b"".join(iter(lambda: connection.recv(4096), b"")).decode()


def password_of(url: str) -> str:
    return url.split("@")[0].rsplit(":", 1)[1]


def run_supervisor(
    home: Path, log: Path, what: str, run_as: RunAs | None = None
) -> tuple[Child, list[psutil.Process]]:
    argv = [sys.executable, "-c", SUPERVISOR, str(home), what]
    checkout = str(Path(__file__).resolve().parents[2])
    child = Child("supervisor", argv, log=log, env={"PYTHONPATH": checkout}, run_as=run_as)
    child.start()
    found = child.wait_for_output(r"^pids (\d+) (\d+)$", timeout_s=END_BOUND_S)
    return child, [psutil.Process(int(pid)) for pid in found.groups()] if what == "hang" else []


def still_runs(process: psutil.Process) -> bool:
    """Say whether it does; one that has ended and waits for its parent to look does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def server_user(data: Path) -> RunAs | None:
    status = data.stat()
    return RunAs(status.st_uid, status.st_gid, keep_access=True) if os.geteuid() == 0 else None


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.mark.behaviour("OPS-01")
def test_state_is_kept_between_runs_until_a_fresh_one(home: Path) -> None:
    with EmbeddedServers(home, valkey=False) as first:
        assert execute(first.database_url, "SELECT current_setting('server_version_num')::int >= 180000") == [
            (True,)
        ]
        execute(first.database_url, "CREATE EXTENSION vector")
        execute(first.database_url, "CREATE TABLE kept AS SELECT '[1,2]'::vector AS v")
    with EmbeddedServers(home, valkey=False) as second:
        assert execute(second.database_url, "SELECT v <-> '[1,2]' FROM kept") == [(0.0,)]
    with EmbeddedServers(home, valkey=False, fresh=True) as third:
        assert execute(third.database_url, "SELECT to_regclass('kept')") == [(None,)]


@pytest.mark.behaviour("OPS-01")
def test_stopping_ends_our_servers_and_no_others(home: Path, tmp_path: Path) -> None:
    with EmbeddedServers(tmp_path / "other") as other:
        with EmbeddedServers(home) as ours:
            started = [psutil.Process(ours.postgres_pid), psutil.Process(ours.valkey_pid)]
        assert [process.is_running() for process in started] == [False, False]
        assert execute(other.database_url, "SELECT 1") == [(1,)]
        assert "+PONG" in ask_valkey(other.redis_url, f"AUTH {password_of(other.redis_url)}", "PING")


def test_only_a_server_in_our_folder_counts_as_left_over(home: Path, tmp_path: Path) -> None:
    with EmbeddedServers(home) as ours, EmbeddedServers(tmp_path / "other", valkey=False):
        found = {process.pid for process in find_leftovers(home / "postgres", POSTGRES_NAMES)}
        children = {process.pid for process in psutil.Process(ours.postgres_pid).children()}
        assert ours.postgres_pid in found
        assert found <= {ours.postgres_pid} | children
        assert [p.pid for p in find_leftovers(home / "valkey", VALKEY_NAMES)] == [ours.valkey_pid]
        assert find_leftovers(home / "postgres", VALKEY_NAMES) == []


@pytest.mark.behaviour("OPS-01")
@pytest.mark.skipif(
    sys.platform != "linux", reason="other systems tell a child nothing of its parent's death"
)
def test_servers_end_with_a_killed_supervisor_and_the_next_start_has_its_commits(
    home: Path, tmp_path: Path
) -> None:
    supervisor, servers = run_supervisor(home, tmp_path / "supervisor.log", "hang")
    supervisor.send_signal(signal.SIGKILL)
    _, left = psutil.wait_procs(servers, timeout=END_BOUND_S)
    assert left == []
    with EmbeddedServers(home) as again:
        assert execute(again.database_url, "SELECT count(*) FROM kept") == [(1,)]


@pytest.mark.behaviour("OPS-01")
def test_a_start_at_the_same_instant_as_the_supervisors_death_waits_for_its_servers(
    home: Path, tmp_path: Path
) -> None:
    supervisor, servers = run_supervisor(home, tmp_path / "supervisor.log", "hang")
    supervisor.kill()
    with EmbeddedServers(home) as again:
        assert not any(still_runs(process) for process in servers)
        assert execute(again.database_url, "SELECT count(*) FROM kept") == [(1,)]


def leave_postgres_running(home: Path) -> Iterator[Child]:
    """Start a postmaster on the data folder behind the supervisor's back, as a crash elsewhere would leave it."""
    data = home / "postgres"
    argv = [str(find_postgres().folder / "postgres"), "-D", str(data), "-c", "listen_addresses="]
    socket_folder = tempfile.mkdtemp(prefix="tk")
    if os.geteuid() == 0:
        os.chown(socket_folder, data.stat().st_uid, -1)
    argv += ["-c", f"unix_socket_directories={socket_folder}"]
    child = Child("leftover", argv, log=home / "logs" / "leftover.log", cwd=data, run_as=server_user(data))
    child.start()
    child.wait_for_output("ready to accept connections", timeout_s=END_BOUND_S)
    yield child
    child.kill()
    shutil.rmtree(socket_folder, ignore_errors=True)


@pytest.mark.behaviour("OPS-01")
def test_a_postmaster_left_on_our_data_is_stopped_and_its_data_served(home: Path) -> None:
    with EmbeddedServers(home, valkey=False) as first:
        execute(first.database_url, "CREATE TABLE kept AS SELECT 1 AS n")
    for leftover in leave_postgres_running(home):
        with EmbeddedServers(home, valkey=False) as second:
            assert not leftover.is_running
            assert execute(second.database_url, "SELECT n FROM kept") == [(1,)]


@pytest.mark.behaviour("OPS-01")
def test_a_stale_pid_file_that_names_a_stranger_neither_stops_the_start_nor_the_stranger(home: Path) -> None:
    with EmbeddedServers(home, valkey=False):
        pass
    data = home / "postgres"
    waiting = [sys.executable, "-I", "-S", "-c", "import signal; print('up', flush=True); signal.pause()"]
    stranger = Child("stranger", waiting, log=home / "logs" / "stranger.log", run_as=server_user(data))
    stranger.start()
    try:
        stranger.wait_for_output("^up$", timeout_s=END_BOUND_S)
        (data / "postmaster.pid").write_text(f"{stranger.pid}\n{data}\n1\n5432\n\n127.0.0.1\n  1 1\nready\n")
        with EmbeddedServers(home, valkey=False) as servers:
            assert execute(servers.database_url, "SELECT 1") == [(1,)]
        assert stranger.is_running
    finally:
        stranger.kill()


@pytest.mark.behaviour("OPS-01")
def test_a_second_run_on_the_same_home_is_refused_and_harms_nothing(home: Path) -> None:
    with EmbeddedServers(home) as first:
        with pytest.raises(HomeInUse, match=f"process {os.getpid()}"):
            EmbeddedServers(home, fresh=True).start()
        assert execute(first.database_url, "SELECT 1") == [(1,)]
        assert first.valkey_pid != 0
    with EmbeddedServers(home) as again:
        assert again.postgres_pid != 0


@pytest.mark.parametrize("immediate", [False, True])
def test_postgres_comes_back_on_its_port_with_every_commit(home: Path, immediate: bool) -> None:
    with EmbeddedServers(home, valkey=False) as servers:
        url, pid = servers.database_url, servers.postgres_pid
        execute(url, "CREATE TABLE kept AS SELECT 1 AS n")
        servers.stop_postgres(immediate=immediate)
        assert servers.postgres_pid == 0
        with pytest.raises(psycopg.OperationalError):
            execute(url, "SELECT 1")
        servers.start_postgres()
        assert (servers.database_url, servers.postgres_pid != pid) == (url, True)
        assert execute(url, "SELECT n FROM kept") == [(1,)]


def test_valkey_comes_back_on_its_port_and_empty(home: Path) -> None:
    with EmbeddedServers(home, postgres=False) as servers:
        url = servers.redis_url
        login = f"AUTH {password_of(url)}"
        assert "+OK\r\n+OK" in ask_valkey(url, login, "SET key value")
        servers.stop_valkey()
        assert servers.valkey_pid == 0
        servers.start_valkey()
        assert servers.redis_url == url
        assert "$-1" in ask_valkey(url, login, "GET key")


def test_another_user_of_the_machine_gets_no_answer_without_the_passwords(home: Path) -> None:
    with EmbeddedServers(home) as servers:
        wrong = servers.database_url.replace(password_of(servers.database_url), "guess")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            execute(wrong, "SELECT 1")
        assert "NOAUTH" in ask_valkey(servers.redis_url, "GET key")
        secrets = [home / "postgres.password", home / "valkey" / "valkey.conf"]
        assert [path.stat().st_mode & 0o077 for path in secrets] == [0, 0]
        lines = " ".join(
            " ".join(psutil.Process(p).cmdline()) for p in (servers.postgres_pid, servers.valkey_pid)
        )
        assert password_of(servers.database_url) not in lines
        assert password_of(servers.redis_url) not in lines


@pytest.mark.behaviour("OPS-01")
def test_an_ordinary_user_runs_them_as_itself() -> None:
    # Not tmp_path: pytest closes its parent to everyone else.
    folder = Path(tempfile.mkdtemp(prefix="turnkeeper-"))
    try:
        user = None
        if os.geteuid() == 0:
            user = RunAs(
                65_534, 65_534, keep_access=True
            )  # nobody; the interpreter may lie in a closed folder
            os.chown(folder, user.uid, user.gid)
        child, _ = run_supervisor(folder / "home", folder / "log", "stop", user)
        child.wait_for_output("^stopped$", timeout_s=END_BOUND_S)
        assert child.wait(END_BOUND_S) == 0
        assert {(folder / "home" / name).stat().st_uid for name in ("postgres", "valkey")} == {
            folder.stat().st_uid
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_a_data_folder_of_another_version_is_named_and_left_alone(home: Path) -> None:
    with EmbeddedServers(home, valkey=False):
        pass
    (home / "postgres" / "PG_VERSION").write_text("9\n")
    with pytest.raises(ConfigError, match=r"made by 9.*--fresh"):
        EmbeddedServers(home, valkey=False).start()
    assert (home / "postgres" / "base").is_dir()


def test_an_initialisation_that_was_cut_short_is_begun_anew(home: Path) -> None:
    (home / "postgres.unfinished" / "base").mkdir(parents=True)
    with EmbeddedServers(home, valkey=False) as servers:
        assert execute(servers.database_url, "SELECT 1") == [(1,)]
    assert not (home / "postgres.unfinished").exists()


def test_databases_are_copied_from_a_template_and_dropped_with_their_sessions(home: Path) -> None:
    with EmbeddedServers(home, valkey=False) as servers:
        execute(servers.create_database("pattern"), "CREATE TABLE kept AS SELECT 1 AS n")
        copy = servers.create_database("copy-1", template="pattern")
        open_session = psycopg.connect(copy)
        assert open_session.execute("SELECT n FROM kept").fetchall() == [(1,)]
        servers.drop_database("copy-1")
        with pytest.raises(psycopg.errors.AdminShutdown):
            open_session.execute("SELECT 1")
        open_session.close()
        with pytest.raises(psycopg.OperationalError, match="does not exist"):
            execute(copy, "SELECT 1")


def test_a_server_that_was_not_asked_for_has_no_address(home: Path) -> None:
    with EmbeddedServers(home, valkey=False) as servers, pytest.raises(ConfigError):
        _ = servers.redis_url

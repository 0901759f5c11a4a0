"""One place per library: who may import what, who may hold SQL, who may read the environment."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pytest

from tests.architecture.tree import Source, product_sources, standing_sources


@dataclass(frozen=True)
class Place:
    """Libraries, and where alone they are imported: prefixes of paths, and whether ``postgres.py`` files may."""

    libraries: tuple[str, ...]
    prefixes: tuple[str, ...]
    postgres_files: bool = False

    def admits(self, source: Source) -> bool:
        return source.path.startswith(self.prefixes) or (self.postgres_files and is_postgres_adapter(source))


PLACES: Final = (
    Place(("celery", "kombu", "billiard", "amqp"), ("workers/", "shared/wakes/")),
    Place(("openai",), ("shared/models/",)),
    Place(("fastapi", "starlette", "uvicorn", "sse_starlette"), ("producer/",)),
    Place(("psycopg", "psycopg_pool", "sqlalchemy", "alembic"), ("shared/database/",), postgres_files=True),
    Place(("redis",), ("shared/feed/", "shared/wakes/")),
    Place(("dotenv",), ("shared/settings.py",)),
)

#: Who may look at the process's environment besides the settings, and why.
ENVIRONMENT: Final = {
    "shared/settings.py": "the one reader",
    "shared/database/embedded/launch.py": "lays variables over its own, then becomes the embedded server",
}

#: Product files with SQL in a string, and why.
SQL_IN_PYTHON: Final = {
    "shared/database/embedded/postgres_server.py": "makes and drops whole databases of an embedded server",
    "shared/database/migrate.py": "the runner of the migrations: its lock, and the version before there are tables",
}

_SQL: Final = re.compile(
    r"^\s*(?:--.*\n\s*)*(?:"
    r"select\s.+|with\s+(?:recursive\s+)?\w+\s+as\s*\(|insert\s+into\s|update\s+\w+\s+(?:as\s+\w+\s+)?set\s|"
    r"delete\s+from\s|merge\s+into\s|truncate\s|lock\s+table\s|"
    r"(?:create|alter|drop)\s+(?:or\s+replace\s+)?(?:unique\s+)?"
    r"(?:table|index|function|type|view|schema|extension|trigger|database|role|sequence)\s)",
    re.IGNORECASE | re.DOTALL,
)
_PROSE: Final = re.compile(r"^\s*Select\s")  # a sentence; statements are written in one case


def is_postgres_adapter(source: Source) -> bool:
    """Whether a file is a subsystem's Postgres adapter: ``postgres.py``, a part of it, or one in its folder."""
    return source.stem == "postgres" or source.stem.startswith("postgres_") or "postgres" in source.folders


def misplaced_imports(source: Source) -> Iterator[str]:
    for name, line in source.imports():
        for place in PLACES:
            if name.split(".")[0] in place.libraries and not place.admits(source):
                yield f"{source.path}:{line}: {name} belongs in {', '.join(place.prefixes)}"


def environment_reads(source: Source) -> Iterator[int]:
    """Lines that read or write ``os.environ`` or call ``os.getenv`` and its like."""
    names = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
    for node in ast.walk(source.tree):
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr=name) if name in names:
                yield node.lineno
            case ast.ImportFrom(module="os") if names & {alias.name for alias in node.names}:
                yield node.lineno


def statements(source: Source) -> Iterator[tuple[str, int]]:
    """String constants that begin like an SQL statement."""
    for text, line in source.strings():
        if _SQL.match(text) and not _PROSE.match(text):
            yield " ".join(text.split())[:60], line


def test_each_library_is_imported_in_its_place_only() -> None:
    assert [finding for source in product_sources() for finding in misplaced_imports(source)] == []


def test_the_environment_is_read_in_its_place_only() -> None:
    readers = {source.path for source in standing_sources() if any(environment_reads(source))}
    assert readers == set(ENVIRONMENT), "an unnamed reader, or an excuse that is no longer needed"


def test_sql_stands_in_sql_files_and_migrations_only() -> None:
    found = {
        source.path: [f"line {line}: {text}" for text, line in statements(source)]
        for source in standing_sources()
        if "migrations" not in source.folders
    }
    unexcused = {path: lines for path, lines in found.items() if lines and path not in SQL_IN_PYTHON}
    assert unexcused == {}
    assert [path for path in SQL_IN_PYTHON if not found.get(path)] == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("producer/x.py", "from celery import Celery"),
        ("shared/turns/queue.py", "import psycopg"),
        ("workers/x.py", "def late():\n    from openai import AsyncOpenAI"),
        ("shared/feed/x.py", "from starlette.responses import Response"),
        ("producer/x.py", "import redis.asyncio"),
    ],
)
def test_a_misplaced_import_is_seen(path: str, text: str) -> None:
    assert len(list(misplaced_imports(Source(path, text)))) == 1


@pytest.mark.parametrize(
    "path", ["shared/turns/postgres.py", "shared/turns/postgres_claims.py", "shared/database/x.py"]
)
def test_a_postgres_adapter_may_import_the_driver(path: str) -> None:
    assert list(misplaced_imports(Source(path, "import psycopg"))) == []


@pytest.mark.parametrize(
    "text", ["import os\nos.environ['X']", "import os\nos.getenv('X')", "from os import environ"]
)
def test_a_read_of_the_environment_is_seen(text: str) -> None:
    assert len(list(environment_reads(Source("x.py", text)))) == 1


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1",
        "select id from turns",
        "\n  -- why\n  INSERT INTO turns VALUES (1)",
        "update turns set status = 'ready'",
        "WITH due AS (SELECT 1) DELETE FROM turns",
        "CREATE UNIQUE INDEX x ON y (z)",
    ],
)
def test_a_statement_in_a_string_is_seen(statement: str) -> None:
    assert len(list(statements(Source("x.py", f"QUERY = {statement!r}")))) == 1


@pytest.mark.parametrize(
    "text", ['"""SELECT in a docstring"""', "X = 'Select one of these'", "X = 'update the set'"]
)
def test_prose_is_no_statement(text: str) -> None:
    assert list(statements(Source("x.py", text))) == []

"""No statement of a turn, and no sweep, costs more because more history exists or more is owed to others.

Cost is counted in the pages that a statement touches: exact, and the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from uuid import uuid4

import psycopg
import pytest

from tests.support.history import (
    COUNT_ALL_TURNS,
    READ_WHOLE_LOG,
    Connection,
    Scene,
    Sizes,
    claim_of,
    connected,
    pages,
    set_scene,
    statements,
)
from tests.support.mutations import Mutation, apply

RATIO_MAX: Final = 2.0
#: A statement of few pages may touch a level more of a tree.
PAGES_FREE: Final = 4


#: Trees have more than one level in both, so that what differs is the history.
SMALL: Final = Sizes(finished=2_000, in_session=20, owed=20, unserved=20)
LARGE: Final = Sizes(finished=20_000, in_session=2_000, owed=5_000, unserved=5_000)


@pytest.fixture
def two_urls(database_url: str) -> Iterator[tuple[str, str]]:
    """Two databases of one content's shape: the test's own, and a copy of it while it was empty."""
    base, name = database_url.rsplit("/", 1)
    copy = f"{name}_large"
    with psycopg.connect(f"{base}/postgres", autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {copy} TEMPLATE {name}".encode())
    yield database_url, f"{base}/{copy}"
    with psycopg.connect(f"{base}/postgres", autocommit=True) as admin:
        admin.execute(f"DROP DATABASE {copy} WITH (FORCE)".encode())


def measure(url: str, sizes: Sizes, *, plans_are_old: bool) -> Mapping[str, int]:
    """Fill a database and return the pages of each statement.

    With ``plans_are_old`` the connection planned everything while the database was empty, as a process that started
    with it did, and nothing has analysed the tables since.
    """
    with connected(url) as connection:
        if plans_are_old:
            nobody = Scene(nothing(), nothing())
            for name, params in statements(nobody).values():
                pages(connection, name, params)
        scene = set_scene(connection, sizes)
        if not plans_are_old:
            connection.execute("ANALYZE")
        return {what: pages(connection, name, params) for what, (name, params) in statements(scene).items()}


def nothing() -> dict[str, Any]:
    return {"turn_id": uuid4(), "session_id": "none", "epoch": 1, "token": uuid4()}


def grown(urls: tuple[str, str], *, plans_are_old: bool) -> Mapping[str, tuple[int, int]]:
    """Return the statements whose pages grow from the small database to the large one, with both counts."""
    small = measure(urls[0], SMALL, plans_are_old=plans_are_old)
    large = measure(urls[1], LARGE, plans_are_old=plans_are_old)
    return {
        what: (small[what], large[what])
        for what in small
        if large[what] > RATIO_MAX * small[what] + PAGES_FREE
    }


@pytest.mark.behaviour("DST-12", "API-20")
@pytest.mark.parametrize("plans_are_old", [False, True])
def test_no_statement_costs_more_for_history_or_for_what_others_are_owed(
    two_urls: tuple[str, str], plans_are_old: bool
) -> None:
    assert grown(two_urls, plans_are_old=plans_are_old) == {}


@pytest.mark.mutation
@pytest.mark.parametrize(("change", "found"), [(READ_WHOLE_LOG, "cancel"), (COUNT_ALL_TURNS, "claim")])
def test_statement_that_reads_history_is_found(
    two_urls: tuple[str, str], change: Mutation, found: str
) -> None:
    for url in two_urls:
        apply(url, change)
    assert found in grown(two_urls, plans_are_old=False)


def claim_pages(connection: Connection, owners: range) -> int:
    """Give each of these owners a due turn, and return the pages of a claim of one place."""
    for statement in (
        "INSERT INTO owners (id) SELECT 'due ' || n FROM generate_series(%(first)s::int, %(last)s::int) n",
        """INSERT INTO sessions (id, owner, tail, next_position)
             SELECT 'due ' || n, 'due ' || n, sha256('x'), 2 FROM generate_series(%(first)s::int, %(last)s::int) n""",
        """INSERT INTO turns (id, session_id, owner, position, origin, status, fingerprint, message, run_id)
             SELECT gen_random_uuid(), 'due ' || n, 'due ' || n, 1, 'user', 'ready', 'f', '{}', 'r'
               FROM generate_series(%(first)s::int, %(last)s::int) n""",
    ):
        connection.execute(statement.encode(), {"first": owners[0], "last": owners[-1]})
    connection.execute("ANALYZE")
    return pages(connection, "claim", claim_of("w1"))


@pytest.mark.behaviour("DST-14")
def test_claim_costs_no_more_for_owners_past_the_sixteenth(database_url: str) -> None:
    with connected(database_url) as connection:
        few = claim_pages(connection, range(1, 101))
        many = claim_pages(connection, range(101, 1001))
        assert many <= RATIO_MAX * few

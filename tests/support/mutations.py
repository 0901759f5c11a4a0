"""Mutation proofs: a rule is taken out of one SQL function of a test's own database, and its scenario must then fail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import psycopg
import pytest

Scenario = Callable[[str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Mutation:
    """Replacements of text in one function. ``name`` says which rule they take out; each text stands there once."""

    name: str
    function: str
    edits: tuple[tuple[str, str], ...]


def mutation(name: str, function: str, *edits: tuple[str, str]) -> Mutation:
    """Return a mutation; each edit is the text that is found and the text that takes its place."""
    return Mutation(name, function, edits)


def apply(database_url: str, change: Mutation) -> None:
    """Replace the function in this database. Raises ``LookupError`` unless each text is found exactly once."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = %s", (change.function,)
        ).fetchall()
        if len(rows) != 1:
            raise LookupError(f"{len(rows)} functions are called {change.function}")
        text = str(rows[0][0])
        for found, put in change.edits:
            if text.count(found) != 1:
                raise LookupError(f"{change.function} holds {text.count(found)} times: {found}")
            text = text.replace(found, put)
        connection.execute(text.encode())


async def prove(database_url: str, scenario: Scenario, change: Mutation) -> None:
    """Require that the scenario fails by an assertion of its own in a database that lacks the rule."""
    apply(database_url, change)
    with pytest.raises(AssertionError):
        await scenario(database_url)

"""Counts of one database, taken by a connection of its own: what the server says it did."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psycopg
from psycopg.rows import dict_row

from shared.database.statements import Statement, load_statements

_SQL: Final = load_statements(Path(__file__).with_name("queries.sql"))
#: How long sessions of processes that have ended may take to be gone.
GONE_BOUND_S: Final = 10.0
LOOK_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Writes:
    """Transactions that wrote, and bytes of the write-ahead log, since the server's first start. Exact at once."""

    transactions: int
    wal_bytes: int

    def since(self, before: Writes) -> Writes:
        """Return what came after an earlier look."""
        return Writes(self.transactions - before.transactions, self.wal_bytes - before.wal_bytes)


@dataclass(frozen=True, slots=True)
class Activity:
    """Transactions that committed, reads among them, and rows that were inserted, updated or deleted."""

    commits: int
    rows_written: int

    def since(self, before: Activity) -> Activity:
        """Return what came after an earlier look."""
        return Activity(self.commits - before.commits, self.rows_written - before.rows_written)


class PostgresCounts:
    """Reads what a server counts. Blocks; a context manager; its own reads write nothing and cost one commit each."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True, row_factory=dict_row)

    def writes(self) -> Writes:
        """Return the transactions that wrote and the bytes of the log, as of now."""
        [row] = self._read("writes")
        return Writes(row["transactions"], row["wal_bytes"])

    def settled_activity(self) -> Activity:
        """Return commits and rows once no other session is open; raise ``TimeoutError`` when one stays.

        A session hands its statistics in when it ends; one that stays may keep the last ten seconds to itself.
        """
        deadline = time.monotonic() + GONE_BOUND_S
        while self._read("sessions_of_others")[0]["open"]:
            if time.monotonic() > deadline:
                raise TimeoutError("sessions of others stay open")
            time.sleep(LOOK_S)  # a poll's pause: a server tells nobody that a session ended
        [row] = self._read("activity")
        return Activity(row["commits"], row["rows_written"])

    def worker_pids(self) -> set[int]:
        """Return the processes of the workers that wrote that they are there."""
        return {row["pid"] for row in self._read("worker_pids")}

    def owes_turns(self, agents: Collection[str] | None = None) -> bool:
        """Say whether any turn is unfinished, of these agents or of all."""
        [row] = self._read("owes_turns", agents=None if agents is None else list(agents))
        return bool(row["owes"])

    def waiting_turns(self) -> int:
        """Return how many turns are owed and held by nobody."""
        [row] = self._read("waiting_turns")
        return int(row["waiting"])

    def ends(self, agent: str, *, skipped: int) -> list[tuple[float, str]]:
        """Return time (seconds) and outcome of an agent's ended turns in the order they ended, but the first ``skipped``."""
        return [(row["at"], row["outcome"]) for row in self._read("ends", agent=agent, skipped=skipped)]

    def run(self, statement: Statement) -> None:
        """Run a statement of a benchmark's own between two blocks."""
        self._connection.execute(statement.text)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, name: str, **params: Any) -> list[dict[str, Any]]:
        return self._connection.execute(_SQL[name].text, params).fetchall()

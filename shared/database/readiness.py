"""Whether the database can serve now: reachable, at a schema this code runs on, writable, and how durable a commit is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shared.database.pool import Database
from shared.database.schema import require_compatible
from shared.database.statements import load_statements
from shared.domain.errors import StoreUnavailable

_SQL = load_statements(Path(__file__).with_name("queries.sql"))

#: What a fail-over keeps of acknowledged work (core 11): all of it only when a synchronous standby confirms commits.
StandbyMode = Literal["synchronous", "asynchronous", "none"]


@dataclass(frozen=True, slots=True)
class Readiness:
    """The answer of one look: the schema's version and what a commit waits for."""

    schema_version: int
    standby: StandbyMode


async def read_readiness(database: Database) -> Readiness:
    """Look once. Raises ``StoreUnavailable`` (also on a standby), ``StoreBusy``, and ``SchemaOutOfRange``."""
    rows = await database.call("readiness", _SQL["read_readiness"], {}, repeatable=True)
    require_compatible(rows[0] if rows else None)
    row = rows[0]
    if row["is_standby"]:
        raise StoreUnavailable("the database is a standby and takes no writes")
    return Readiness(row["version"], _standby_mode(row["has_standby"], row["synchronous_commit"]))


def _standby_mode(has_standby: bool, synchronous_commit: str) -> StandbyMode:
    if not has_standby:
        return "none"
    return "synchronous" if synchronous_commit in ("on", "remote_write", "remote_apply") else "asynchronous"

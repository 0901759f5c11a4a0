"""What the commands of transfer share: the stores of one database, and how ages are written."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Final

import typer

from producer.dev.running import find_database_url
from shared.database.pool import Database
from shared.domain.bounds import check_identity
from shared.domain.errors import InvalidInput
from shared.domain.failpoints import Failpoints
from shared.domain.ids import OwnerId, SessionId
from shared.sessions.postgres import PostgresSessionLog
from shared.settings import load_settings
from shared.transfer.postgres import PostgresArchives, PostgresTransferStore

DAMAGED_STATUS: Final = 1

JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
OwnerOption = Annotated[str | None, typer.Option("--owner", help="Only when this owner has it.")]

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGE: Final = re.compile(r"(\d{1,6})([smhdw])")


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores of one database, and the points that a test armed."""

    database: Database
    log: PostgresSessionLog
    transfer: PostgresTransferStore
    archives: PostgresArchives
    failpoints: Failpoints


@asynccontextmanager
async def stores(command: str) -> AsyncIterator[Stores]:
    """Open the database of the settings, or of the running ``dev``, for one command."""
    settings = load_settings()
    database = Database(find_database_url(settings), connections=2, name=f"turnkeeper-{command}")
    await database.open(wait_s=5.0)
    try:
        yield Stores(
            database,
            PostgresSessionLog(database),
            PostgresTransferStore(database),
            PostgresArchives(database),
            Failpoints.parse(settings.failpoints),
        )
    finally:
        await database.close()


def owner_id(owner: str | None) -> OwnerId | None:
    """Return an option's owner; raises ``InvalidInput``."""
    return None if owner is None else OwnerId(check_identity(owner, field="--owner"))


def session_of(session: str, *, field: str) -> SessionId:
    """Return a session's id as given; raises ``InvalidInput``."""
    return SessionId(check_identity(session, field=field))


def age_of(text: str, *, field: str) -> timedelta:
    """Read an age as ``90d``, ``36h``, ``2w``, ``30m`` or ``45s``; raises ``InvalidInput``."""
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise InvalidInput(
            f"{field} must be a number and s, m, h, d or w, as 90d", field=field, bound="0s..999999w"
        )
    return timedelta(**{_UNITS[found[2]]: int(found[1])})

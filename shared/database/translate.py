"""Driver errors become ours here, once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors as pg
from psycopg_pool import PoolClosed, PoolTimeout

from shared.domain.errors import (
    HistoryModeConflict,
    InvalidInput,
    StoreBusy,
    StoreDefect,
    StoreUnavailable,
    TurnkeeperError,
)

_BUSY = (pg.LockNotAvailable, pg.DeadlockDetected, pg.SerializationFailure, pg.QueryCanceled)
_AWAY = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    pg.AdminShutdown,
    pg.CrashShutdown,
    pg.CannotConnectNow,
    pg.TooManyConnections,
    pg.ConnectionException,
    pg.IdleInTransactionSessionTimeout,
    pg.ReadOnlySqlTransaction,
    pg.DiskFull,
)

#: Operational errors to the driver, but no retry helps: a value is larger than an index or a statement holds.
_BEYOND_LIMITS = (pg.ProgramLimitExceeded, pg.StatementTooComplex, pg.TooManyArguments, pg.TooManyColumns)

#: What our own triggers refuse with.
_KEEPS_WHOLE_TURNS = "TK001"


def translate(error: BaseException, statement: str) -> TurnkeeperError:
    """Return our error for a driver's. The text names the statement and SQLSTATE, never SQL, values or addresses."""
    state = getattr(error, "sqlstate", None)
    match error:
        case TurnkeeperError():
            return error
        case PoolTimeout():
            return StoreBusy("no database connection became free in time", statement=statement)
        case _ if isinstance(error, _BUSY):
            return StoreBusy(
                "a lock could not be had in time; nothing was stored", statement=statement, sqlstate=state
            )
        case psycopg.Error() if state == _KEEPS_WHOLE_TURNS:
            return HistoryModeConflict("the session keeps whole turns: it takes no turn of the queue")
        case pg.UntranslatableCharacter() | pg.CharacterNotInRepertoire():
            return InvalidInput("text cannot be stored", field="text", bound="storable Unicode")
        case PoolClosed() | OSError():
            return StoreUnavailable("the database cannot be reached", statement=statement)
        case _ if isinstance(error, _AWAY) and not isinstance(error, _BEYOND_LIMITS):
            return StoreUnavailable("the database cannot be reached", statement=statement, sqlstate=state)
        case _:
            return StoreDefect("the database refused a statement", statement=statement, sqlstate=state)


@contextmanager
def translated(statement: str) -> Iterator[None]:
    """Translate what the block raises; cancellation and our own errors pass."""
    try:
        yield
    except (psycopg.Error, PoolTimeout, PoolClosed, OSError) as error:
        raise translate(error, statement) from error

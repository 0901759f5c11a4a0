"""Driver errors become ours, and say nothing of SQL, values or passwords."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg
import pytest
from psycopg import errors as pg
from psycopg_pool import PoolClosed, PoolTimeout

from shared.database.translate import translate, translated
from shared.domain.errors import (
    InvalidInput,
    StoreBusy,
    StoreDefect,
    StoreUnavailable,
    TurnClosed,
    TurnkeeperError,
)

SECRET = "connection to \"postgresql://u:geheim@db\" failed; INSERT INTO turns VALUES ('geheim')"


@pytest.mark.parametrize(
    ("make", "ours"),
    [
        (PoolTimeout, StoreBusy),
        (pg.LockNotAvailable, StoreBusy),
        (pg.DeadlockDetected, StoreBusy),
        (pg.SerializationFailure, StoreBusy),
        (pg.QueryCanceled, StoreBusy),
        (PoolClosed, StoreUnavailable),
        (psycopg.OperationalError, StoreUnavailable),
        (psycopg.InterfaceError, StoreUnavailable),
        (pg.AdminShutdown, StoreUnavailable),
        (pg.CrashShutdown, StoreUnavailable),
        (pg.CannotConnectNow, StoreUnavailable),
        (pg.TooManyConnections, StoreUnavailable),
        (pg.ConnectionFailure, StoreUnavailable),
        (pg.ReadOnlySqlTransaction, StoreUnavailable),
        (pg.DiskFull, StoreUnavailable),
        (ConnectionResetError, StoreUnavailable),
        (pg.UntranslatableCharacter, InvalidInput),
        (pg.UniqueViolation, StoreDefect),
        (pg.UndefinedTable, StoreDefect),
        (pg.SyntaxError, StoreDefect),
        (pg.ProgramLimitExceeded, StoreDefect),
        (pg.StatementTooComplex, StoreDefect),
        (psycopg.DataError, StoreDefect),
    ],
)
@pytest.mark.behaviour("SES-29")
def test_each_driver_error_has_its_family_and_stays_the_cause(
    make: Callable[[str], Exception], ours: type[TurnkeeperError]
) -> None:
    error = make(SECRET)
    with pytest.raises(TurnkeeperError) as found, translated("turn.admit"):
        raise error
    assert type(found.value) is ours
    assert found.value.__cause__ is error
    said = f"{found.value} {found.value.fields}"
    assert "geheim" not in said and "INSERT" not in said and "postgresql" not in said


def test_the_statement_and_the_state_are_named() -> None:
    error = translate(pg.LockNotAvailable("x"), "turn.open")
    assert error.fields == {"statement": "turn.open", "sqlstate": "55P03"}


def test_cancellation_our_own_errors_and_a_hosts_pass_as_they_are() -> None:
    for passing in (asyncio.CancelledError(), TurnClosed("closed"), ValueError("x")):
        with pytest.raises(type(passing)) as found, translated("turn.open"):
            raise passing
        assert found.value is passing
    ours = TurnClosed("closed")
    assert translate(ours, "turn.open") is ours

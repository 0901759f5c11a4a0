"""The session log's kits on the twin in memory and on Postgres, from one parametrisation."""

from __future__ import annotations

import pytest

from shared.conformance import (
    SessionLogRecoverySubject,
    session_log_conformance,
    session_log_recovery_conformance,
)
from tests.conformance.kits import cited_by, names_of, proved_by, run_check
from tests.conformance.subjects import InprocSessionLogSubject

CHECKS = session_log_conformance(InprocSessionLogSubject())
RECOVERY_CHECKS = session_log_recovery_conformance(InprocSessionLogSubject())


@pytest.mark.behaviour(
    "KIT-29",
    "KIT-30",
    "SES-04",
    "SES-05",
    "SES-06",
    "SES-10",
    "SES-11",
    "SES-12",
    "SES-13",
    "SES-14",
    "SES-15",
    "SES-16",
    "SES-17",
    "SES-35",
    "SES-63",
    "SES-143",
)
@pytest.mark.parametrize("name", names_of(CHECKS))
async def test_the_session_log_keeps_its_contract(
    name: str, session_log_subject: SessionLogRecoverySubject
) -> None:
    await run_check(session_log_conformance(session_log_subject), name)


@pytest.mark.behaviour(
    "KIT-33",
    "KIT-34",
    "KIT-35",
    "KIT-36",
    "KIT-37",
    "KIT-38",
    "KIT-39",
    "KIT-40",
    "SES-14",
    "SES-22",
    "SES-23",
    "SES-24",
    "SES-25",
)
@pytest.mark.parametrize("name", names_of(RECOVERY_CHECKS))
async def test_the_session_log_recovers(name: str, session_log_subject: SessionLogRecoverySubject) -> None:
    await run_check(session_log_recovery_conformance(session_log_subject), name)


def test_the_cited_rows_are_those_that_the_checks_prove() -> None:
    assert cited_by(test_the_session_log_keeps_its_contract) == proved_by(CHECKS)
    assert cited_by(test_the_session_log_recovers) == proved_by(RECOVERY_CHECKS)

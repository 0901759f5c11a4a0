"""The kit of the sessions of a host, on the twins in memory and on Postgres, from one parametrisation."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from shared.conformance import SessionsSubject, sessions_conformance
from tests.conformance.kits import cited_by, names_of, proved_by, run_check
from tests.conformance.session_subjects import InprocSessionsSubject, PostgresSessionsSubject

CHECKS = sessions_conformance(InprocSessionsSubject())


@pytest.fixture
async def sessions_subject(backend_url: str | None) -> AsyncIterator[SessionsSubject]:
    """Sessions to run a check on."""
    if backend_url is None:
        yield InprocSessionsSubject()
        return
    async with PostgresSessionsSubject(backend_url) as subject:
        yield subject


@pytest.mark.behaviour(
    "INB-01",
    "INB-02",
    "INB-03",
    "INB-04",
    "INB-05",
    "INB-07",
    "INB-08",
    "INB-09",
    "INB-10",
    "INB-11",
    "INB-12",
    "INB-13",
    "INB-14",
    "INB-15",
    "INB-16",
    "INB-17",
    "INB-19",
    "INB-20",
    "INB-21",
    "INB-22",
    "INB-23",
    "INB-24",
    "INB-25",
    "INB-26",
    "INB-27",
    "INB-28",
    "INB-29",
    "INB-31",
    "INB-33",
    "INB-34",
    "KIT-08",
    "KIT-41",
    "KIT-42",
    "KIT-43",
    "KIT-44",
    "KIT-45",
    "KIT-46",
    "KIT-47",
    "KIT-48",
    "KIT-49",
    "KIT-50",
    "RSM-03",
    "RSM-06",
    "RSM-08",
    "RSM-10",
    "RSM-11",
    "RSM-13",
    "RSM-14",
    "RSM-16",
    "RSM-17",
    "RSM-39",
    "RSM-40",
    "RSM-41",
    "RSM-43",
    "RSM-44",
    "RSM-45",
    "RSM-46",
    "SES-130",
    "SES-12",
    "SES-34",
    "SES-35",
    "SES-36",
    "SES-37",
    "SES-38",
    "SES-40",
    "SES-41",
    "SES-42",
    "SES-43",
    "SES-45",
    "SES-46",
    "SES-48",
    "SES-49",
    "SES-50",
    "SES-51",
    "SES-54",
    "SES-55",
    "SES-59",
    "SES-62",
    "SES-63",
    "SES-64",
    "SES-65",
    "SES-68",
    "SES-70",
    "SES-71",
    "SES-72",
    "SES-75",
    "SES-82",
    "SES-84",
    "SES-86",
    "SES-87",
    "SES-91",
    "SES-103",
    "SES-105",
    "SES-106",
    "SES-107",
    "SES-113",
    "SES-114",
    "SES-115",
    "SES-116",
    "SES-117",
    "SES-121",
    "SES-122",
    "SES-124",
    "SES-125",
    "SES-126",
    "SES-127",
    "SES-128",
    "SES-129",
    "SES-132",
    "SES-133",
    "SES-135",
    "SES-136",
    "SES-143",
    "SES-144",
    "SES-146",
    "SES-152",
    "SES-154",
    "SHD-01",
    "SHD-02",
    "SHD-03",
    "SHD-05",
    "SHD-07",
    "SHD-08",
    "SHD-22",
    "SHD-23",
    "SHD-33",
    "SHD-40",
    "SHD-41",
)
@pytest.mark.parametrize("name", names_of(CHECKS))
async def test_the_sessions_of_a_host_keep_their_contract(
    name: str, sessions_subject: SessionsSubject
) -> None:
    await run_check(sessions_conformance(sessions_subject), name)


def test_the_cited_rows_are_those_that_the_checks_prove() -> None:
    assert cited_by(test_the_sessions_of_a_host_keep_their_contract) == proved_by(CHECKS)

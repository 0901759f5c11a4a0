"""The inbox's kit on the twin in memory and on Postgres, from one parametrisation."""

from __future__ import annotations

import pytest

from shared.conformance import InboxSubject, inbox_conformance
from tests.conformance.kits import cited_by, names_of, proved_by, run_check
from tests.conformance.subjects import InprocTurnQueueSubject

CHECKS = inbox_conformance(InprocTurnQueueSubject())


@pytest.mark.behaviour(
    "API-02",
    "INB-01",
    "INB-02",
    "INB-03",
    "INB-04",
    "INB-05",
    "INB-06",
    "INB-07",
    "INB-10",
    "INB-11",
    "INB-12",
    "INB-13",
    "INB-14",
    "INB-15",
    "INB-16",
    "INB-17",
    "INB-18",
    "INB-30",
    "INB-31",
    "INB-35",
    "SES-132",
    "SES-138",
)
@pytest.mark.parametrize("name", names_of(CHECKS))
async def test_the_inbox_keeps_its_contract(name: str, turn_queue_subject: InboxSubject) -> None:
    await run_check(inbox_conformance(turn_queue_subject), name)


def test_the_cited_rows_are_those_that_the_checks_prove() -> None:
    assert cited_by(test_the_inbox_keeps_its_contract) == proved_by(CHECKS)

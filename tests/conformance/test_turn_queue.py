"""The turn queue's kit on the twin in memory and on Postgres, from one parametrisation."""

from __future__ import annotations

import pytest

from shared.conformance import TurnQueueSubject, turn_queue_conformance
from tests.conformance.kits import cited_by, names_of, proved_by, run_check
from tests.conformance.subjects import InprocTurnQueueSubject

CHECKS = turn_queue_conformance(InprocTurnQueueSubject())


@pytest.mark.behaviour(
    "API-02",
    "TRN-43",
    "DST-06",
    "DST-07",
    "DST-09",
    "DST-14",
    "DST-15",
    "DST-16",
    "DST-20",
    "DST-26",
    "KIT-45",
    "KIT-51",
    "RSM-01",
    "RSM-02",
    "RSM-03",
    "RSM-05",
    "RSM-06",
    "RSM-07",
    "RSM-08",
    "RSM-10",
    "RSM-11",
    "RSM-12",
    "RSM-13",
    "RSM-16",
    "RSM-17",
    "RSM-18",
    "RSM-40",
    "RSM-41",
    "RSM-42",
    "RSM-43",
    "RSM-44",
    "RSM-45",
    "SES-35",
    "SES-36",
    "SES-38",
    "SES-39",
    "SES-40",
    "SES-41",
    "SES-45",
    "SES-46",
    "SES-49",
    "SES-51",
    "SES-72",
    "SES-75",
    "SES-84",
    "SES-85",
    "SES-87",
    "SES-92",
    "SES-97",
    "SES-101",
    "SES-103",
    "SES-105",
    "SES-113",
    "SES-115",
    "SES-121",
    "SES-122",
    "SES-123",
    "SES-125",
    "SES-126",
    "SES-127",
    "SES-128",
    "SES-129",
    "SES-131",
    "SES-132",
    "SES-133",
    "SES-134",
    "SES-135",
    "SES-136",
    "SES-137",
    "SES-138",
    "SES-148",
)
@pytest.mark.parametrize("name", names_of(CHECKS))
async def test_the_turn_queue_keeps_its_contract(name: str, turn_queue_subject: TurnQueueSubject) -> None:
    await run_check(turn_queue_conformance(turn_queue_subject), name)


def test_the_cited_rows_are_those_that_the_checks_prove() -> None:
    assert cited_by(test_the_turn_queue_keeps_its_contract) == proved_by(CHECKS)

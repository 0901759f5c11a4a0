"""The kit of the store of tasks on the twin in memory and on Postgres, from one parametrisation."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from shared.conformance.task_store import task_store_conformance
from shared.conformance.task_store.stage import TaskStoreSubject
from tests.conformance.kits import cited_by, names_of, proved_by, run_check
from tests.conformance.task_subjects import InprocTaskStoreSubject, PostgresTaskStoreSubject

CHECKS = task_store_conformance(InprocTaskStoreSubject())


@pytest.fixture
async def task_store_subject(backend_url: str | None) -> AsyncIterator[TaskStoreSubject]:
    """A store of tasks to run a check on."""
    if backend_url is None:
        yield InprocTaskStoreSubject()
        return
    async with PostgresTaskStoreSubject(backend_url) as subject:
        yield subject


@pytest.mark.behaviour(
    "INB-02",
    "SES-72",
    "THR-76",
    "TSK-01",
    "TSK-02",
    "TSK-03",
    "TSK-04",
    "TSK-05",
    "TSK-06",
    "TSK-10",
    "TSK-11",
    "TSK-12",
    "TSK-13",
    "TSK-14",
    "TSK-15",
    "TSK-16",
    "TSK-18",
    "TSK-19",
    "TSK-20",
    "TSK-21",
    "TSK-22",
    "TSK-23",
    "TSK-24",
    "TSK-25",
    "TSK-26",
    "TSK-27",
    "TSK-37",
    "TSK-39",
    "TSK-40",
    "TSK-41",
    "TSK-43",
    "TSK-47",
)
@pytest.mark.parametrize("name", names_of(CHECKS))
async def test_the_store_of_tasks_keeps_its_contract(name: str, task_store_subject: TaskStoreSubject) -> None:
    await run_check(task_store_conformance(task_store_subject), name)


def test_the_cited_rows_are_those_that_the_checks_prove() -> None:
    assert cited_by(test_the_store_of_tasks_keeps_its_contract) == proved_by(CHECKS)

"""The kit of the document store on the twin in memory and on Postgres, from one parametrisation."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from memory_pipeline.store.conformance import memory_store_conformance
from memory_pipeline.store.conformance_stage import MemoryStoreSubject
from tests.conformance.kits import cited_by, names_of, proved_by, run_check
from tests.conformance.memory_subjects import InprocMemoryStoreSubject, PostgresMemoryStoreSubject

CHECKS = memory_store_conformance(InprocMemoryStoreSubject())


@pytest.fixture
async def memory_store_subject(backend_url: str | None) -> AsyncIterator[MemoryStoreSubject]:
    """A document store to run a check on."""
    if backend_url is None:
        yield InprocMemoryStoreSubject()
        return
    async with PostgresMemoryStoreSubject(backend_url) as subject:
        yield subject


@pytest.mark.behaviour(
    "MEM-03",
    "MEM-07",
    "MEM-24",
    "MEM-25",
    "MEM-26",
    "MEM-27",
    "MEM-28",
    "MEM-29",
    "MEM-32",
    "MEM-33",
    "MEM-34",
    "MEM-36",
    "MEM-37",
    "MEM-38",
    "MEM-39",
    "MEM-40",
    "MEM-41",
    "MEM-45",
    "MEM-53",
    "MEM-T03",
    "MEM-T04",
    "MEM-T05",
    "MEM-T06",
    "MEM-T09",
    "MEM-T10",
)
@pytest.mark.parametrize("name", names_of(CHECKS))
async def test_the_document_store_keeps_its_contract(
    name: str, memory_store_subject: MemoryStoreSubject
) -> None:
    await run_check(memory_store_conformance(memory_store_subject), name)


def test_the_cited_rows_are_those_that_the_checks_prove() -> None:
    assert cited_by(test_the_document_store_keeps_its_contract) == proved_by(CHECKS)

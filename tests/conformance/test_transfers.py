"""The kit of transfer and archives on the twins in memory and on Postgres, from one parametrisation."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from shared.conformance import TransferSubject, transfers_conformance
from tests.conformance.kits import cited_by, names_of, proved_by, run_check
from tests.conformance.subjects import InprocTransferSubject, PostgresTransferSubject

CHECKS = transfers_conformance(InprocTransferSubject())


@pytest.fixture
async def subject(backend_url: str | None) -> AsyncIterator[TransferSubject]:
    if backend_url is None:
        yield InprocTransferSubject()
        return
    async with PostgresTransferSubject(backend_url) as made:
        yield made


@pytest.mark.behaviour("THR-103", "THR-104", "THR-107", "THR-108")
@pytest.mark.parametrize("name", names_of(CHECKS))
async def test_transfer_and_archives_keep_their_contract(name: str, subject: TransferSubject) -> None:
    await run_check(transfers_conformance(subject), name)


def test_the_cited_rows_are_those_that_the_checks_prove() -> None:
    assert cited_by(test_transfer_and_archives_keep_their_contract) - {"THR-108"} == proved_by(CHECKS)

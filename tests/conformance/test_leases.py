"""The kit of named leases on the twin in memory and on Postgres, from one parametrisation."""

from __future__ import annotations

import pytest

from shared.conformance import LeasesSubject, leases_conformance
from tests.conformance.kits import cited_by, names_of, proved_by, run_check
from tests.conformance.subjects import InprocLeasesSubject

CHECKS = leases_conformance(InprocLeasesSubject())


@pytest.mark.behaviour("KIT-51")
@pytest.mark.parametrize("name", names_of(CHECKS))
async def test_the_named_leases_keep_their_contract(name: str, leases_subject: LeasesSubject) -> None:
    await run_check(leases_conformance(leases_subject), name)


def test_the_cited_rows_are_those_that_the_checks_prove() -> None:
    assert cited_by(test_the_named_leases_keep_their_contract) == proved_by(CHECKS)

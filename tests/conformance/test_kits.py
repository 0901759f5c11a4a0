"""The kits as a whole: nothing of them is skipped; those of the log and the leases pass in any order and side by side.

The kits of the turn queue and of the jobs sweep and count whole pools: their checks run one after another.
"""

from __future__ import annotations

import ast
import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest

import shared.conformance
from shared.conformance import (
    ConformanceCheck,
    ConformanceFailure,
    job_queue_conformance,
    leases_conformance,
    session_log_conformance,
    session_log_recovery_conformance,
    turn_queue_conformance,
)
from shared.conformance.session_log import CHECKS as LOG_CHECKS
from shared.sessions.log import SessionLog
from tests.architecture.tree import Source, product_sources
from tests.conformance.kits import names_of, run_check
from tests.conformance.subjects import (
    InprocLeasesSubject,
    InprocSessionLogSubject,
    InprocTurnQueueSubject,
    PostgresLeasesSubject,
    PostgresSessionLogSubject,
    PostgresWorld,
)
from tests.conformance.tampering import tampered

Kit = Callable[[Any], Sequence[ConformanceCheck]]

#: How many checks run side by side, each on handles of its own.
TOGETHER: Final = 4


def defined_checks(source: Source) -> int:
    """How many checks a file of the kits defines."""
    decorators = [decorator for function in source.functions() for decorator in function.decorator_list]
    return sum(
        isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id == "check"
        for one in decorators
    )


def is_of_the_turn_queue(source: Source) -> bool:
    return source.stem.startswith("turn_queue") or "turns" in source.folders


def test_every_check_that_is_written_is_in_its_kit() -> None:
    kits = [source for source in product_sources() if source.path.startswith("shared/conformance/")]
    turns = [source for source in kits if is_of_the_turn_queue(source)]
    assert sum(map(defined_checks, turns)) == len(turn_queue_conformance(InprocTurnQueueSubject()))
    for stem, checks in {
        "session_log": session_log_conformance(InprocSessionLogSubject()),
        "session_log_recovery": session_log_recovery_conformance(InprocSessionLogSubject()),
        "leases": leases_conformance(InprocLeasesSubject()),
    }.items():
        [source] = [source for source in kits if source.path == f"shared/conformance/{stem}.py"]
        assert defined_checks(source) == len(names_of(checks))


@pytest.mark.behaviour("KIT-04")
def test_kits_are_exported_with_what_they_are_made_of() -> None:
    kits = (
        session_log_conformance,
        session_log_recovery_conformance,
        leases_conformance,
        turn_queue_conformance,
        job_queue_conformance,
    )
    exported = set(shared.conformance.__all__)
    assert {kit.__name__ for kit in kits} | {"ConformanceCheck", "ConformanceFailure"} <= exported


#: Kits whose checks may run beside others, with what they run on and how often each runs at once.
BESIDE: Final[Sequence[tuple[Kit, type[PostgresWorld]]]] = [
    (session_log_conformance, PostgresSessionLogSubject),
    (session_log_conformance, PostgresSessionLogSubject),
    (session_log_recovery_conformance, PostgresSessionLogSubject),
    (leases_conformance, PostgresLeasesSubject),
]


@pytest.mark.parametrize("seed", [1, 2])
async def test_kits_pass_in_any_order_and_side_by_side_on_one_database(embedded_url: str, seed: int) -> None:
    order = [(kit, kind, name) for kit, kind in BESIDE for name in names_of(kit(kind(embedded_url)))]
    random.Random(seed).shuffle(order)
    places = asyncio.Semaphore(TOGETHER)

    async def run(kit: Kit, kind: type[PostgresWorld], name: str) -> None:
        async with places, kind(embedded_url) as subject:
            await run_check(kit(subject), name)

    await asyncio.gather(*(run(*one) for one in order))


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_kits_pass_in_any_order_over_one_store_of_the_twins(seed: int) -> None:
    log = InprocSessionLogSubject()
    checks = [
        *session_log_conformance(log),
        *session_log_recovery_conformance(log),
        *leases_conformance(InprocLeasesSubject()),
    ]
    random.Random(seed).shuffle(checks)
    for check in checks:
        await check.run()


@pytest.mark.behaviour("KIT-08")
async def test_time_passes_by_the_subjects_clock_on_the_twin_and_by_stored_times_on_postgres(
    embedded_url: str,
) -> None:
    twin = InprocLeasesSubject()
    async with PostgresLeasesSubject(embedded_url) as database:
        for subject in (twin, database):
            leases, name = await subject.open(), subject.new_name()
            held = await leases.acquire(name, "one", 60.0)
            await subject.advance(30.0)
            assert await leases.renew(held)
            await subject.advance(61.0)
            assert not await leases.renew(held)


class HangingSubject(InprocSessionLogSubject):
    """A log whose heads never come."""

    async def log(self) -> SessionLog:
        async def hang(real: object, *args: object) -> None:
            await asyncio.Event().wait()

        return tampered(await super().log(), head=hang)


@pytest.mark.behaviour("KIT-01")
async def test_an_adapter_that_hangs_fails_its_check_by_name() -> None:
    [check] = [check for check in LOG_CHECKS if check.name.startswith("a new session has an empty head")]
    with pytest.raises(ConformanceFailure, match=f"^{check.name}: TimeoutError"):
        await check.on(HangingSubject(), timeout_s=0.05).run()

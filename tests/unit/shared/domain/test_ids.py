"""Identifiers."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from uuid import RFC_4122, UUID

import pytest

from shared.domain.bounds import check_identity
from shared.domain.ids import Ticks, new_run_id, new_session_id, new_turn_id, new_worker_id, uuid7


def test_a_turn_id_is_a_version_7_uuid_of_the_present_millisecond() -> None:
    before = time.time_ns() // 1_000_000
    made = [uuid7() for _ in range(200)]
    assert {(u.version, u.variant) for u in made} == {(7, RFC_4122)}
    assert before <= made[0].int >> 80 <= time.time_ns() // 1_000_000
    assert new_turn_id().version == 7


def test_ids_of_one_process_sort_in_the_order_in_which_they_were_made() -> None:
    """Thousands are of one millisecond; claims and pages go by (time, id), and the time is often the same."""
    made = [uuid7() for _ in range(20_000)]
    assert made == sorted(made)
    assert len({u.int & ((1 << 62) - 1) for u in made}) == 20_000, "the last 62 bits are random"


def test_each_tick_is_given_once_to_several_threads_though_the_clock_stands_still() -> None:
    ticks = Ticks(lambda: 1_700_000_000_000_000_000)
    with ThreadPoolExecutor(4) as pool:
        of_threads = list(pool.map(lambda _: [ticks.next() for _ in range(2_000)], range(4)))
    assert all(given == sorted(given) for given in of_threads)
    assert len({tick for given in of_threads for tick in given}) == 8_000


@pytest.mark.behaviour("SES-44")
def test_session_and_run_ids_are_identities() -> None:
    assert re.fullmatch(r"ses_[0-9a-f]{32}", new_session_id())
    run_id = new_run_id()
    assert (UUID(run_id).version, str(UUID(run_id))) == (4, run_id)
    assert check_identity(new_run_id(), field="run") != new_run_id()


@pytest.mark.behaviour("DST-10")
def test_a_worker_is_named_by_pool_host_pid_start_and_a_random_part() -> None:
    one, two = (new_worker_id("turns", host="h", pid=7, started_at=12.9) for _ in range(2))
    assert one.startswith("turns@h:7:12:") and one != two

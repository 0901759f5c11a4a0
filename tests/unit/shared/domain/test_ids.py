"""Identifiers."""

from __future__ import annotations

import re
from uuid import RFC_4122, UUID

import pytest

from shared.domain.bounds import check_identity
from shared.domain.ids import new_run_id, new_session_id, new_turn_id, new_worker_id, uuid7


def test_a_turn_id_is_a_version_7_uuid_and_sorts_by_its_millisecond() -> None:
    made = [uuid7() for _ in range(200)]
    assert {(u.version, u.variant) for u in made} == {(7, RFC_4122)}
    moments = [u.int >> 80 for u in made]
    assert moments == sorted(moments)
    assert len(set(made)) == 200
    assert new_turn_id().version == 7


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

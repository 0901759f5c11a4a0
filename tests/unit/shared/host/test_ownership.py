"""How turns are held: what may be configured, and how a process is named and asked."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import psutil
import pytest

from shared.domain.errors import ConfigError
from shared.domain.ids import WorkerId
from shared.host.ownership import (
    TTL_MS_MAX,
    TTL_MS_MIN,
    EveryMs,
    HolderProcess,
    LeaseOwnership,
    ProcessLiveness,
    ProcessOwnership,
    holder_id,
    process_of,
    read_ownership,
)


@pytest.mark.behaviour("SES-89", "SES-83")
def test_by_default_a_turn_is_leased_for_a_minute_and_renewed_each_twenty_seconds() -> None:
    assert read_ownership({}) == LeaseOwnership() == LeaseOwnership(60_000, EveryMs(20_000))
    assert LeaseOwnership().lease_s == 60.0


@pytest.mark.behaviour("SES-83", "SES-102")
@pytest.mark.parametrize(
    ("options", "ownership"),
    [
        ({"mode": "process"}, ProcessOwnership()),
        ({"mode": "lease", "ttl_ms": 90_000}, LeaseOwnership(90_000, EveryMs(20_000))),
        ({"mode": "lease", "renew": "none"}, LeaseOwnership(60_000, "none")),
        ({"mode": "lease", "renew": "on-commit"}, LeaseOwnership(60_000, "on-commit")),
        ({"ttl_ms": 4_000, "renew": {"every_ms": 1_000}}, LeaseOwnership(4_000, EveryMs(1_000))),
    ],
)
def test_options_name_an_ownership(options: dict[str, Any], ownership: object) -> None:
    assert read_ownership(options) == ownership


@pytest.mark.behaviour("SES-95", "SES-96")
def test_a_keep_alive_may_take_half_of_the_lease_and_no_longer() -> None:
    assert read_ownership({"ttl_ms": 10_000, "renew": {"every_ms": 5_000}}) == LeaseOwnership(
        10_000, EveryMs(5_000)
    )
    with pytest.raises(ConfigError, match=r"10\.\.half of ttl_ms \(5000\)"):
        LeaseOwnership(10_000, EveryMs(5_001))
    with pytest.raises(ConfigError, match=r"10\.\.half of ttl_ms \(5000\)") as caught:
        read_ownership({"ttl_ms": 10_000, "renew": {"every_ms": 5_001}})
    assert (caught.value.code, caught.value.fields["field"]) == ("config.options", "renew.every_ms")


@pytest.mark.behaviour("SES-96")
@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"mode": "leased"}, "mode"),
        ({"mode": "process", "ttl_ms": 1_000}, "ttl_ms"),
        ({"ttl_ms": TTL_MS_MIN - 1, "renew": "none"}, "ttl_ms"),
        ({"ttl_ms": TTL_MS_MAX + 1}, "ttl_ms"),
        ({"ttl_ms": True}, "ttl_ms"),
        ({"ttl_ms": "60000"}, "ttl_ms"),
        ({"renew": "always"}, "renew"),
        ({"renew": {"every_ms": 1_000, "or": 1}}, "renew"),
        ({"renew": {"every_ms": 9}}, "renew.every_ms"),
        ({"renew": {"every_ms": None}}, "renew.every_ms"),
        ({"ttl": 1}, "ttl"),
    ],
)
def test_options_out_of_their_bounds_are_refused_with_the_field(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_ownership(options)
    assert caught.value.fields["field"] == field


@pytest.mark.behaviour("SES-104")
def test_a_holder_names_its_process_by_host_pid_and_start() -> None:
    me = ProcessLiveness().me()
    assert (me.pid, me.started) == (os.getpid(), int(psutil.Process().create_time()))
    holder = holder_id(me)
    assert process_of(holder) == me
    assert holder_id(me) != holder  # two instances of one process are two holders
    for other in (None, WorkerId("turns"), WorkerId("host@here"), WorkerId("host@here:1:x:ab")):
        assert process_of(other) is None


@pytest.mark.behaviour("SES-109", "SES-110", "SES-111", "SES-107")
def test_a_process_of_this_host_runs_as_long_as_its_pid_is_there() -> None:
    liveness = ProcessLiveness()
    me = liveness.me()
    assert liveness.is_running(me) is True
    assert liveness.is_running(replace(me, started=me.started + 1)) is False  # our own pid, reused
    assert liveness.is_running(HolderProcess("another-host", me.pid, me.started)) is None
    init = HolderProcess(me.host, 1, 0)
    assert liveness.is_running(init) is True  # whatever its start: a reused pid keeps its turn held
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process = HolderProcess(me.host, child.pid, 0)
        assert liveness.is_running(process) is True
        child.communicate(b"\n")
    assert liveness.is_running(process) is False

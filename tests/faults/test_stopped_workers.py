"""SIGTERM at every point of a turn, twice, and while a worker starts; SIGKILL with many turns: bounded, and nothing lost."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from shared.database.embedded import EmbeddedServers
from shared.database.embedded.child import Child
from shared.database.migrate import migrate
from tests.support.servers import TUNE
from tests.support.system import System, eventually

#: What the turn is made of: a call with an outside effect, then a reply.
PAYING = 'Pay. [[offline: {"tool": "pay", "args": {"amount": 7}, "reply": "It is paid."}]]'

HELD_AT = (
    "turn.claimed",
    "turn.opened",
    "turn.requested",
    "turn.response-stored",
    "turn.tool-started",
    "turn.tool-done",
    "turn.step-stored",
    "turn.reply-ready",
)
#: Where the response with the call is stored and the handler had not run: its outcome is unknown for good.
NEVER_PAID = ("turn.response-stored", "turn.tool-started")
EXIT_S = 60.0


class StoppableSystem(System):
    """A system with a warm successor, stopped until it is needed."""

    successor: Child


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoppableSystem]:
    home = tmp_path_factory.mktemp("stopped")
    with EmbeddedServers(home / "servers", tune=TUNE) as pair:
        migrate(pair.database_url)
        with StoppableSystem(pair, home / "run") as system:
            system.start_producer()
            system.start_worker("upkeep")
            system.successor = system.start_worker()
            system.successor.send_signal(signal.SIGSTOP)
            yield system


@pytest.fixture(autouse=True)
def nothing_is_held_on(system: StoppableSystem) -> Iterator[None]:
    """A case that failed leaves no model that waits, and no successor that runs."""
    yield
    system.release_model()
    system.successor.send_signal(signal.SIGSTOP)


def row(system: System, turn_id: str) -> tuple[str, int, bool, int]:
    """Return a turn's status, counted losses, suspicion and losses of a live holder."""
    [found] = system.query("SELECT status, attempts, suspect, alive_losses FROM turns WHERE id = %s", turn_id)
    return found["status"], found["attempts"], found["suspect"], found["alive_losses"]


def finish_elsewhere(system: StoppableSystem, session: str, turn_id: str) -> None:
    """Let the successor finish a turn and assert that its log is whole, with one reply."""
    system.successor.send_signal(signal.SIGCONT)
    state = system.finished(turn_id)
    assert (state["status"], state["outcome"]) == ("ended", "completed")
    system.verify(session)
    assert system.kinds(session).count("turn.reply") == 1


def wait_for_a_lock(system: System, function: str) -> None:
    """Wait until a statement that calls this function waits for a lock."""
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
    eventually(lambda: system.query(waiting, f"%{function}%"), f"{function} waits for a lock")


@pytest.mark.behaviour("DST-18", "SHD-24", "SHD-42")
@pytest.mark.parametrize("point", HELD_AT)
def test_a_worker_told_to_stop_at_any_point_of_a_turn_hands_it_back_uncounted(
    system: StoppableSystem, point: str
) -> None:
    """B06: what is stored of a step is not done again by the worker that goes on."""
    session = system.create_session()
    leaving = system.start_worker(failpoints=f"{point}=hold", TURNKEEPER_DRAIN_S="0.5")
    turn = system.admit(session, PAYING)["turn_id"]
    leaving.wait_for_output(f"held at {point}", timeout_s=EXIT_S)
    leaving.send_signal(signal.SIGTERM)
    assert leaving.wait(EXIT_S) == 0

    assert row(system, turn) == ("ready", 0, False, 0)
    kinds = system.kinds(session)
    assert kinds.count("turn.started") == (point != "turn.claimed")
    assert kinds.count("turn.ended") == 0
    asked = system.calls(session)
    finish_elsewhere(system, session, turn)
    paid = [effect for effect in system.effects() if effect[1] == turn]
    assert len(paid) == (point not in NEVER_PAID)
    if "step.response" in kinds:
        # The stored response is not asked for again: what is left is the reply, asked for by one or by both.
        assert system.calls(session) == asked + 1


@pytest.mark.behaviour("DST-18", "SHD-42")
def test_a_worker_told_to_stop_while_its_opening_commit_waits_opens_nothing(system: StoppableSystem) -> None:
    session = system.create_session()
    turn = system.admit(session, "Open this.")["turn_id"]
    with closing(psycopg.connect(system.servers.database_url)) as other:
        other.execute("SELECT 1 FROM sessions WHERE id = %s FOR UPDATE", [session])
        leaving = system.start_worker(TURNKEEPER_DRAIN_S="0.5")
        wait_for_a_lock(system, "turn_open_v")
        leaving.send_signal(signal.SIGTERM)
        assert leaving.wait(EXIT_S) == 0
        assert row(system, turn) == ("ready", 0, False, 0)
    assert system.kinds(session) == []
    finish_elsewhere(system, session, turn)


@pytest.mark.behaviour("DST-18", "SHD-42")
def test_a_worker_told_to_stop_while_its_closing_commit_waits_leaves_the_turn_open_for_another(
    system: StoppableSystem,
) -> None:
    session = system.create_session()
    leaving = system.start_worker(TURNKEEPER_DRAIN_S="0.5")
    system.hold_model()
    turn = system.admit(session, "Close this.")["turn_id"]
    system.wait_for_calls(1, session=session)
    with closing(psycopg.connect(system.servers.database_url)) as other:
        other.execute("SELECT 1 FROM sessions WHERE id = %s FOR UPDATE", [session])
        system.release_model()
        wait_for_a_lock(system, "turn_end_v")
        leaving.send_signal(signal.SIGTERM)
        assert leaving.wait(EXIT_S) == 0
        assert row(system, turn) == ("ready", 0, False, 0)
    assert system.kinds(session).count("turn.ended") == 0
    finish_elsewhere(system, session, turn)


@pytest.mark.behaviour("DST-18", "SHD-42")
def test_a_turn_that_ended_as_its_worker_was_told_to_stop_stays_as_it_ended(system: StoppableSystem) -> None:
    session = system.create_session()
    leaving = system.start_worker(failpoints="turn.ended=hold", TURNKEEPER_DRAIN_S="0.5")
    turn = system.admit(session, PAYING)["turn_id"]
    leaving.wait_for_output("held at turn.ended", timeout_s=EXIT_S)
    leaving.send_signal(signal.SIGTERM)
    assert leaving.wait(EXIT_S) == 0
    assert row(system, turn) == ("ended", 0, False, 0)
    system.verify(session)


@pytest.mark.behaviour("DST-18")
def test_a_second_signal_ends_a_worker_at_once_and_its_turn_goes_on_elsewhere(
    system: StoppableSystem,
) -> None:
    session = system.create_session()
    leaving = system.start_worker(TURNKEEPER_DRAIN_S="3600")
    system.hold_model()
    turn = system.admit(session, "Take your time.")["turn_id"]
    system.wait_for_calls(1, session=session)
    leaving.send_signal(signal.SIGTERM)
    leaving.wait_for_output("Warm shutdown", timeout_s=EXIT_S)
    leaving.send_signal(signal.SIGTERM)
    assert leaving.wait(EXIT_S) is not None
    system.release_model()
    finish_elsewhere(system, session, turn)


@pytest.mark.behaviour("DST-18")
def test_a_worker_told_to_stop_while_it_starts_ends_and_leaves_nothing_behind(
    system: StoppableSystem,
) -> None:
    session = system.create_session()
    turn = system.admit(session, "Not by you.")["turn_id"]
    with closing(psycopg.connect(system.servers.database_url)) as other:
        other.execute("LOCK TABLE workers IN ACCESS EXCLUSIVE MODE")
        starting = system.launch_worker("turns")
        waiting = (
            "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%INTO workers%%'"
            " AND application_name = 'turnkeeper-turns-polls'"
        )
        eventually(lambda: system.query(waiting), "the worker is about to say that it is there")
        starting.send_signal(signal.SIGTERM)
        assert starting.wait(EXIT_S) == 0
    assert starting.pid not in system.worker_pids()
    assert row(system, turn) == ("ready", 0, False, 0)
    finish_elsewhere(system, session, turn)


@pytest.mark.behaviour("DST-06", "DST-04")
def test_ten_turns_of_a_killed_worker_are_all_found_after_its_lease_and_none_twice(
    system: StoppableSystem,
) -> None:
    sessions = [system.create_session() for _ in range(10)]
    doomed = system.start_worker()
    system.hold_model()
    turns = [system.admit(session, "Are you there?")["turn_id"] for session in sessions]
    for session in sessions:
        system.wait_for_calls(1, session=session)
    doomed.send_kill()
    system.successor.send_signal(signal.SIGCONT)
    # At most eight at a time of those that may be what killed their worker.
    taken = "SELECT 1 FROM turns WHERE epoch = 2 AND id = ANY (%s::uuid[])"
    eventually(lambda: len(system.query(taken, turns)) >= 8, "eight are taken over")
    system.release_model()
    for session, turn in zip(sessions, turns, strict=True):
        assert system.finished(turn)["outcome"] == "completed"
        system.verify(session)
        assert system.calls(session) == 2
    epochs = system.query("SELECT epoch FROM turns WHERE id = ANY (%s::uuid[])", turns)
    assert [found["epoch"] for found in epochs] == [2] * 10


@pytest.mark.behaviour("DST-31", "DST-18")
def test_a_blocking_tool_that_never_returns_costs_a_thread_and_holds_up_neither_its_turn_nor_the_stop(
    system: StoppableSystem,
) -> None:
    """B07: our own deadline ends the turn; its place is free; the thread goes with the process."""
    session = system.create_session()
    worker = system.start_worker()
    turn = system.admit(session, 'Wait. [[offline: {"tool": "stick"}]]', agent="hasty")["turn_id"]
    state = system.finished(turn)
    assert (state["outcome"], state["code"]) == ("failed", "turn.timeout")
    after = system.admit(session, "And now?")["turn_id"]
    assert system.finished(after)["outcome"] == "completed"
    held = "SELECT held FROM workers WHERE pid = %s"
    eventually(lambda: [r["held"] for r in system.query(held, worker.pid)] == [0], "its places are free")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(EXIT_S) == 0
    system.verify(session)


@pytest.mark.behaviour("SHD-24", "DST-11")
def test_draining_one_pool_leaves_the_other_pools_and_the_producer_serving(system: StoppableSystem) -> None:
    turns = system.start_worker()
    upkeep = system.start_worker("upkeep")
    upkeep.send_signal(signal.SIGTERM)
    assert upkeep.wait(EXIT_S) == 0
    session = system.create_session()
    assert system.finished(system.admit(session, "One.")["turn_id"])["outcome"] == "completed"

    turns.send_signal(signal.SIGTERM)
    assert turns.wait(EXIT_S) == 0
    waiting = system.admit(session, "Two.")
    assert waiting["status"] == "ready"
    epochs = "SELECT max(expires_at) AS last FROM sweep_leases"
    [before] = system.query(epochs)
    eventually(lambda: system.query(epochs)[0]["last"] > before["last"], "the sweeps go on")
    system.successor.send_signal(signal.SIGCONT)
    assert system.finished(waiting["turn_id"])["outcome"] == "completed"

"""Persistent sessions as a new user opens them: over a database, with the official client, and what a turn costs there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from shared.agents import Agent
from shared.conversations.persistent import PersistentHistory
from shared.database.counters import UnitCount
from shared.database.pool import Database
from shared.domain.errors import ConfigError, HistoryModeConflict, SchemaOutOfRange
from shared.domain.ids import OwnerId, SessionId, new_run_id, new_turn_id
from shared.inbox.port import Delivery
from shared.inbox.postgres import PostgresInbox
from shared.models.scripted import ScriptedModel
from shared.sessions.log import NewSession
from shared.sessions.postgres import PostgresSessionLog
from shared.settings import load_settings
from shared.transfer.importing import import_session
from shared.turns.postgres import PostgresTurnQueue
from shared.turns.queue import Admission, AdmissionLimits
from tests.support.offline_model import offline_model
from tests.support.transfer_world import transfer_world
from workers.in_process import persistent_sessions

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "history.md"
AGENT = Agent("a", "Be brief.")
S = SessionId("s")
OWNER = OwnerId("in-process")


@pytest.mark.behaviour("THR-46", "THR-47", "THR-48", "THR-77")
async def test_a_program_that_starts_again_goes_on_where_the_last_one_ended(database_url: str) -> None:
    with offline_model() as server:
        settings = load_settings(
            {"DATABASE_URL": database_url, "OPENAI_API_KEY": "k", "OPENAI_BASE_URL": server.base_url}
        )
        async with persistent_sessions(settings=settings):
            first = await AGENT.run("My name is Ada.")
        async with persistent_sessions(settings=settings) as sessions:
            second = await AGENT.run("What is my name?", session_id=first.session_id)
            assert first.session_id is not None
            loaded = await sessions.history.load(first.session_id)
        texts = [message.text for message in loaded.prompt]
        assert texts == ["My name is Ada.", first.reply, "What is my name?", second.reply]
        calls = server.calls()
    assert len(calls) == 2


@pytest.mark.behaviour("THR-46")
def test_the_program_of_the_page_runs_as_it_stands(database_url: str, tmp_path: Path) -> None:
    [program, rule] = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    with offline_model("--delay-ms", "0") as offline:
        own = {name: value for name, value in os.environ.items() if not name.startswith("TURNKEEPER_")}
        ran = subprocess.run(
            [sys.executable, "-c", f"{program}\n{rule}"],
            env=own
            | {"DATABASE_URL": database_url, "OPENAI_API_KEY": "offline", "PYTHONPATH": str(ROOT)}
            | {"OPENAI_BASE_URL": offline.base_url},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.endswith(" 4\n"), "two messages, two answers"


async def turn_cost(database: Database, text: str) -> dict[str, UnitCount]:
    database.counters.reset()
    async with persistent_sessions(
        log=PostgresSessionLog(database), model=ScriptedModel([text]), model_name="m"
    ):
        await AGENT.run(text, session_id=S)
    return dict(database.counters.snapshot())


@pytest.mark.behaviour("THR-50", "THR-98", "THR-65")
async def test_a_whole_turn_is_one_commit_and_two_reads_however_old_its_session_is(database_url: str) -> None:
    database = Database(database_url, connections=2)
    await database.open()
    try:
        history = PersistentHistory(PostgresSessionLog(database), OWNER)
        first = await turn_cost(database, "one")
        assert {name: (c.statements, c.commits) for name, c in first.items()} == {
            "session.head": (1, 0),
            "session.retain": (1, 1),
        }
        for n in range(50):
            cost = await turn_cost(database, f"turn {n}")
            assert {name: (c.statements, c.commits) for name, c in cost.items()} == {
                "session.head": (1, 0),
                "session.read": (1, 0),
                "session.retain": (1, 1),
            }
            assert cost["session.read"].rows <= 48
        assert len((await history.load(S)).prompt) == 102
    finally:
        await database.close()


@pytest.mark.behaviour("THR-76")
async def test_a_session_of_the_queue_is_refused_before_the_model_is_asked(database_url: str) -> None:
    database = Database(database_url, connections=2)
    await database.open()
    try:
        log, queue, model = PostgresSessionLog(database), PostgresTurnQueue(database), ScriptedModel(["hi"])
        async with persistent_sessions(log=log, model=ScriptedModel(["hi"]), model_name="m"):
            kept = (await AGENT.run("hi")).session_id
        assert kept is not None
        admission = Admission(new_turn_id(), new_run_id(), kept, OWNER, {"text": "hi"})
        with pytest.raises(HistoryModeConflict):
            await queue.admit(admission, AdmissionLimits())
        queued = SessionId("queued")
        async with persistent_sessions(log=log, model=model, model_name="m"):
            await _admit(log, queue, queued)
            with pytest.raises(HistoryModeConflict):
                await AGENT.run("hi", session_id=queued)
        assert model.requests == []
    finally:
        await database.close()


async def _admit(log: PostgresSessionLog, queue: PostgresTurnQueue, session: SessionId) -> None:
    await log.create(NewSession(session, OWNER))
    await queue.admit(
        Admission(new_turn_id(), new_run_id(), session, OWNER, {"text": "hi"}), AdmissionLimits()
    )


@pytest.mark.behaviour("THR-76", "THR-107")
async def test_a_session_of_whole_turns_stays_one_over_export_and_import(
    database_url: str, tmp_path: Path
) -> None:
    async with transfer_world(database_url) as world:
        async with persistent_sessions(
            log=world.log, model=ScriptedModel(["hi"]), model_name="m"
        ) as sessions:
            await AGENT.run("hello", session_id=S)
            file = await world.export(S, tmp_path / "session")
            await world.log.remove(S, OWNER)
            with file.open("rb") as exported:
                await import_session(world.store, exported)
            assert [m.text for m in (await sessions.history.load(S)).prompt] == ["hello", "hi"]
        admission = Admission(new_turn_id(), new_run_id(), S, OWNER, {"text": "hi"})
        with pytest.raises(HistoryModeConflict):
            await PostgresTurnQueue(world.database).admit(admission, AdmissionLimits())


@pytest.mark.behaviour("THR-76")
async def test_a_delivery_to_a_session_of_whole_turns_is_refused_and_leaves_nothing(
    database_url: str,
) -> None:
    async with transfer_world(database_url) as world:
        async with persistent_sessions(log=world.log, model=ScriptedModel(["hi"]), model_name="m"):
            await AGENT.run("hello", session_id=S)
        inbox = PostgresInbox(world.database)
        with pytest.raises(HistoryModeConflict):
            await inbox.deliver(Delivery(S, OWNER, "i", "mail", "news"))
        head = await world.log.head(S, OWNER)
        assert (head.seq, head.inbox_waiting, await inbox.waiting(S, OWNER)) == (3, 0, [])


async def test_what_is_missing_is_said_before_anything_runs(database_url: str) -> None:
    empty = load_settings({})
    with pytest.raises(ConfigError) as raised:
        async with persistent_sessions(settings=empty, model=ScriptedModel([])):
            raise AssertionError("unreachable")
    assert raised.value.fields["field"] == "DATABASE_URL"
    with pytest.raises(ConfigError) as raised:
        async with persistent_sessions(database_url, settings=empty):
            raise AssertionError("unreachable")
    assert raised.value.fields["field"] == "OPENAI_API_KEY"
    other = database_url.rsplit("/", 1)[0] + "/postgres"
    with pytest.raises(SchemaOutOfRange):
        async with persistent_sessions(other, settings=empty, model=ScriptedModel([])):
            raise AssertionError("unreachable")

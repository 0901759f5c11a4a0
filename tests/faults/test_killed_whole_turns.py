"""A program killed around the append of its whole turn: nothing of the turn is kept, or all of it, once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from shared.conversations.persistent import LoadedSession, PersistentHistory
from shared.database.pool import Database
from shared.domain.errors import HistoryMissing
from shared.domain.ids import OwnerId, SessionId
from shared.sessions.postgres import PostgresSessionLog
from shared.sessions.records import verify_log
from shared.sessions.vocabulary_whole import WHOLE_TURN_KINDS

S = SessionId("kept")
OWNER = OwnerId("in-process")
WITHIN_S = 60


def program(url: str, text: str, *, failpoints: str = "") -> subprocess.CompletedProcess[str]:
    """Run the program to its end, whichever that is."""
    env = {**os.environ, "TURNKEEPER_ENV": "test", "TURNKEEPER_FAILPOINTS": failpoints}
    command = [sys.executable, "-m", "tests.support.whole_turn_program", url, S, text]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=WITHIN_S, check=False)


async def kept(url: str) -> tuple[list[str], LoadedSession]:
    """The kinds of the session's log, which verifies, and what a load finds. Raises ``HistoryMissing``."""
    database = Database(url, connections=2)
    await database.open()
    try:
        log = PostgresSessionLog(database)
        loaded = await PersistentHistory(log, OWNER).load(S)
        head, records = await log.head(S, OWNER), await log.read(S)
        verify_log(S, records, seq=head.seq, tail=head.tail)
        return [record.kind for record in records], loaded
    finally:
        await database.close()


@pytest.mark.behaviour("THR-58", "THR-T06")
async def test_a_program_killed_before_the_append_has_kept_nothing(database_url: str) -> None:
    killed = program(database_url, "one", failpoints="history.ready=kill")
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "")
    with pytest.raises(HistoryMissing):
        await kept(database_url)
    assert program(database_url, "two").stdout == "heard two\n"
    kinds, loaded = await kept(database_url)
    assert kinds == list(WHOLE_TURN_KINDS)
    assert loaded.prompt[0].text == "two"


@pytest.mark.behaviour("THR-59", "THR-73", "THR-77", "THR-T06")
async def test_a_program_killed_after_the_append_has_kept_the_whole_turn_and_the_next_one_goes_on(
    database_url: str,
) -> None:
    killed = program(database_url, "one", failpoints="history.committed=kill")
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "")
    kinds, loaded = await kept(database_url)
    assert kinds == list(WHOLE_TURN_KINDS)
    assert [message.role for message in loaded.prompt] == ["user", "assistant", "tool", "assistant"]
    assert program(database_url, "two").stdout == "heard two\n"
    kinds, loaded = await kept(database_url)
    assert kinds == [*WHOLE_TURN_KINDS, *WHOLE_TURN_KINDS]
    assert [m.text for m in loaded.prompt if m.role == "user"] == ["one", "two"]
    assert len({turn.turn_id for turn in loaded.history.turns}) == 2

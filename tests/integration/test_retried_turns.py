"""``turnkeeper retry turns``: what was given up with its workers runs again, resumed when it had opened."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest

from shared.domain.errors import InvalidInput, NotResumable
from shared.domain.ids import TurnId, new_turn_id
from shared.turns.postgres_retry import Retried, retry_turn
from tests.faults.world import OWNER, World, world
from tests.support.producer_process import run_cli


async def given_up(w: World, **given: Any) -> TurnId:
    """An open turn that ended because its worker was lost."""
    claim = await w.held_turn(on_worker_loss="interrupt", **given)
    await w.expire(claim.turn_id)
    await w.queue.reap()
    return claim.turn_id


async def spent(w: World) -> TurnId:
    """A turn that three processes were lost with before it opened."""
    session = await w.session()
    turn = (await w.admit(session, on_worker_loss="interrupt")).turn_id
    for n in range(4):
        if (await w.row(turn))["status"] == "ready":
            await w.claim(f"lost {n}")
            await w.expire(turn)
            await w.queue.reap()
    row = await w.row(turn)
    assert (row["status"], row["code"], row["number"]) == ("ended", "turn.lease", None)
    return turn


@pytest.mark.behaviour("DST-13", "RSM-06", "RSM-24", "RSM-40")
async def test_a_turn_that_had_opened_is_resumed_once_with_its_own_message(database_url: str) -> None:
    async with world(database_url) as w:
        turn = await given_up(w, message={"text": "count"}, command={"name": "go"}, meta={"a": 1}, priority=0)
        done = await retry_turn(w.database, turn)
        assert (done.resumes, done.repeated) == (1, False)
        claim = await w.claim("w2")
        assert (claim.turn_id, claim.resumes, claim.key) == (done.turn_id, 1, "resume:1")
        assert (claim.message, claim.command, claim.meta) == ({"text": "count"}, {"name": "go"}, {"a": 1})
        assert (claim.priority, claim.on_worker_loss, claim.owner) == (0, "interrupt", OWNER)
        assert await retry_turn(w.database, turn) == Retried(done.turn_id, 1, repeated=True)
        await w.open(claim)
        await w.expire(claim.turn_id)
        await w.queue.reap()
        again = await retry_turn(w.database, claim.turn_id)
        assert again.resumes == 2, "a resume that was lost is resumed itself"


@pytest.mark.behaviour("DST-13")
async def test_a_turn_that_never_opened_waits_again_behind_what_waits(database_url: str) -> None:
    async with world(database_url) as w:
        turn = await spent(w)
        session = (await w.row(turn))["session_id"]
        ahead = await w.admit(session)
        assert await retry_turn(w.database, turn) == Retried(turn)
        row = await w.row(turn)
        assert (row["status"], row["position"], row["outcome"], row["code"]) == ("queued", 3, None, None)
        assert (row["attempts"], row["suspect"], row["ended_at"]) == (0, False, None)
        for expected in (ahead.turn_id, turn):
            claim = await w.claim("w2")
            assert claim.turn_id == expected
            await w.open(claim)
            await w.end(claim)
        with pytest.raises(InvalidInput, match="not given up"):
            await retry_turn(w.database, turn)


@pytest.mark.behaviour("DST-13", "RSM-10")
async def test_a_turn_that_is_not_parked_or_whose_session_went_on_is_left_as_it_is(database_url: str) -> None:
    async with world(database_url) as w:
        turn = await given_up(w)
        await w.admit((await w.row(turn))["session_id"])
        claim = await w.claim("w2")
        await w.open(claim)
        await w.end(claim)
        with pytest.raises(NotResumable) as refused:
            await retry_turn(w.database, turn)
        assert refused.value.fields["reason"] == "superseded"
        for other in (claim.turn_id, new_turn_id()):
            with pytest.raises(InvalidInput):
                await retry_turn(w.database, other)
        [rows] = await w.rows("SELECT count(*) AS n FROM turns")
        assert rows["n"] == 2


@pytest.mark.behaviour("DST-13", "OPS-06")
async def test_the_command_puts_one_turn_back_or_all_that_can_be(database_url: str, tmp_path: Path) -> None:
    async with world(database_url) as w:
        first, second, third = await given_up(w), await given_up(w), await spent(w)

        async def retry(*words: str) -> subprocess.CompletedProcess[str]:
            command = ("retry", "turns", *words)
            return await asyncio.to_thread(run_cli, *command, cwd=tmp_path, DATABASE_URL=database_url)

        assert "resumes it" in (await retry(str(first))).stdout
        assert "was retried before" in (await retry(str(first))).stdout
        assert (await retry("--all")).stdout == "2 put back\n"
        assert (await w.row(third))["status"] == "ready"
        found = await w.rows("SELECT resumes FROM turns WHERE resumes IS NOT NULL ORDER BY admitted_at")
        assert [row["resumes"] for row in found] == [first, second]
        for words, said in ((("x",), "no turn"), ((), "--all"), ((str(new_turn_id()),), "not given up")):
            refused = await retry(*words)
            assert (refused.returncode, said in refused.stderr) == (2, True), refused.stderr

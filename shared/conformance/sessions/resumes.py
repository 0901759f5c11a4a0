"""Checks of sessions: a turn that continues a cancelled or interrupted one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any, Final

from shared.conformance.check import check, checks_of, outcomes, refused, require, same
from shared.conformance.sessions.stage import (
    COMPLETED,
    FIXED,
    PROCESS,
    TTL_S,
    SessionsSubject,
    Stage,
    new_turn,
    stage,
    write,
)
from shared.domain.errors import (
    KeyConflict,
    NotResumable,
    RunIdReused,
    SessionBusy,
    TurnClosed,
    TurnDuplicate,
    TurnkeeperError,
)
from shared.domain.ids import TurnId
from shared.host.port import Sessions
from shared.turns.admission import TurnToAdmit


async def _cut(s: Stage, **given: Any) -> tuple[int, TurnId]:
    """Begin a turn that is cancelled before it ends; return its number and id."""
    async with s.sessions.begin(s.address, new_turn(**given)) as writer:
        admitted = writer.admitted
        same(await s.other.cancel(s.address, admitted.number), True, "it is cancelled")
    return admitted.number, admitted.turn_id


async def _refused(s: Stage, error: type[TurnkeeperError], promise: str, **given: Any) -> None:
    fields = {"reason": given.pop("reason")} if "reason" in given else {}
    async with refused(error, promise, **fields), s.other.begin(s.address, new_turn(**given)):
        require(False, "the block never runs")


async def _leave_interrupted(sessions: Sessions, s: Stage) -> None:
    """Cancel the code that holds a turn."""

    async def hold() -> None:
        async with sessions.begin(s.address, new_turn()):
            held.set()
            await asyncio.Event().wait()

    held = asyncio.Event()
    holding = asyncio.create_task(hold())
    await held.wait()
    holding.cancel()
    await asyncio.wait({holding})


@check(
    "a resume is the user's next turn, and its turn.started and its writer say what it continues",
    "RSM-16",
    "RSM-17",
    "KIT-43",
    "SES-130",
)
async def resuming(subject: SessionsSubject) -> None:
    s = await stage(subject)
    await _cut(s)
    async with s.other.begin(s.address, new_turn("go on", resumes=1)) as writer:
        same((writer.admitted.number, writer.admitted.origin), (2, "user"), "a user's turn")
        same(writer.admitted.resumes, 1, "its writer says what it continues")
        await writer.end(COMPLETED)
    first, second = await s.sessions.read(s.address, kinds=["turn.started"])
    same((second.turn, second.data["resumes"]), (2, 1), "and so does its first record")
    require("resumes" not in first.data, "another turn's says nothing")
    async with s.sessions.begin(s.address, new_turn()) as writer:
        same(writer.admitted.resumes, None, "nor does a plain turn")
        await writer.end(COMPLETED)


@check(
    "what was interrupted can be resumed, and what was left unended or was answered cannot",
    "RSM-03",
    "RSM-10",
    "RSM-11",
    "KIT-43",
)
async def endings(subject: SessionsSubject) -> None:
    s = await stage(subject)
    await _leave_interrupted(s.sessions, s)
    await s.run_turn(s.other, resumes=1)
    await _refused(s, NotResumable, "its resume answered it", resumes=1, reason="superseded")
    await _refused(s, NotResumable, "which completed", resumes=2, reason="finished")
    async with s.sessions.begin(s.address, new_turn()):
        pass  # turn.unended
    await _refused(s, NotResumable, "an unended scope failed", resumes=3, reason="finished")
    same(
        [end[:2] for end in await s.ends()],
        [(1, "interrupted"), (2, "completed"), (3, "failed")],
        "three turns",
    )


@check(
    "resumed, cancelled, resumed again under another key, then resumed itself: each finds its own",
    "RSM-41",
    "RSM-44",
    "RSM-45",
    "RSM-46",
    "KIT-43",
)
async def again(subject: SessionsSubject) -> None:
    s = await stage(subject)
    await _cut(s)
    _, first = await _cut(s, key="resume:1", resumes=1)
    await _refused(s, TurnDuplicate, "the same resume once more", key="resume:1", resumes=1)
    await _refused(s, KeyConflict, "its key without what it continues", key="resume:1")
    await _refused(s, KeyConflict, "its key with another message", text="other", key="resume:1", resumes=1)
    number, second = await _cut(s, key="resume:1:2", resumes=1)
    same(number, 3, "under a new key it is a new turn")
    await s.run_turn(key="resume:3", resumes=3)
    found = [await s.other.lookup(s.address, key) for key in ("resume:1", "resume:1:2", "resume:4")]
    same(found, [first, second, None], "each key finds its turn")
    same([end[1] for end in await s.ends()], ["cancelled"] * 3 + ["completed"], "four turns ran")


@check(
    "what names no turn is missing before a host's admission is asked, and stores nothing",
    "RSM-13",
    "RSM-14",
    "KIT-43",
)
async def no_number(subject: SessionsSubject) -> None:
    asked: list[TurnToAdmit] = []

    class Noting:
        async def admit(self, turn: TurnToAdmit, proceed: Callable[[], Awaitable[None]]) -> None:
            asked.append(turn)
            await proceed()

    s = await stage(subject)
    await _cut(s)
    sessions = await subject.open(FIXED, admission=Noting())
    before = await s.kinds()
    for value in (0, -1, 1.5, 1.0, math.nan, True, "1", "3", 2**63):
        turn = new_turn(key=" no key ", resumes=value)
        async with refused(NotResumable, f"{value!r}", reason="missing"), sessions.begin(s.address, turn):
            require(False, "the block never runs")
    same((asked, await s.kinds()), ([], before), "nobody was asked, nothing is stored")
    absent = new_turn(resumes=7)
    async with (
        refused(NotResumable, "one that is not there", reason="missing"),
        sessions.begin(s.address, absent),
    ):
        require(False, "the block never runs")
    asked.clear()
    async with sessions.begin(s.address, new_turn(resumes=1)) as writer:
        same([turn.resumes for turn in asked], [1], "the host is shown what a turn continues")
        await writer.end(COMPLETED)


@check("a turn whose holder stopped is reaped by the begin that resumes it, in one go", "RSM-06", "KIT-43")
async def reaping(subject: SessionsSubject) -> None:
    for ownership in (FIXED, PROCESS):
        s = await stage(subject, ownership)
        async with s.sessions.begin(s.address, new_turn()) as old:
            await write(old, 1)
            await _refused(s, SessionBusy, "it is held", resumes=1)
            subject.stop(s.sessions)
            await subject.advance(TTL_S + 1)
            same(await s.run_turn(s.other, resumes=1), 2, "it is resumed")
            same(
                await s.ends(),
                [(1, "interrupted", "turn.lease"), (2, "completed", None)],
                "after its reaping",
            )
            async with refused(TurnClosed, "its holder wakes up", reason="interrupted"):
                await write(old, 2)
        same(await s.notes(), [1], "and has stored nothing since")


@check("a fork's inherited turns are its parent's to resume", "RSM-08", "KIT-43")
async def forked(subject: SessionsSubject) -> None:
    s = await stage(subject)
    await _cut(s)
    child = await s.sessions.fork(s.address, inherit=True)
    inherited = new_turn(resumes=1)
    async with (
        refused(NotResumable, "not in the fork", reason="missing"),
        s.sessions.begin(child.address, inherited),
    ):
        require(False, "the block never runs")
    same((await s.sessions.view(child.address)).seq, 0, "nothing is stored there")
    same(await s.run_turn(resumes=1), 2, "the parent's own can be")


@check(
    "a refused resume takes neither key nor run id, and each try needs a run of its own",
    "RSM-39",
    "RSM-43",
    "KIT-43",
)
async def refusals(subject: SessionsSubject) -> None:
    s = await stage(subject)
    await s.run_turn()
    async with s.sessions.begin(s.address, new_turn()) as writer:
        run = writer.admitted.run_id
        await s.other.cancel(s.address, 2)
    free = type(run)(f"{run}-2")
    await _refused(s, NotResumable, "not this one", resumes=1, key="k", run_id=free, reason="superseded")
    await _refused(s, RunIdReused, "nor with a run that was used", resumes=2, key="k", run_id=run)
    same(await s.run_turn(resumes=2, key="k", run_id=free), 3, "the key and the other run are free")


@check(
    "of two resumes of one turn at once one begins, and the other is busy, a duplicate or superseded",
    "RSM-40",
    "KIT-43",
)
async def race(subject: SessionsSubject) -> None:
    for key in ("resume:1", None):
        s = await stage(subject)
        await _cut(s)
        found = await outcomes([s.run_turn(one, resumes=1, key=key) for one in (s.sessions, s.other)])
        same(sum(isinstance(one, int) for one in found), 1, "one begins")
        allowed = (TurnDuplicate,) if key else (SessionBusy, NotResumable)
        same(sum(isinstance(one, allowed) for one in found), 1, f"the other met one of {allowed}")
        same(
            [turn for turn, kind in await s.kinds() if kind == "turn.started"], [1, 2], "one turn was stored"
        )


CHECKS: Final = checks_of(globals())

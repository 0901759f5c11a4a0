"""Checks of sessions: who holds a turn, when nobody does, and what closes it then."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Final

from shared.conformance.check import check, checks_of, refused, require, same
from shared.conformance.sessions.stage import (
    COMPLETED,
    EXTENDED,
    FIXED,
    PROCESS,
    TTL_S,
    SessionsSubject,
    Stage,
    new_turn,
    stage,
    write,
)
from shared.domain.errors import SessionBusy, TurnClosed
from shared.host.port import Sessions

LATE: Final = [(1, "interrupted", "turn.lease")]


@check(
    "a lease that ran out reads closed and refuses its holder; the next begin closes the turn, no read does",
    "SES-84", "SES-86", "SES-121", "SES-122", "SES-124", "SHD-40", "KIT-08", "KIT-41", "KIT-42", "KIT-46", "KIT-50",
)  # fmt: skip
async def lease_passes(subject: SessionsSubject) -> None:
    s = await stage(subject, FIXED)
    async with s.sessions.begin(s.address, new_turn()) as writer:
        await write(writer, 1)
        await subject.advance(TTL_S - 10)
        await write(writer, 2)
        await s.require_open(1)
        await _require_busy(s, s.other)
        await subject.advance(20)
        before = await s.kinds()
        await s.require_open(None)
        await s.other.list(s.owner)
        await s.other.history(s.address)
        same(await s.kinds(), before, "reading closed nothing")
        async with refused(TurnClosed, "the holder writes no more", reason="interrupted"):
            await write(writer, 3)
        same(await s.run_turn(s.other), 2, "the next one begins")
        async with refused(TurnClosed, "its end is not stored", reason="interrupted"):
            await writer.end(COMPLETED)
    same(await s.ends(), [*LATE, (2, "completed", None)], "one end each")
    same(await s.notes(), [1, 2], "nothing late is stored")


@check(
    "under on-commit a write renews the lease, and a silence longer than it loses the turn",
    "SES-87",
    "SES-91",
    "KIT-45",
)
async def write_renews(subject: SessionsSubject) -> None:
    s = await stage(subject, EXTENDED)
    async with s.sessions.begin(s.address, new_turn()) as writer:
        for n in range(3):
            await subject.advance(TTL_S - 10)
            await write(writer, n)
        await s.require_open(1)
        await subject.advance(TTL_S + 10)
        async with refused(TurnClosed, "it wrote nothing for too long", reason="interrupted"):
            await write(writer, "late")
    same(await s.run_turn(s.other), 2, "the next one begins")
    same(await s.ends(), [*LATE, (2, "completed", None)], "how the first ended")


@check(
    "cancelling a turn that nobody holds ends it as a reap does, and takes no effect as a cancel",
    "SES-128", "SES-129", "KIT-44",
)  # fmt: skip
async def cancel_unheld(subject: SessionsSubject) -> None:
    for ownership in (FIXED, PROCESS):
        s = await stage(subject, ownership)
        async with AsyncExitStack() as scope:
            await scope.enter_async_context(s.sessions.begin(s.address, new_turn()))
            await _lose(s)
            same(await s.other.cancel(s.address, 1), False, "it is no cancel")
            same(await s.ends(), LATE, "it is reaped")


@check(
    "a turn that a process holds is busy while that runs, however long, and is closed at the first touch after it",
    "SES-103", "SES-105", "SES-106", "SHD-41", "KIT-42", "KIT-46",
)  # fmt: skip
async def process_dies(subject: SessionsSubject) -> None:
    s = await stage(subject, PROCESS)
    async with AsyncExitStack() as scope:
        writer = await scope.enter_async_context(s.sessions.begin(s.address, new_turn()))
        await subject.advance(100 * TTL_S)
        await write(writer, 1)
        await s.require_open(1)
        await _require_busy(s, s.other)
        subject.stop(s.sessions)
        same((await s.other.view(s.address)).open, None, "it reads closed")
        same(await s.ends(), [], "a read closes nothing")
        same(await s.run_turn(s.other), 2, "the next one begins")
        async with refused(TurnClosed, "whoever holds it after all is refused", reason="interrupted"):
            await write(writer, 2)
    same(await s.ends(), [*LATE, (2, "completed", None)], "how they ended")


@check(
    "a turn is judged as it was taken: a lease holds under a process-owned instance until it runs out",
    "SES-113", "SES-114", "SES-115", "KIT-47",
)  # fmt: skip
async def leased_under_process(subject: SessionsSubject) -> None:
    s = await stage(subject, FIXED, PROCESS)
    async with s.sessions.begin(s.address, new_turn()):
        subject.stop(s.sessions)
        await _require_busy(s, s.other)
        same(await s.other.cancel(s.address, 2), False, "no such turn")
        await subject.advance(TTL_S + 10)
        same(await s.run_turn(s.other), 2, "after the lease the next one begins")
    same(await s.ends(), [*LATE, (2, "completed", None)], "how they ended")


@check(
    "a turn is judged as it was taken: a process holds under a leased instance while it runs",
    "SES-113", "SES-114", "SES-116", "KIT-47",
)  # fmt: skip
async def process_under_lease(subject: SessionsSubject) -> None:
    s = await stage(subject, PROCESS, FIXED)
    async with s.sessions.begin(s.address, new_turn()):
        await subject.advance(2 * TTL_S)
        await s.require_open(1)
        await _require_busy(s, s.other)
        subject.stop(s.sessions)
        same(await s.run_turn(s.other), 2, "after it the next one begins")
    same(await s.ends(), [*LATE, (2, "completed", None)], "how they ended")


@check("a holder on another host cannot be asked and holds, under either mode", "SES-107", "SES-117")
async def another_host(subject: SessionsSubject) -> None:
    s = await stage(subject, PROCESS)
    away = await subject.open(PROCESS, host="away")
    async with away.begin(s.address, new_turn()) as writer:
        subject.stop(away)
        await subject.advance(2 * TTL_S)
        await s.require_open(1)
        for sessions in (s.other, await subject.open(FIXED)):
            await _require_busy(s, sessions)
        same(await s.other.cancel(s.address, 1), True, "it can be cancelled")
        async with refused(TurnClosed, "which is refused", reason="cancelled"):
            await write(writer, 1)


async def _lose(s: Stage) -> None:
    s.subject.stop(s.sessions)
    await s.subject.advance(TTL_S + 10)


async def _require_busy(s: Stage, sessions: Sessions) -> None:
    before = await s.kinds()
    async with refused(SessionBusy, "somebody holds the turn"), sessions.begin(s.address, new_turn()):
        require(False, "the block never runs")
    same(await s.kinds(), before, "nothing is stored")


CHECKS: Final = checks_of(globals())

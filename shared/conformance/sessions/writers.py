"""Checks of sessions: what a turn's writer stores, how it ends, and what ends it from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from shared.conformance.check import check, checks_of, refused, require, same
from shared.conformance.sessions.stage import (
    COMPLETED,
    KIND,
    SessionsSubject,
    drafts,
    new_turn,
    note,
    stage,
    write,
)
from shared.domain.errors import ReservedKind, SessionMissing, TurnClosed
from shared.host.port import Decision
from shared.sessions.records import Record
from shared.sessions.vocabulary import RESERVED_KINDS
from shared.turns.queue import Ending


@check("what is flushed is stored for every instance, in the order it was queued", "SES-48", "SES-50")
async def flushed(subject: SessionsSubject) -> None:
    s = await stage(subject)
    async with s.sessions.begin(s.address, new_turn()) as writer:
        await writer.append(drafts(1, 2))
        looked = asyncio.create_task(writer.write(s.notes))
        await asyncio.sleep(0)
        await writer.append(drafts(3))
        same(await writer.flush(), 4, "the log's seq")
        same(await looked, [1, 2], "a write runs after what was queued before it, and before the rest")
        same(await s.notes(), [1, 2, 3], "everything is there")
        await writer.end(COMPLETED)


@check("a turn's transaction decides again with what another instance wrote", "SES-49")
async def writer_transacts(subject: SessionsSubject) -> None:
    s = await stage(subject)
    seen: list[list[object]] = []

    async def decide(records: Sequence[Record]) -> Decision:
        seen.append([r.data["n"] for r in records])
        if len(seen) == 1:
            await s.other.transact(s.address, lambda _: Decision(drafts("theirs")))
        return Decision(drafts("ours"), answer=len(seen))

    async with s.sessions.begin(s.address, new_turn()) as writer:
        same(await writer.transact(decide, kinds=[KIND]), 2, "the second decision holds")
        await writer.end(COMPLETED)
    same(seen, [[], ["theirs"]], "it was asked with what others wrote")
    same(await s.notes(), ["theirs", "ours"], "each is stored once")


@check(
    "an end closes the turn once, with its reason, and the session takes the next",
    "SES-51",
    "SES-146",
    "KIT-44",
)
async def ends(subject: SessionsSubject) -> None:
    s = await stage(subject)
    endings = [
        COMPLETED,
        Ending("partial"),
        Ending("failed", "turn.failed", "why"),
        Ending("cancelled"),
        Ending("interrupted", "turn.interrupted"),
    ]
    for ending in endings:
        async with s.sessions.begin(s.address, new_turn()) as writer:
            await writer.append(drafts("last"))
            ended = await writer.end(ending, drafts("with the end"))
            same(ended.pending, 0, "nothing waits")
            same(await writer.closed(), "ended", "the writer is closed")
            async with refused(TurnClosed, "its end is stored", reason="ended"):
                await writer.append(drafts("after"))
            async with refused(TurnClosed, "it ends once", reason="ended"):
                await writer.end(COMPLETED)
        await s.require_open(None)
    same(await s.ends(), [(n + 1, e.outcome, e.code) for n, e in enumerate(endings)], "what they say")
    same(await s.notes(), ["last", "with the end"] * len(endings), "everything before the end, nothing after")


@check(
    "a scope that closes unended ends its turn: unended, or interrupted when it was cancelled",
    "SES-54", "SES-55", "SHD-33", "KIT-44",
)  # fmt: skip
async def scopes(subject: SessionsSubject) -> None:
    s = await stage(subject)
    async with s.sessions.begin(s.address, new_turn()) as writer:
        await writer.append(drafts(1))
    try:
        async with s.sessions.begin(s.address, new_turn()) as writer:
            await writer.append(drafts(2))
            raise LookupError("the host's own")
    except LookupError:
        pass
    begun = asyncio.Event()

    async def hold() -> None:
        async with s.sessions.begin(s.address, new_turn()) as writer:
            await writer.append(drafts(3))
            begun.set()
            await asyncio.Event().wait()

    holding = asyncio.create_task(hold())
    await begun.wait()
    holding.cancel()
    await asyncio.wait([holding])
    require(holding.cancelled(), "the cancellation goes on")
    same(
        await s.ends(),
        [
            (1, "failed", "turn.unended"),
            (2, "failed", "turn.unended"),
            (3, "interrupted", "turn.interrupted"),
        ],
        "how they ended",
    )
    same(await s.notes(), [1, 2, 3], "what was queued is stored first")


@check("every reserved kind is refused, with all of its call", "SES-59", "SES-63", "SES-143", "KIT-50")
async def reserved(subject: SessionsSubject) -> None:
    s = await stage(subject)
    async with s.sessions.begin(s.address, new_turn()) as writer:
        for kind in sorted(RESERVED_KINDS):
            batch = [note("good"), note(kind=kind)]
            decision = Decision(batch)
            async with refused(ReservedKind, f"append of {kind}"):
                await writer.append(batch)
            async with refused(ReservedKind, f"a turn's transaction of {kind}"):
                await writer.transact(_always(decision))
            async with refused(ReservedKind, f"a transaction of {kind}"):
                await s.sessions.transact(s.address, _always(decision))
        await writer.end(COMPLETED)
    same(await s.kinds(), [(1, "turn.started"), (1, "turn.ended")], "nothing of those calls is stored")


@check(
    "a cancel ends exactly that turn, durably; its holder is told at once here, and at its next commit elsewhere",
    "SES-125", "SES-126", "SES-127", "KIT-44", "KIT-50",
)  # fmt: skip
async def cancels(subject: SessionsSubject) -> None:
    s = await stage(subject)
    for number, canceller in ((1, s.sessions), (2, s.other)):
        async with s.sessions.begin(s.address, new_turn()) as writer:
            await write(writer, number)
            same(await canceller.cancel(s.address, number + 1), False, "another turn is not ended")
            same(await canceller.cancel(s.address, number), True, "it took effect")
            await s.require_open(None)
            if canceller is s.sessions:
                same(await writer.closed(), "cancelled", "told at once")
            async with refused(TurnClosed, "its writes are refused", reason="cancelled"):
                await write(writer, "late")
            same(await writer.closed(), "cancelled", "told by its commit")
            async with refused(TurnClosed, "its end too", reason="cancelled"):
                await writer.end(COMPLETED)
        same(await canceller.cancel(s.address, number), False, "it had ended")
    same(await s.ends(), [(1, "cancelled", None), (2, "cancelled", None)], "one end each")
    same(await s.notes(), [1, 2], "nothing of them is stored later")
    same(await s.run_turn(), 3, "the session goes on")


@check(
    "removing a session closes its open turn as removed and takes every descendant with it",
    "SES-12", "SES-75", "KIT-44",
)  # fmt: skip
async def removes(subject: SessionsSubject) -> None:
    s = await stage(subject)
    await s.run_turn()
    child = await s.sessions.fork(s.address, inherit=True)
    grandchild = await s.sessions.fork(child.address, inherit=True)
    kept = await s.sessions.create(s.owner)
    async with (
        s.sessions.begin(s.address, new_turn()) as here,
        s.other.begin(child.address, new_turn()) as there,
    ):
        await write(here, 1)
        await write(there, 1)
        removed = await s.sessions.remove(s.address)
        same(set(removed), {s.address.id, child.address.id, grandchild.address.id}, "what is removed")
        same(removed[0], s.address.id, "the session first")
        same(await here.closed(), "removed", "told at once")
        for writer in (here, there):
            async with refused(TurnClosed, "nothing is left to write", reason="removed"):
                await write(writer, 2)
    for gone in removed:
        async with refused(SessionMissing, "it is gone"):
            await s.other.view(type(s.address)(gone, s.owner))
    same([v.address for v in await s.other.list(s.owner)], [kept.address], "no other is touched")
    same(await s.sessions.remove(s.address), [], "there is nothing more to remove")


def _always(decision: Decision) -> Callable[[Sequence[Record]], Decision]:
    return lambda _records: decision


CHECKS: Final = checks_of(globals())

"""Checks of sessions: transactions outside a turn, forks, changes, admission, and what a process has in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Final

from shared.conformance.check import check, checks_of, refused, require, same
from shared.conformance.sessions.stage import (
    COMPLETED,
    FIXED,
    KIND,
    SessionsSubject,
    drafts,
    new_turn,
    stage,
    write,
)
from shared.domain.errors import KeyConflict, SessionBusy, SessionContended, TurnDuplicate, TurnRefused
from shared.host.port import Decision
from shared.sessions.records import Record
from shared.turns.admission import TurnToAdmit

INCREMENTS: Final = 6


@check("of transactions from two instances at once none is lost", "SES-62", "SES-64", "SES-154")
async def transacts(subject: SessionsSubject) -> None:
    s = await stage(subject)

    def increment(records: Sequence[Record]) -> Decision:
        n = len(records) + 1
        return Decision(drafts(n), answer=n)

    both = (s.sessions, s.other)
    answers = await asyncio.gather(
        *(both[n % 2].transact(s.address, increment, kinds=[KIND]) for n in range(INCREMENTS))
    )
    same(sorted(answers), [*range(1, INCREMENTS + 1)], "each decided once more than the one before")
    same(await s.notes(), [*range(1, INCREMENTS + 1)], "each is stored once")
    same(
        await s.sessions.transact(s.address, lambda r: Decision(answer=len(r)), after=4),
        2,
        "it may only look",
    )
    async with s.other.begin(s.address, new_turn()) as writer:
        await s.sessions.transact(s.address, lambda _: Decision(drafts("beside")))
        await write(writer, "inside")
        await writer.end(COMPLETED)
    same(
        (await s.kinds())[-3:],
        [(None, KIND), (1, KIND), (1, "turn.ended")],
        "beside a turn it belongs to none",
    )


@check("a transaction whose commit keeps losing is contended and stores nothing", "SES-65", "KIT-50")
async def contended(subject: SessionsSubject) -> None:
    s = await stage(subject)
    asked: list[int] = []

    async def decide(records: Sequence[Record]) -> Decision:
        asked.append(len(records))
        await s.other.transact(s.address, lambda _: Decision(drafts("theirs")))
        return Decision(drafts("ours"))

    async with refused(SessionContended, "others are always first"):
        await s.sessions.transact(s.address, decide, kinds=[KIND])
    same(asked, [*range(9)], "planned again eight times, each time from the new head")
    require("ours" not in await s.notes(), "nothing is stored")


@check(
    "a fork that inherits has its parent's history up to the last closed turn, and counts on",
    "SES-71",
    "SES-72",
)
async def forks(subject: SessionsSubject) -> None:
    s = await stage(subject)
    await s.run_turn()
    await s.run_turn()
    async with s.sessions.begin(s.address, new_turn()) as writer:
        await write(writer, "of the open turn")
        heir = await s.other.fork(s.address, inherit=True)
        apart = await s.other.fork(s.address, inherit=False)
        await writer.end(COMPLETED)
    same((heir.turns, apart.turns, heir.seq), (2, 0, 0), "where their turns count on from")
    closed = [(1, "turn.started"), (1, "turn.ended"), (2, "turn.started"), (2, "turn.ended")]
    same([(r.turn, r.kind) for r in await s.sessions.history(heir.address)], closed, "what it inherits")
    same(list(await s.sessions.history(apart.address)), [], "what the other does")
    async with s.sessions.begin(heir.address, new_turn()) as writer:
        same(writer.admitted.number, 3, "its first turn")
        grandchild = await s.other.fork(heir.address, inherit=True)
        await writer.end(COMPLETED)
    same(
        (grandchild.turns, await s.kinds(heir.address)),
        (2, [(3, "turn.started"), (3, "turn.ended")]),
        "its own log",
    )
    own = [(r.turn, r.kind) for r in await s.sessions.history(heir.address, kinds=["turn.started"])]
    same(
        own, [(1, "turn.started"), (2, "turn.started"), (3, "turn.started")], "its history with its own turns"
    )
    same(
        [(r.turn, r.kind) for r in await s.sessions.history(grandchild.address)],
        closed,
        "through two parents",
    )


@check("an instance signals the commits that it makes", "SES-68")
async def changes(subject: SessionsSubject) -> None:
    s = await stage(subject)
    told: list[int] = []

    async def listen() -> None:
        async for seq in s.sessions.changes(s.address):
            told.append(seq)
            heard.set()

    heard = asyncio.Event()
    listening = asyncio.create_task(listen())
    for _ in range(100):  # until it listens: what was committed before is not told
        await s.sessions.transact(s.address, lambda _: Decision(drafts(1)))
        await asyncio.sleep(0)
        if heard.is_set():
            break
    require(heard.is_set(), "a transaction is told")
    async with s.sessions.begin(s.address, new_turn()) as writer:
        await write(writer, 1)
        ended = await writer.end(COMPLETED)
    while told[-1] != ended.seq:
        heard.clear()
        await heard.wait()
    same(told, sorted(told), "they only grow")
    await s.sessions.remove(s.address)
    await asyncio.wait_for(listening, 10)


class CountingAdmission:
    """Counts what it is asked, and refuses one session."""

    def __init__(self) -> None:
        self.refused: str | None = None
        self.asked = 0
        self.counted = 0

    async def admit(self, turn: TurnToAdmit, proceed: Callable[[], Awaitable[None]]) -> None:
        """Admit, count, or refuse."""
        self.asked += 1
        await proceed()
        if turn.session_id == self.refused:
            raise TurnRefused("not now", session=turn.session_id, reason="draining")
        self.counted += 1


@check(
    "a host's admission wraps the one commit that opens a turn; what fails inside it counts and opens nothing",
    "SES-132", "SES-133", "SES-135", "SES-136", "SHD-22", "SHD-23", "KIT-50",
)  # fmt: skip
async def admits(subject: SessionsSubject) -> None:
    s = await stage(subject)
    hook = CountingAdmission()
    guarded = await subject.open(FIXED, admission=hook)
    async with guarded.begin(s.address, new_turn(key="k")) as writer:
        await write(writer, 1)
        refusals = (
            (TurnDuplicate, new_turn(key="k")),
            (KeyConflict, new_turn("x", key="k")),
            (SessionBusy, new_turn()),
        )
        for error, turn in refusals:
            async with refused(error, "it fails inside"), guarded.begin(s.address, turn):
                require(False, "the block never runs")
        await write(writer, 2)
        await writer.end(COMPLETED)
    same((hook.asked, hook.counted), (4, 1), "one turn is counted, and none of its writes")
    hook.refused = s.address.id
    before = await s.kinds()
    async with (
        refused(TurnRefused, "the host says no", session=s.address.id, reason="draining"),
        guarded.begin(s.address, new_turn()),
    ):
        require(False, "the block never runs")
    same((await s.kinds(), (await s.other.view(s.address)).open), (before, None), "nothing is opened")


@check(
    "a begin counts from the moment it is asked for, and its turn until its scope closes",
    "SHD-01", "SHD-02", "SHD-03", "SHD-05", "SHD-07", "SHD-08", "KIT-48", "KIT-49",
)  # fmt: skip
async def activity(subject: SessionsSubject) -> None:
    s = await stage(subject)
    entered, gate = asyncio.Event(), asyncio.Event()

    class Slow:
        async def admit(self, turn: TurnToAdmit, proceed: Callable[[], Awaitable[None]]) -> None:
            entered.set()
            await gate.wait()
            await proceed()

    sessions = await subject.open(FIXED, admission=Slow())
    count, others = subject.activity(sessions), subject.activity(s.other)
    if count is None or others is None:
        return
    same((count.current.beginning, list(count.current.open)), (0, []), "nothing is in flight")
    async with AsyncExitStack() as first:
        opening = asyncio.create_task(first.enter_async_context(sessions.begin(s.address, new_turn())))
        await entered.wait()
        same((count.current.beginning, len(count.current.open)), (1, 0), "it waits for admission")
        gate.set()
        await (await opening).end(COMPLETED)
        same(
            (count.current.beginning, [t.turn for t in count.current.open]),
            (0, [1]),
            "ended, its scope is open",
        )
        async with sessions.begin(s.address, new_turn()) as second:
            found = count.current.open
            same([(t.session, t.turn) for t in found], [(s.address.id, 1), (s.address.id, 2)], "oldest first")
            require(found[0].since <= found[1].since, "since when each is open")
            await second.end(COMPLETED)
        same([t.turn for t in count.current.open], [1], "the other's scope closed")
    try:
        async with sessions.begin(type(s.address)(s.address.id, subject.new_owner()), new_turn()):
            require(False, "the block never runs")
    except Exception as error:
        require(type(error).__name__ == "SessionMissing", "a begin that fails")
    same((count.current.beginning, list(count.current.open)), (0, []), "nothing is left")
    async with s.sessions.begin(s.address, new_turn()) as writer:
        same(
            (list(count.current.open), list(others.current.open)),
            ([], []),
            "an instance counts its own alone",
        )
        await writer.end(COMPLETED)


CHECKS: Final = checks_of(globals())

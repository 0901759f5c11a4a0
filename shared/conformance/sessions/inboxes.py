"""Checks of sessions: deliveries, inbox turns, what becomes of their items, and drains."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from shared.conformance.check import check, checks_of, outcomes, refused, require, same
from shared.conformance.sessions.stage import (
    COMPLETED,
    FIXED,
    TTL_S,
    SessionsSubject,
    Stage,
    new_turn,
    stage,
    write,
)
from shared.domain.errors import (
    InboxFull,
    InvalidInput,
    KeyConflict,
    NothingPending,
    SessionBusy,
    SessionMissing,
    TurnRefused,
)
from shared.host.port import Drained, InboxTurn, SessionAddress, Sessions, TurnWriter
from shared.turns.admission import TurnToAdmit
from shared.turns.queue import Ending

MAX_PENDING: Final = 20
FAILED: Final = Ending("failed", "turn.failed", "why")
INTERRUPTED: Final = Ending("interrupted", "turn.interrupted")


async def deliver(s: Stage, *items: str, by: Sessions | None = None) -> None:
    """Deliver items, whose contents say which they are."""
    for item in items:
        delivered = await (by or s.other).deliver(
            s.address, id=item, source="kit", content=f"content of {item}"
        )
        same(delivered.duplicate, False, f"{item} is new")


async def inbox_turn(s: Stage, ending: Ending = COMPLETED, *notes: object) -> tuple[str, ...]:
    """Begin an inbox turn, write notes, end it; return the items that it claimed."""
    async with s.sessions.begin(s.address, InboxTurn()) as writer:
        if notes:
            await write(writer, *notes)
        await writer.end(ending)
        return tuple(writer.admitted.claimed)


async def pending(s: Stage) -> int:
    """Count what waits, as the other instance sees it."""
    return (await s.other.view(s.address)).pending


async def dropped(s: Stage) -> list[tuple[str, int]]:
    """Read which items were dropped, after how many attempts."""
    records = await s.other.read(s.address, kinds=["inbox.dropped"])
    return [(r.data["id"], r.data["attempts"]) for r in records]


async def nothing_pending(s: Stage) -> None:
    """Require that no inbox turn can begin."""
    async with refused(NothingPending, "no item waits"), s.sessions.begin(s.address, InboxTurn()):
        require(False, "the block never runs")


@check(
    "a delivery is one record and one waiting item, however often its id comes, from whichever instance",
    *("INB-01", "INB-02", "INB-04", "SES-152", "KIT-43"),
)
async def delivers_once(subject: SessionsSubject) -> None:
    s = await stage(subject)
    given: dict[str, Any] = {"id": "a", "source": "ci", "content": "Build 17 failed.\n"}
    both = (s.sessions, s.other)
    answers = await outcomes([both[n % 2].deliver(s.address, **given) for n in range(6)])
    same(sorted(a.duplicate for a in answers), [False] + [True] * 5, "one of them stored it")
    same({a.seq for a in answers}, {1}, "all of them answer its record")
    [record] = await s.other.read(s.address)
    same(
        (record.kind, record.turn, dict(record.data)),
        ("inbox.queued", None, {"v": 1, **given}),
        "what is stored, outside any turn",
    )
    same(await pending(s), 1, "one item waits")
    async with refused(KeyConflict, "the id with other content"):
        await s.sessions.deliver(s.address, **given | {"content": "other"})
    same(await inbox_turn(s), ("a",), "one turn answers it")
    same((await s.other.deliver(s.address, **given)).duplicate, True, "also after it was done")
    await nothing_pending(s)


@check("what cannot be delivered is refused with its field, and nothing is stored", "INB-01", "SES-35")
async def invalid_deliveries(subject: SessionsSubject) -> None:
    s = await stage(subject)
    good: dict[str, Any] = {"id": "a", "source": "ci", "content": "c"}
    for field, value in (("id", " a"), ("source", ""), ("content", "\x00"), ("meta", {"m": float("nan")})):
        try:
            await s.sessions.deliver(s.address, **good | {field: value})
            require(False, f"{field} is refused")
        except InvalidInput as error:
            require(error.field.startswith(field), f"the error names {field}, not {error.field}")
    foreign = SessionAddress(s.address.id, subject.new_owner())
    async with refused(SessionMissing, "another owner finds nothing"):
        await s.sessions.deliver(foreign, **good)
    async with refused(SessionMissing, "nor to drain"):
        await s.sessions.drain(foreign, _nothing)
    same((await s.kinds(), await pending(s)), ([], 0), "nothing is stored")


@check("one more item than may wait is refused, stores nothing and leaves the others", "INB-03", "KIT-43")
async def full(subject: SessionsSubject) -> None:
    s = await stage(subject)
    names = [f"item-{n}" for n in range(MAX_PENDING)]
    await deliver(s, *names)
    async with refused(InboxFull, "twenty wait"):
        await deliver(s, "one-more")
    same((len(await s.kinds()), await pending(s)), (MAX_PENDING, MAX_PENDING), "nothing of it is stored")
    same(await inbox_turn(s), tuple(names), "the twenty are answered, oldest first")
    await deliver(s, "one-more")
    same(await pending(s), 1, "then there is room")


@check(
    "an inbox turn claims every waiting item in its opening commit and is asked their contents",
    *("INB-07", "INB-08", "INB-09", "INB-10", "KIT-43", "KIT-50"),
)
async def claims(subject: SessionsSubject) -> None:
    s = await stage(subject)
    await nothing_pending(s)
    same(await s.kinds(), [], "a turn that cannot begin stores nothing")
    await deliver(s, "a", "b")
    async with s.sessions.begin(s.address, InboxTurn(meta={"by": "kit"})) as writer:
        admitted = writer.admitted
        started = (await s.other.read(s.address))[-1]
        held = dict(started.data)
        same((started.kind, held["origin"], held["claimed"]), ("turn.started", "inbox", ["a", "b"]), "opened")
        same(held["user_message"], {"text": "content of a\n\ncontent of b"}, "what it is asked")
        same(held["meta"], {"by": "kit"}, "the host's meta")
        same((admitted.origin, tuple(admitted.claimed)), ("inbox", ("a", "b")), "as the writer says")
        same(
            (admitted.message, admitted.meta), ({"text": held["user_message"]["text"]}, {"by": "kit"}), "too"
        )
        same(await pending(s), 0, "claimed items wait no more")
        async with refused(SessionBusy, "one turn at a time"), s.other.begin(s.address, InboxTurn()):
            require(False, "the block never runs")
        await writer.end(COMPLETED)
    await nothing_pending(s)
    same((await s.other.view(s.address)).title, None, "what others deliver is no title")


@check(
    "a user's turn goes before waiting items and claims none; its end counts them",
    *("INB-05", "INB-11", "INB-34", "SES-51", "KIT-43"),
)
async def users_first(subject: SessionsSubject) -> None:
    s = await stage(subject)
    await deliver(s, "a")
    async with s.sessions.begin(s.address, new_turn()) as writer:
        same((writer.admitted.origin, tuple(writer.admitted.claimed)), ("user", ()), "it claims none")
        await deliver(s, "b")
        same((await writer.end(COMPLETED)).pending, 2, "its end counts what waits")
    same(await inbox_turn(s), ("a", "b"), "the next inbox turn has both")


@check(
    "items are done with a turn that completed, was partial or was cancelled, and wait again after another",
    *("INB-12", "INB-13", "INB-14", "INB-15", "KIT-43"),
)
async def outcomes_of_claims(subject: SessionsSubject) -> None:
    s = await stage(subject)
    for n, ending in enumerate([COMPLETED, Ending("partial"), Ending("cancelled")]):
        await deliver(s, f"done-{n}")
        same(await inbox_turn(s, ending), (f"done-{n}",), "it is claimed")
        await nothing_pending(s)
    await deliver(s, "cancelled")
    async with s.sessions.begin(s.address, InboxTurn()) as writer:
        same(await s.other.cancel(s.address, writer.admitted.number), True, "cancelled by another instance")
    await nothing_pending(s)
    await deliver(s, "idle")
    for _ in range(3):
        same(await inbox_turn(s, INTERRUPTED), ("idle",), "nothing was written: no attempt is counted")
    same(await inbox_turn(s, INTERRUPTED, 1), ("idle",), "the first attempt")
    await deliver(s, "later")
    same(await inbox_turn(s, FAILED), ("idle", "later"), "the second of one, the first of the other")
    same((await dropped(s), await pending(s)), ([("idle", 2)], 1), "after two it is dropped")
    same([kind for _, kind in await s.kinds()][-2:], ["turn.ended", "inbox.dropped"], "after its turn's end")
    same(await inbox_turn(s), ("later",), "the other is answered")
    again = await s.other.deliver(s.address, id="idle", source="kit", content="content of idle")
    same(again.duplicate, True, "a dropped item is not delivered again")


@check("a turn whose holder stopped counts an attempt when the next delivery closes it", "INB-16", "INB-17")
async def lost_holders(subject: SessionsSubject) -> None:
    s = await stage(subject)
    await deliver(s, "a")
    async with s.sessions.begin(s.address, InboxTurn()):
        await subject.advance(TTL_S + 1)
        await deliver(s, "b")
    same(await s.ends(), [(1, "interrupted", "turn.lease")], "the delivery closed it")
    same(await pending(s), 2, "its item waits again")
    async with s.sessions.begin(s.address, InboxTurn()) as writer:
        await subject.advance(TTL_S + 1)
        same(await s.other.cancel(s.address, writer.admitted.number), False, "nobody held it: it is reaped")
    same((await dropped(s), await pending(s)), ([("a", 2)], 1), "that was the second attempt of the first")


@check(
    "a drain answers what waits, goes on while the end of its last turn counts more, and stops at its bound",
    *("INB-19", "INB-20", "INB-21", "INB-22", "INB-28", "INB-29", "INB-33", "KIT-43"),
)
async def drains(subject: SessionsSubject) -> None:
    s = await stage(subject)
    same(await s.sessions.drain(s.address, _nothing), Drained(0, 0, "empty"), "nothing waits")
    await deliver(s, "0")
    seen: list[tuple[tuple[str, ...], object]] = []

    async def run(writer: TurnWriter) -> None:
        seen.append((tuple(writer.admitted.claimed), writer.admitted.meta.get("by")))
        if len(seen) < 6:
            await deliver(s, f"{len(seen)}")

    meta = {"by": "drain"}
    same(await s.sessions.drain(s.address, run, meta=meta), Drained(3, 1, "max_turns"), "three turns")
    same(await s.sessions.drain(s.address, run, max_turns=1), Drained(1, 1, "max_turns"), "or as told")
    same(
        await s.sessions.drain(s.address, run), Drained(2, 0, "empty"), "the end that counts none is the last"
    )
    same([item for item, _ in seen], [(f"{n}",) for n in range(6)], "each item once")
    same([by for _, by in seen], ["drain"] * 3 + [None] * 3, "with its own meta")
    same({end[1:] for end in await s.ends()}, {("completed", None)}, "each ends completed")


@check(
    "a run that fails ends its turn by its error, one that interrupts itself counts an attempt: the item is dropped",
    *("INB-23", "INB-24", "INB-25", "INB-26"),
)
async def failing_runs(subject: SessionsSubject) -> None:
    s = await stage(subject)

    async def fail(writer: TurnWriter) -> None:
        raise LookupError("the host's own")

    async def interrupt_itself(writer: TurnWriter) -> None:
        task = asyncio.create_task(asyncio.sleep(3_600))  # only to be cancelled
        task.cancel()
        await task

    for n, (run, end) in enumerate(
        ((fail, ("failed", "turn.failed")), (interrupt_itself, ("interrupted", "turn.interrupted")))
    ):
        await deliver(s, f"item-{n}")
        same(await s.sessions.drain(s.address, run), Drained(2, 0, "empty"), "two attempts, no endless loop")
        same([e[1:] for e in (await s.ends())[-2:]], [end] * 2, "how its turns ended")
        same((await dropped(s))[-1], (f"item-{n}", 2), "then it is dropped")


@check(
    "a drain that is cancelled ends its turn as interrupted, and counts an attempt only if the turn wrote",
    "INB-27", "INB-15",
)  # fmt: skip
async def cancelled_drains(subject: SessionsSubject) -> None:
    s = await stage(subject)
    await deliver(s, "a")
    for attempts in (0, 0, 1, 2):
        begun = asyncio.Event()

        async def hang(writer: TurnWriter, writes: bool = attempts > 0, begun: asyncio.Event = begun) -> None:
            if writes:
                await write(writer, 1)
            begun.set()
            await asyncio.Event().wait()

        draining = asyncio.create_task(s.sessions.drain(s.address, hang))
        await begun.wait()
        draining.cancel()
        await asyncio.wait([draining])
        require(draining.cancelled(), "the cancellation goes on")
        same((await s.ends())[-1][1:], ("interrupted", "turn.interrupted"), "how its turn ended")
        same(await pending(s), 1 if attempts < 2 else 0, "the item waits again, until its second attempt")
    same(await dropped(s), [("a", 2)], "then it is dropped")


class Refusing:
    """A host that admits no inbox turn of one session."""

    def __init__(self) -> None:
        self.refused: str | None = None

    async def admit(self, turn: TurnToAdmit, proceed: Callable[[], Awaitable[None]]) -> None:
        """Refuse, or admit."""
        if turn.session_id == self.refused:
            raise TurnRefused("not now", session=turn.session_id, reason="draining")
        await proceed()


@check(
    "a drain beside an open turn, or one that the host refuses, runs nothing: items wait, nothing is counted",
    "INB-19", "SHD-22",
)  # fmt: skip
async def idle_drains(subject: SessionsSubject) -> None:
    s = await stage(subject)
    hook = Refusing()
    guarded = await subject.open(FIXED, admission=hook)
    async with s.sessions.begin(s.address, new_turn()) as writer:
        await deliver(s, "a")
        same(await guarded.drain(s.address, _never), Drained(0, 1, "busy"), "a turn is open")
        await writer.end(COMPLETED)
    hook.refused = s.address.id
    before = await s.kinds()
    for _ in range(3):
        same(await guarded.drain(s.address, _never), Drained(0, 1, "refused"), "the host says no")
    same((await s.kinds(), await dropped(s)), (before, []), "nothing is opened or counted")
    hook.refused = None
    same(await guarded.drain(s.address, _nothing), Drained(1, 0, "empty"), "then it is answered")


@check("of two drains at once each item is answered by one", "INB-19", "INB-31")
async def two_drains(subject: SessionsSubject) -> None:
    s = await stage(subject)
    seen: list[str] = []

    async def run(writer: TurnWriter) -> None:
        seen.extend(writer.admitted.claimed)

    for n in range(5):
        await asyncio.gather(
            deliver(s, f"{n}a", by=s.sessions),
            s.sessions.drain(s.address, run),
            deliver(s, f"{n}b", by=s.other),
            s.other.drain(s.address, run),
        )
    same((await s.sessions.drain(s.address, run)).pending, 0, "nothing is left")
    same(sorted(seen), sorted(f"{n}{x}" for n in range(5) for x in "ab"), "each item once")


async def _nothing(writer: TurnWriter) -> None:
    pass


async def _never(writer: TurnWriter) -> None:
    require(False, "no turn is run")


CHECKS: Final = checks_of(globals())

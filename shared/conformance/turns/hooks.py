"""Checks of the turn queue: a host's admission around what stores a turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from shared.conformance.check import check, checks_of, refused, same
from shared.conformance.turn_stage import Stage, TurnQueueSubject, ended, stage
from shared.conformance.turns.begins import begin
from shared.domain.errors import (
    KeyConflict,
    SessionBusy,
    TurnDuplicate,
    TurnkeeperError,
    TurnRefused,
)
from shared.domain.ids import SessionId
from shared.turns.admission import OpenAdmission, TurnToAdmit
from shared.turns.queue import Ending


@dataclass(slots=True)
class Counting:
    """A hook that counts what it let through, and refuses above a bound before or after the turn is stored."""

    most: int = 100
    first: bool = True
    swallow: bool = False
    admitted: list[TurnToAdmit] = field(default_factory=list)
    asked: int = 0

    async def admit(self, turn: TurnToAdmit, proceed: Callable[[], Awaitable[None]]) -> None:
        """See the port."""
        self.asked += 1
        if self.first:
            await self._proceed(proceed)
        if len(self.admitted) >= self.most:
            raise TurnRefused("no more of yours", session=turn.session_id, reason="quota")
        if not self.first:
            await self._proceed(proceed)
        self.admitted.append(turn)

    async def _proceed(self, proceed: Callable[[], Awaitable[None]]) -> None:
        try:
            await proceed()
        except TurnkeeperError:
            if not self.swallow:
                raise


class Silent:
    """A hook that forgets to proceed."""

    async def admit(self, turn: TurnToAdmit, proceed: Callable[[], Awaitable[None]]) -> None:
        """See the port."""


async def _nothing_stored(s: Stage, session: SessionId) -> None:
    """Require that a session is as it was made: no turn, no record, no key, no position taken."""
    same((await s.check_session(session)).seq, 0, "nothing is in the log")
    receipt = await s.admit(session, key="k", message={"text": "other"})
    same((receipt.position, receipt.duplicate), (1, False), "neither a key nor a position was taken")


@check("a host's admission sees each turn once, at the door that stores it", "SES-132", "SES-133", "SES-138")
async def wrapping(subject: TurnQueueSubject) -> None:
    s, hook = await stage(subject), Counting()
    session = await s.session()
    asked = s.admission(session, key="k", agent="tea", priority=2)
    receipt = await s.queue.admit(asked, s.limits, admit=hook)
    same((receipt.status, receipt.position), ("ready", 1), "the turn is admitted")
    [seen] = hook.admitted
    same((seen.door, seen.session_id, seen.owner), ("admit", session, s.owner), "whose it is")
    same((seen.turn_id, seen.run_id, seen.key), (asked.turn_id, asked.run_id, "k"), "which one")
    same((seen.agent, seen.agent_revision, seen.priority), ("tea", s.revision, 2), "what runs it")
    claim = await s.claim()
    await s.open(claim)
    await s.end(claim)
    begun = await begin(s, s.admission(session), admit=hook)
    await s.queue.end(begun.claim, "e", [ended()], Ending("completed"))
    same([turn.door for turn in hook.admitted], ["admit", "begin"], "opening and writing asked nobody")
    s.admitted[session] = [receipt.turn_id, begun.claim.turn_id]
    await s.check_session(session)


@check(
    "a turn that a host refuses is not stored, whether it was refused before or after", "SES-134", "SES-136"
)
async def refusing(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    for first in (True, False):
        hook = Counting(most=0, first=first)
        session = await s.session()
        async with refused(TurnRefused, "an admission", session=session, reason="quota"):
            await s.queue.admit(s.admission(session, key="k"), s.limits, admit=hook)
        async with refused(TurnRefused, "and a begin", session=session, reason="quota"):
            await begin(s, s.admission(session, key="k"), admit=hook)
        s.admitted.pop(session, None)
        await _nothing_stored(s, session)


@check(
    "a duplicate, a conflict and a busy session fail inside a host's admission and count nothing", "SES-135"
)
async def failing_inside(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    for first in (True, False):
        hook = Counting(first=first)
        session = await s.session()
        one = s.admission(session, key="k")
        await s.queue.admit(one, s.limits, admit=hook)
        again = await s.queue.admit(one, s.limits, admit=hook)
        same((again.turn_id, again.duplicate), (one.turn_id, False), "a repeat gets the receipt")
        other = await s.queue.admit(s.admission(session, key="k"), s.limits, admit=hook)
        same((other.turn_id, other.duplicate), (one.turn_id, True), "a duplicate too")
        async with refused(TurnDuplicate, "at a begin it is refused"):
            await begin(s, s.admission(session, key="k"), admit=hook)
        async with refused(KeyConflict, "other content"):
            await s.queue.admit(
                s.admission(session, key="k", message={"text": "other"}), s.limits, admit=hook
            )
        async with refused(SessionBusy, "a busy session"):
            await begin(s, s.admission(session), admit=hook)
        same((hook.asked, len(hook.admitted)), (6, 1), "asked each time, counted once")


@check("an error inside a host's admission reaches the caller, whatever the host does with it", "SES-135")
async def swallowing(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    hook, session = Counting(swallow=True), await s.session()
    await s.admit(session)
    async with refused(SessionBusy, "a swallowed error"):
        await s.queue.admit(s.admission(session, on_busy="reject"), s.limits, admit=hook)
    free = await s.session()
    async with refused(TurnRefused, "a host that stores nothing", session=free, reason="not-stored"):
        await s.queue.admit(s.admission(free, key="k"), s.limits, admit=Silent())
    await _nothing_stored(s, free)


@check("a begin that a host admitted is adopted after a lost answer, and counted once", "SES-135")
async def adopting(subject: TurnQueueSubject) -> None:
    s, hook = await stage(subject), Counting()
    session = await s.session()
    asked = s.admission(session)
    first = await begin(s, asked, admit=hook)
    again = await begin(s, asked, admit=hook)
    same((again.opened.result, again.claim.fence), ("adopted", first.claim.fence), "the same turn")
    same(len(hook.admitted), 1, "counted once")
    await s.check_session(session)


@check("the open admission admits all", "SES-137")
async def admitting_all(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    hook, session = OpenAdmission(), await s.session()
    for n in range(3):
        receipt = await s.queue.admit(s.admission(session), s.limits, admit=hook)
        same(receipt.position, n + 1, "every turn")
    begun = await begin(s, s.admission(await s.session()), admit=hook)
    same(begun.opened.result, "opened", "and every begin")


CHECKS: Final = checks_of(globals())

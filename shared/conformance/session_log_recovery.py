"""The recovery kit of the session log: several handles over one store, interrupted commits, and the clock's edge."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Final, Protocol

from shared.conformance.check import (
    ConformanceCheck,
    Unmet,
    check,
    checks_of,
    outcomes,
    refused,
    require,
    same,
)
from shared.conformance.session_log import SessionLogSubject, new_session, note, require_whole
from shared.domain.errors import CommitTooLate, RevisionConflict, TurnkeeperError
from shared.sessions.log import Committed, SessionLog


class SessionLogRecoverySubject(SessionLogSubject, Protocol):
    """An adapter under test whose handles can be closed, and whose clock may be the caller's."""

    @property
    def caller_clock(self) -> bool:
        """Whether the store's clock stands still but for ``advance``; false for a database server's."""
        ...

    async def advance(self, seconds: float) -> None:
        """Move the caller's clock; only asked for when ``caller_clock`` is true."""
        ...

    async def close(self, log: SessionLog) -> None:
        """Close one handle before its time."""
        ...


def session_log_recovery_conformance(subject: SessionLogRecoverySubject) -> Sequence[ConformanceCheck]:
    """Return the recovery checks for this subject (KIT-33). An in-memory log passes when handles share a store (KIT-40)."""
    return [each.on(subject) for each in CHECKS]


@check(
    "commits are there after their handle was closed and another opened",
    "SES-24",
    "SES-25",
    "KIT-33",
    "KIT-34",
    "KIT-40",
)
async def reopened(subject: SessionLogRecoverySubject) -> None:
    first, owner = await subject.open(), subject.new_owner()
    session = await new_session(first, owner, key="k")
    await first.commit(session, owner, [note()], commit_id="c", state={"a": 1})
    await subject.close(first)
    second = await subject.open()
    head = await require_whole(second, session, owner)
    same((head.seq, head.revision, dict(head.state)), (1, 1, {"a": 1}), "all of the commit is there")
    again = await second.commit(session, owner, [note()], commit_id="c", state={"a": 1})
    same(again.seq, 1, "and known by its id")
    same(await new_session(second, owner, key="k"), session, "the creation key is known too")


@check("two open handles see each other's commits and race with one winner a revision", "SES-24", "KIT-35")
async def two_handles(subject: SessionLogRecoverySubject) -> None:
    handles, owner = [await subject.open(), await subject.open()], subject.new_owner()
    session = await new_session(handles[0], owner)
    for revision in range(20):
        seen = [(await log.head(session, owner)).revision for log in handles]
        same(seen, [revision, revision], "both see the last commit")
        answers = await outcomes([log.commit(session, owner, [note()], expect=revision) for log in handles])
        kinds = sorted(type(a).__name__ for a in answers)
        same(kinds, [Committed.__name__, RevisionConflict.__name__], "one wins, one is told")
    same((await require_whole(handles[1], session, owner)).seq, 20, "one record a revision")


@check("a handle that was never closed blocks nobody", "SES-24", "KIT-37")
async def never_closed(subject: SessionLogRecoverySubject) -> None:
    abandoned, owner = await subject.open(), subject.new_owner()
    session = await new_session(abandoned, owner)
    await abandoned.commit(session, owner, [note()])
    other = await subject.open()
    same((await other.commit(session, owner, [note()], expect=1)).seq, 2, "another handle goes on")
    same(list(await other.remove(session, owner)), [session], "and removes the session")


@check("an interrupted commit is stored whole or not at all", "SES-23", "KIT-36")
async def interrupted(subject: SessionLogRecoverySubject) -> None:
    log, owner = await subject.open(), subject.new_owner()
    session = await new_session(log, owner)
    for pauses in (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233):
        before = await log.head(session, owner)
        commit = asyncio.create_task(
            log.commit(session, owner, [note(n) for n in range(50)], state={"pauses": pauses})
        )
        for _ in range(pauses):
            await asyncio.sleep(0)
        commit.cancel()
        [answer] = await asyncio.gather(commit, return_exceptions=True)
        if isinstance(answer, BaseException) and not isinstance(
            answer, asyncio.CancelledError | TurnkeeperError
        ):
            raise answer
        after = await require_whole(log, session, owner)
        stored = (after.seq - before.seq, after.revision - before.revision, dict(after.state))
        whole = (50, 1, {"pauses": pauses})
        if stored not in ((0, 0, dict(before.state)), whole):
            raise Unmet(f"a commit interrupted after {pauses} pauses left {stored}")
        if isinstance(answer, Committed):
            same(stored, whole, "an answered commit is stored")


@check("the last moment itself is accepted, a millisecond later is refused", "SES-22", "KIT-38", "KIT-39")
async def the_edge(subject: SessionLogRecoverySubject) -> None:
    log, owner = await subject.open(), subject.new_owner()
    session = await new_session(log, owner)
    last = (await log.head(session, owner)).now
    if subject.caller_clock:
        await log.commit(session, owner, [note()], not_after=last)
        await subject.advance(0.001)
        async with refused(CommitTooLate, "a millisecond later"):
            await log.commit(session, owner, [note()], not_after=last)
        return
    # The server's clock runs on: what it answers brackets the edge instead (KIT-39).
    for _ in range(5):
        done = await log.commit(session, owner, [note()], not_after=last + timedelta(minutes=1))
        require(done.now > last, "the answer's clock is the one that judged")
        async with refused(CommitTooLate, "the moment of the last judgement has passed"):
            await log.commit(session, owner, [note()], not_after=done.now)
        last = done.now


@check("a repeated commit id answers its first result also after its last moment", "SES-14")
async def late_repeat(subject: SessionLogRecoverySubject) -> None:
    log, owner = await subject.open(), subject.new_owner()
    session = await new_session(log, owner)
    now = (await log.head(session, owner)).now
    await log.commit(session, owner, [note()], commit_id="c", expect=0, not_after=now + timedelta(minutes=5))
    past = now - timedelta(minutes=5)
    again = await log.commit(session, owner, [note()], commit_id="c", expect=0, not_after=past)
    same((again.seq, again.revision), (1, 1), "its answer was lost, not the commit")


CHECKS: Final = checks_of(globals())

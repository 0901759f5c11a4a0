"""Checks of the turn queue: a holder's append that checks the revision first, or extends its lease."""

from __future__ import annotations

from typing import Final

from shared.conformance.check import check, checks_of, refused, same
from shared.conformance.turn_stage import LEASE_S, TurnQueueSubject, commit_id, stage, step
from shared.domain.errors import FenceLost, RevisionConflict
from shared.sessions.records import draft


@check("an append that expects a revision is stored at that one alone, and a repeat finds it", "SES-49")
async def expecting(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    claim = await s.open_turn()
    read = (await s.log.head(claim.session_id, s.owner)).revision
    await s.log.commit(claim.session_id, s.owner, [draft("note.added", {"n": 1})])
    async with refused(RevisionConflict, "someone else was first", expected=read, actual=read + 1):
        await s.queue.append(claim, commit_id(claim, "a"), [step()], expect=read)
    same(await s.queue.append(claim, commit_id(claim, "b"), [step()], expect=read + 1), 3, "read again")
    same(await s.queue.append(claim, commit_id(claim, "b"), [step()], expect=read + 1), 3, "a lost answer")
    kinds = [kind for _, kind in await s.kinds(claim.session_id)]
    same(kinds, ["turn.started", "note.added", "step.started"], "the refused one is not stored")
    await s.check_session(claim.session_id)


@check("an append extends its lease when it says so, and only then", "SES-87", "KIT-45")
async def extending(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    claim = await s.open_turn()
    await s.queue.append(claim, commit_id(claim, "a"), [step()], extend_s=3 * LEASE_S)
    await s.lose_leases()
    await s.queue.append(claim, commit_id(claim, "b"), [step()])
    await s.queue.append(claim, commit_id(claim, "c"), [step()], extend_s=LEASE_S / 2)
    await s.lose_leases()
    async with refused(FenceLost, "the last write set the lease's end"):
        await s.queue.append(claim, commit_id(claim, "d"), [step()], extend_s=LEASE_S)
    same((await s.queue.renew({claim.turn_id: claim.fence}, LEASE_S)).lost, {claim.turn_id}, "it is gone")


@check("an append that is refused extends nothing")
async def extending_nothing(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    claim = await s.open_turn()
    async with refused(RevisionConflict, "another revision"):
        await s.queue.append(claim, commit_id(claim, "a"), [step()], expect=99, extend_s=9 * LEASE_S)
    await s.lose_leases()
    async with refused(FenceLost, "the lease ends when it would have"):
        await s.queue.append(claim, commit_id(claim, "b"), [step()])


CHECKS: Final = checks_of(globals())

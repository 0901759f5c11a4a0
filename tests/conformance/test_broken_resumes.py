"""Broken turn queues that resume what they should not: each fails the checks of its fault, and every check has one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from shared.conformance import ConformanceFailure
from shared.conformance.turns.resumes import CHECKS
from shared.domain.ids import TurnId, WorkerId
from shared.sessions.inproc import InprocStore
from shared.sessions.records import Draft
from shared.turns.admission import TurnAdmission, TurnToAdmit
from shared.turns.inproc.queue import InprocTurnQueue
from shared.turns.inproc.rows import TurnTables
from shared.turns.queue import (
    Admission,
    AdmissionLimits,
    Begun,
    Claim,
    ClaimRequest,
    Opened,
    Receipt,
    TurnQueue,
)
from shared.turns.resume import not_resumable, resume_refusal
from tests.conformance.subjects import InprocTurnQueueSubject


class BrokenQueue(InprocTurnQueue):
    """A queue that sees each admission first, at either door."""

    def __init__(self, store: InprocStore) -> None:
        super().__init__(store)
        self.store, self.tables = store, store.part(TurnTables)

    def meddle(self, admission: Admission) -> Admission:
        return admission

    async def admit(self, admission: Admission, limits: AdmissionLimits, **how: Any) -> Receipt:
        return await super().admit(self.meddle(admission), limits, **how)

    async def begin(self, admission: Admission, holder: WorkerId, **how: Any) -> Begun:
        return await super().begin(self.meddle(admission), holder, **how)


class Blind(BrokenQueue):
    """Reads no ``resumes``."""

    def meddle(self, admission: Admission) -> Admission:
        return replace(admission, resumes=None)


class Yielding(BrokenQueue):
    """Takes what is equal to a number for it, and the rest for no resume."""

    def meddle(self, admission: Admission) -> Admission:
        n: Any = admission.resumes
        return replace(
            admission, resumes=int(n) if n in (1, "1") else n if isinstance(n, int) and n > 1 else None
        )


class Hasty(BrokenQueue):
    """Judges the resume before the key, and before a dead turn is reaped."""

    def meddle(self, admission: Admission) -> Admission:
        session, n = self.store.sessions.get(admission.session_id), admission.resumes
        if session is not None and n is not None:
            past = self.tables.past(session.id)
            if (reason := resume_refusal(n, past)) is not None:
                raise not_resumable(session.id, n, reason)
            if session.open is not None and any(one.number == n and one.outcome is None for one in past):
                raise not_resumable(session.id, n, "finished")
        return admission


class Trusting(BrokenQueue):
    """Judges a resume when it is admitted and not when it opens."""

    async def open(self, claim: Claim, commit_id: str, drafts: Sequence[Draft], **how: Any) -> Opened:
        self.tables.turns[claim.turn_id].resumes = None
        return await super().open(claim, commit_id, drafts, **how)


class Strict(BrokenQueue):
    """Lets nothing come between a turn and its one resume, not even a resume that failed."""

    def meddle(self, admission: Admission) -> Admission:
        n = admission.resumes
        later = [one for one in self.tables.past(admission.session_id) if n is not None and one.number > n]
        if later and n is not None and n > 0:
            raise not_resumable(admission.session_id, n, "superseded")
        return admission


class Lenient(BrokenQueue):
    """Lets failed turns be resumed, and any number of turns come between."""

    def meddle(self, admission: Admission) -> Admission:
        n = admission.resumes
        for row in self.tables.of_session(admission.session_id):
            if row.number == n and row.outcome in ("completed", "partial", "failed"):
                row.outcome = "interrupted"
            elif n is not None and row.number is not None and row.number > n:
                row.origin = "inbox"
        return admission


class Inheriting(BrokenQueue):
    """Finds a fork's inherited turns, and another session's."""

    def meddle(self, admission: Admission) -> Admission:
        n, past = admission.resumes, self.tables.past(admission.session_id)
        known = any(one.number == n for one in past)
        return admission if known or n not in (1, 2) else replace(admission, resumes=None)


class Keyless(BrokenQueue):
    """Leaves the turn out of the key's fingerprint, by leaving the key out."""

    def meddle(self, admission: Admission) -> Admission:
        return replace(admission, key=None) if (admission.key or "").startswith("resume:") else admission


class Forgetful(BrokenQueue):
    """Tells no claim what it continues."""

    async def claim(self, request: ClaimRequest) -> Sequence[Claim]:
        return [replace(claim, resumes=None) for claim in await super().claim(request)]


@dataclass
class Hidden:
    """A hook that is shown no resume."""

    hook: TurnAdmission

    async def admit(self, turn: TurnToAdmit, proceed: Callable[[], Awaitable[None]]) -> None:
        await self.hook.admit(replace(turn, resumes=None), proceed)


class Secretive(BrokenQueue):
    """Shows a host's admission nothing of it."""

    async def admit(self, admission: Admission, limits: AdmissionLimits, **how: Any) -> Receipt:
        hook = how.pop("admit", None)
        return await super().admit(admission, limits, admit=None if hook is None else Hidden(hook))


class Interrupting(BrokenQueue):
    """Ends what is open before it judges the resume that would make it."""

    async def admit(self, admission: Admission, limits: AdmissionLimits, **how: Any) -> Receipt:
        session = self.store.sessions.get(admission.session_id)
        if admission.on_busy == "interrupt" and session is not None and session.open is not None:
            await self.cancel(TurnId(session.open.turn_id), admission.owner)
        return await super().admit(admission, limits, **how)


class QueueSubject(InprocTurnQueueSubject):
    """A subject of a broken queue."""

    def __init__(self, queue: type[BrokenQueue]) -> None:
        super().__init__()
        self._queue = queue

    async def open(self) -> TurnQueue:
        return self._queue(self.store)


#: What is broken, and a beginning of the name of each check that must see it.
FAULTS: Mapping[type[BrokenQueue], Sequence[str]] = {
    Blind: [
        "a resume is a user's next turn",
        "a turn that ended with an answer",
        "a turn is superseded",
        "a turn that the session's own log",
        "a resume is refused in order",
        "the same resume again",
        "a resume of a turn that is not over",
        "of resumes of one turn that are queued",
    ],
    Yielding: ["a value that names no turn"],
    Hasty: ["a resume is refused in order", "a dead turn is reaped"],
    Trusting: ["a resume that waits is judged again", "of resumes of one turn that are queued"],
    Strict: ["a resume that failed or was cut"],
    Lenient: ["a turn that ended with an answer", "a turn is superseded"],
    Inheriting: ["a turn that the session's own log"],
    Keyless: ["the same resume again", "of resumes of one turn at once"],
    Forgetful: ["a resume is a user's next turn"],
    Secretive: ["a host's admission is shown"],
    Interrupting: ["an interrupting resume that is refused"],
}


@pytest.mark.behaviour("KIT-01", "KIT-03")
@pytest.mark.parametrize("broken", FAULTS, ids=[broken.__name__ for broken in FAULTS])
async def test_a_broken_queue_fails_the_checks_of_its_fault_by_their_names(broken: type[BrokenQueue]) -> None:
    for beginning in FAULTS[broken]:
        [named] = [check for check in CHECKS if check.name.startswith(beginning)]
        check = named.on(QueueSubject(broken), timeout_s=5)
        with pytest.raises(ConformanceFailure) as failure:
            await check.run()
        assert str(failure.value).startswith(f"{check.name}: ")


def test_every_check_of_resumes_has_a_fault_that_fails_it() -> None:
    names = {check.name for check in CHECKS}
    seen = {name for name in names for faults in FAULTS.values() if name.startswith(tuple(faults))}
    assert seen == names

"""Running a host's admission around what stores a turn; both adapters do it so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

from shared.domain.errors import TurnDuplicate, TurnkeeperError, TurnRefused
from shared.turns.admission import ADMISSION_MAX_S, AdmissionTransaction, TurnAdmission, TurnToAdmit
from shared.turns.queue import Admission, Claim


async def admit_through(hook: TurnAdmission, turn: TurnToAdmit, store: Callable[[], Awaitable[None]]) -> None:
    """Let a hook admit a turn; when this returns, ``store`` ran exactly once, and what it wrote may be committed.

    Raises what ``store`` raised, whatever the hook did with it, ``TurnRefused`` of the hook or for one that took too long
    or never proceeded, or any other error of the hook as it is.
    """
    door = _Door(store)
    try:
        async with asyncio.timeout(ADMISSION_MAX_S) as limit:
            await hook.admit(turn, door.proceed)
    except Exception as error:
        if door.failure is not None and door.failure is not error:
            raise door.failure from error
        if isinstance(error, TimeoutError) and limit.expired():
            raise TurnRefused(
                f"the host's admission took longer than {ADMISSION_MAX_S:g} s",
                session=turn.session_id,
                reason="timeout",
            ) from error
        raise
    if door.failure is not None:
        raise door.failure
    if not door.is_stored:
        raise TurnRefused(
            "the host's admission ended without storing the turn",
            session=turn.session_id,
            reason="not-stored",
        )


class Repeated(TurnDuplicate):
    """The turn was stored by an earlier try: nothing is stored or counted now, and the caller gets the first answer."""


class _Door:
    """What a hook calls to store the turn: once, however often it calls it."""

    def __init__(self, store: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self.is_stored = False
        self.failure: TurnkeeperError | None = None

    async def proceed(self) -> None:
        """Store the turn, or raise the first failure again."""
        if self.failure is not None:
            raise self.failure
        if self.is_stored:
            return
        try:
            await self._store()
        except TurnkeeperError as error:
            self.failure = error
            raise
        self.is_stored = True


def turn_to_admit(
    admission: Admission, door: Literal["admit", "begin"], transaction: AdmissionTransaction
) -> TurnToAdmit:
    """Return what a hook is shown of an admission."""
    return TurnToAdmit(
        door=door,
        turn_id=admission.turn_id,
        run_id=admission.run_id,
        session_id=admission.session_id,
        owner=admission.owner,
        key=admission.key,
        agent=admission.agent,
        agent_revision=admission.agent_revision,
        priority=admission.priority,
        transaction=transaction,
        meta=admission.meta or {},
        resumes=admission.resumes,
    )


def claim_to_admit(claim: Claim, transaction: AdmissionTransaction) -> TurnToAdmit:
    """Return what a hook is shown of a claimed turn that nobody has judged: it is opened at once."""
    return TurnToAdmit(
        door="begin",
        turn_id=claim.turn_id,
        run_id=claim.run_id,
        session_id=claim.session_id,
        owner=claim.owner,
        key=claim.key,
        agent=claim.agent,
        agent_revision=claim.agent_revision,
        priority=claim.priority,
        transaction=transaction,
        meta=claim.meta or {},
    )


def reason_of(error: TurnRefused) -> str:
    """Return what a refused turn keeps of the host's reason, in at most 500 characters."""
    return str(error.fields.get("reason") or error.message)[:500]

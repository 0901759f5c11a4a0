"""The host's own say at the door: what counts and admits a turn inside the transaction that stores it (SES-132 to 138)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from shared.domain.ids import OwnerId, RunId, SessionId, TurnId

#: How long a hook may take with its transaction open, in seconds; then the turn is refused and nothing is stored.
ADMISSION_MAX_S: Final = 5.0


class AdmissionTransaction(Protocol):
    """The transaction that a turn is stored in, as far as a host may use it."""

    async def execute(
        self, statement: str, params: Mapping[str, Any] | Sequence[Any] = ()
    ) -> Sequence[Mapping[str, Any]]:
        """Run one statement (psycopg placeholders) and return its rows; it is undone when the turn is not stored.

        Raises ``StoreBusy``, ``StoreUnavailable`` or ``StoreDefect``; ``ConfigError`` on the twin, which has no SQL.
        """
        ...


@dataclass(frozen=True, slots=True)
class TurnToAdmit:
    """What a hook judges. ``door`` is ``admit`` for a row that a worker will open, ``begin`` for one opened at once.

    Turns of the inbox and of tasks come to ``begin``, whoever opens them.
    """

    door: Literal["admit", "begin"]
    turn_id: TurnId
    run_id: RunId
    session_id: SessionId
    owner: OwnerId
    key: str | None
    agent: str
    agent_revision: str
    priority: int
    transaction: AdmissionTransaction
    #: What the host attached to the turn; empty when nothing was (TRN-38).
    meta: Mapping[str, Any] = field(default_factory=dict)
    #: The number of the turn that this one continues (RSM-17).
    resumes: int | None = None


class TurnAdmission(Protocol):
    """A host's admission: wraps the one transaction that stores a turn, and none of the turn's later writes.

    A turn that waits in the queue is counted when it is admitted, never again when a worker opens it. Turns of the inbox
    and of tasks enter the queue unasked: they are judged when they open.
    """

    async def admit(self, turn: TurnToAdmit, proceed: Callable[[], Awaitable[None]]) -> None:
        """Count the turn and call ``proceed`` once; what either wrote is stored together when this returns.

        ``proceed`` raises for a duplicate, a key conflict, a busy session or a full queue, and then the whole transaction
        is undone, whatever this does with the error: such a turn counts nothing. Refuse by raising ``TurnRefused`` (its
        ``reason`` is shown to the caller) before or after ``proceed``; calling it first keeps the order in which a
        repeat is found before a refusal. From ``proceed`` on the session's head is locked: be quick. Takes at most
        ``ADMISSION_MAX_S``; the hook runs again when a caller repeats after a lost answer.
        """
        ...


class OpenAdmission:
    """Admits every turn (SES-137); costs no transaction of its own."""

    async def admit(self, turn: TurnToAdmit, proceed: Callable[[], Awaitable[None]]) -> None:
        """See the port."""
        await proceed()


def needs_transaction(admit: TurnAdmission | None) -> bool:
    """Say whether a hook has a say at all."""
    return admit is not None and not isinstance(admit, OpenAdmission)

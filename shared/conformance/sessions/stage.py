"""What the checks of sessions run on: instances over one store, and helpers that act through the port alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from shared.conformance.check import same
from shared.domain.ids import OwnerId
from shared.host.activity import TurnActivity
from shared.host.ownership import LeaseOwnership, Ownership, ProcessOwnership
from shared.host.port import NewTurn, SessionAddress, Sessions, TurnWriter
from shared.sessions.records import Draft, draft
from shared.turns.admission import TurnAdmission
from shared.turns.queue import Ending

TTL_S: Final = 300.0
FIXED: Final = LeaseOwnership(int(TTL_S * 1_000), "none")
EXTENDED: Final = LeaseOwnership(int(TTL_S * 1_000), "on-commit")
PROCESS: Final = ProcessOwnership()
COMPLETED: Final = Ending("completed")
KIND: Final = "note.added"


class SessionsSubject(Protocol):
    """A backend under test. Its instances judge other processes by what :meth:`stop` was told."""

    async def open(
        self, ownership: Ownership, *, host: str = "here", admission: TurnAdmission | None = None
    ) -> Sessions:
        """Return a new instance over the same store, in a process of its own on a host of that name."""
        ...

    def activity(self, sessions: Sessions) -> TurnActivity | None:
        """Return what counts the turns of an instance, None when it has nothing that does."""
        ...

    def stop(self, sessions: Sessions) -> None:
        """Let the process of an instance be gone from now on, without its turns having been ended."""
        ...

    def new_owner(self) -> OwnerId:
        """Return an owner who has nothing yet."""
        ...

    async def advance(self, seconds: float) -> None:
        """Let time pass for this subject's owners (or move their stored times back by as much)."""
        ...


@dataclass(slots=True)
class Stage:
    """One check's own world: a session, an instance, and another of another process."""

    subject: SessionsSubject
    sessions: Sessions
    other: Sessions
    owner: OwnerId
    address: SessionAddress

    async def kinds(self, address: SessionAddress | None = None) -> list[tuple[int | None, str]]:
        """Read turn numbers and kinds of the log."""
        return [(r.turn, r.kind) for r in await self.other.read(address or self.address)]

    async def notes(self, address: SessionAddress | None = None) -> list[Any]:
        """Read what the host's notes hold, in order."""
        return [r.data["n"] for r in await self.other.read(address or self.address, kinds=[KIND])]

    async def ends(self) -> list[tuple[int | None, Any, Any]]:
        """Read number, reason and code of every closing record."""
        records = await self.other.read(self.address, kinds=["turn.ended"])
        return [(r.turn, r.data["reason"], r.data.get("code")) for r in records]

    async def require_open(self, turn: int | None) -> None:
        """Require that both instances see this turn open, or none."""
        for sessions in (self.sessions, self.other):
            view = await sessions.view(self.address)
            same(None if view.open is None else view.open.turn, turn, "the open turn that is shown")

    async def run_turn(self, sessions: Sessions | None = None, **given: Any) -> int:
        """Begin a turn and end it as completed; return its number."""
        async with (sessions or self.sessions).begin(self.address, new_turn(**given)) as writer:
            await writer.end(COMPLETED)
            return writer.admitted.number


async def stage(
    subject: SessionsSubject, ownership: Ownership = FIXED, other: Ownership | None = None
) -> Stage:
    """Return a new stage over a subject."""
    sessions = await subject.open(ownership)
    owner = subject.new_owner()
    view = await sessions.create(owner)
    return Stage(subject, sessions, await subject.open(other or ownership), owner, view.address)


def new_turn(text: str = "hello", **given: Any) -> NewTurn:
    """Return a turn to begin."""
    return NewTurn({"text": text}, **given)


def note(n: object = 1, kind: str = KIND) -> Draft:
    """Return a host's record."""
    return draft(kind, {"n": n})


async def write(writer: TurnWriter, *notes: object) -> None:
    """Store notes."""
    await writer.append([note(n) for n in notes])
    await writer.flush()


def drafts(*notes: object) -> Sequence[Draft]:
    """Return notes."""
    return [note(n) for n in notes]

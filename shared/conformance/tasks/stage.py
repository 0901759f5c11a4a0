"""What the checks of a tasks backend run on: a runner that waits to be told, an executor that does as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from uuid import uuid4

from shared.conformance.check import same
from shared.domain.ids import OwnerId, SessionId
from shared.host.endings import TurnOutcome
from shared.host.port import NewTurn, SessionAddress, Sessions, TurnWriter
from shared.host.tasks.deadlines import UNBOUNDED, Deadline
from shared.host.tasks.port import HandedTask, TaskExecutor, TaskRunner, Tasks, TaskWork
from shared.tasks.port import StartedTask, TaskView
from shared.turns.admission import TurnAdmission
from shared.turns.queue import Ending

ANSWER: Final = TurnOutcome("completed", "42")
Body = Callable[[TurnWriter], Awaitable[TurnOutcome]]


@dataclass(frozen=True, slots=True)
class MadeTasks:
    """A backend under test, and the sessions that its tasks belong to."""

    tasks: Tasks
    sessions: Sessions


class MakeTasks(Protocol):
    """Opens a backend over a store, with the check's own runner and executor (KIT-53). Leaving closes it.

    ``admission`` judges every turn that the sessions begin, the task's among them. Its limits are the default ones.
    """

    def __call__(
        self, runner: TaskRunner, executor: TaskExecutor, *, admission: TurnAdmission | None = None
    ) -> AbstractAsyncContextManager[MadeTasks]: ...


class HeldRunner:
    """Keeps what is handed over until the check runs it; ``lose`` is a runner that died."""

    def __init__(self) -> None:
        self.handed: list[tuple[HandedTask, TaskWork]] = []

    def run(self, task: HandedTask, work: TaskWork) -> None:
        """See the port."""
        self.handed.append((task, work))

    def lose(self) -> None:
        """Forget what was handed over."""
        self.handed.clear()

    async def run_next(self, deadline: Deadline = UNBOUNDED) -> HandedTask:
        """Run the task that was handed over first."""
        task, work = self.handed.pop(0)
        await work(deadline)
        return task


class ScriptedExecutor:
    """Does what the check says, and keeps what it was asked for."""

    def __init__(self) -> None:
        self.on_turn: Body = answer
        self.on_react: Body = answer
        self.turns: list[SessionAddress] = []
        self.reactions: list[str] = []
        self.metas: list[Any] = []

    async def turn(self, writer: TurnWriter) -> TurnOutcome:
        """See the port."""
        self.turns.append(writer.session)
        self.metas.append(dict(writer.admitted.meta))
        return await self.on_turn(writer)

    async def react(self, writer: TurnWriter) -> TurnOutcome:
        """See the port."""
        self.reactions.append(str(writer.admitted.message["text"]))
        self.metas.append(dict(writer.admitted.meta))
        return await self.on_react(writer)


async def answer(writer: TurnWriter) -> TurnOutcome:
    """Answer at once."""
    return ANSWER


class Hang:
    """A body that begins and goes on until it is cancelled."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.is_cancelled = False

    async def __call__(self, writer: TurnWriter) -> TurnOutcome:
        self.began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise
        return ANSWER


@dataclass(slots=True)
class Stage:
    """One check's own world: a session of an owner of its own."""

    tasks: Tasks
    sessions: Sessions
    runner: HeldRunner
    executor: ScriptedExecutor
    parent: SessionAddress
    metas: list[Any] = field(default_factory=list)

    async def start(self, **given: Any) -> StartedTask:
        """Start a task of the stage's session."""
        return await self.tasks.start(self.parent, **({"instructions": "find out", "mode": "spawn"} | given))

    async def status(self, task_id: str) -> TaskView:
        """Read where a task stands."""
        return await self.tasks.status(self.parent, task_id)

    async def queued(self) -> Sequence[tuple[str, str]]:
        """Read id and content of everything that was ever delivered to the session."""
        records = await self.sessions.read(self.parent, kinds=["inbox.queued"])
        return [(r.data["id"], r.data["content"]) for r in records]

    async def waiting(self) -> int:
        """Read how many items wait."""
        return (await self.sessions.view(self.parent)).pending

    async def ends(self, address: SessionAddress | None = None) -> Sequence[tuple[str, str | None]]:
        """Read reason and code of every turn's end."""
        records = await self.sessions.read(address or self.parent, kinds=["turn.ended"])
        return [(r.data["reason"], r.data.get("code")) for r in records]

    async def require_told(self, task_id: str, times: int = 1) -> None:
        """Require that the session was told of a task so often."""
        ids = [item for item, _ in await self.queued()]
        same(ids.count(f"task:{task_id}"), times, "how often the parent was told")

    async def run_user_turn(self, text: str) -> None:
        """Begin a turn of the session and end it."""
        async with self.sessions.begin(self.parent, NewTurn({"text": text})) as writer:
            await writer.end(Ending("completed"))

    def child(self, task_id: str) -> SessionAddress:
        """The session of a task."""
        return SessionAddress(SessionId(task_id), self.parent.owner)


@asynccontextmanager
async def stage(make: MakeTasks, *, admission: TurnAdmission | None = None) -> AsyncIterator[Stage]:
    """Open a new stage."""
    runner, executor = HeldRunner(), ScriptedExecutor()
    async with make(runner, executor, admission=admission) as made:
        view = await made.sessions.create(OwnerId(f"owner-{uuid4().hex}"))
        yield Stage(made.tasks, made.sessions, runner, executor, view.address)


def deadline_in(cutoff_s: float, *, reserve_s: float = 2.0) -> Deadline:
    """Return a deadline whose cutoff comes in so many seconds."""
    cutoff = asyncio.get_running_loop().time() + cutoff_s
    return Deadline(cutoff + reserve_s, cutoff)

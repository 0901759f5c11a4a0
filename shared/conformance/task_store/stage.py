"""What the checks of the store of tasks act on: its subject, and a stage with a parent session of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from shared.conformance.check import require
from shared.conformance.turn_stage import LEASE_S, Stage, TurnQueueSubject, commit_id, ended, stage, started
from shared.domain.ids import OwnerId, SessionId, TurnId
from shared.sessions.records import Record, draft
from shared.tasks.port import (
    CancelledTask,
    Debt,
    DeliveredTask,
    NewTask,
    StartedTask,
    TaskLimits,
    TaskStore,
    TaskView,
    new_task,
)
from shared.turns.queue import Claim, Ended, Ending, Outcome

DEADLINE_S = 600.0


class TaskStoreSubject(TurnQueueSubject, Protocol):
    """An adapter under test: a store of tasks with the turn queue and the session log over the same data."""

    async def tasks(self) -> TaskStore:
        """Return a handle of the store of tasks over the same data."""
        ...


@dataclass(slots=True)
class TaskStage:
    """One check's own world: a parent, and whoever runs its tasks. Every helper acts through the ports alone."""

    turns: Stage
    tasks: TaskStore
    parent: SessionId
    limits: TaskLimits = field(default_factory=TaskLimits)

    @property
    def owner(self) -> OwnerId:
        """Whose all of it is."""
        return self.turns.owner

    def task(self, instructions: str = "look it up", mode: Any = "spawn", **given: Any) -> NewTask:
        """Return a task of the parent's, of the stage's revision."""
        parent = given.pop("parent", self.parent)
        revision = {"agent_revision": self.turns.revision}
        return new_task(parent, self.owner, instructions, mode, **revision | given)

    async def start(self, task: NewTask | None = None, **given: Any) -> StartedTask:
        """Start a task."""
        return await self.tasks.start(task or self.task(**given), self.limits)

    async def claim(self, started_task: StartedTask) -> Claim:
        """Take the task's turn."""
        claim = await self.tasks.take(started_task.task_id, self.owner, self.turns.worker, lease_s=LEASE_S)
        require(claim is not None, "a started task's turn is there to be taken")
        assert claim is not None
        return claim

    async def run(self, **given: Any) -> Claim:
        """Start a task, take its turn and open it."""
        claim = await self.claim(await self.start(**given))
        await self.turns.queue.open(claim, commit_id(claim, "open"), [started(claim)])
        return claim

    async def end(self, claim: Claim, text: str = "found it", outcome: Outcome = "completed") -> Ended:
        """End an open task's turn with its result, in one commit."""
        result = draft("task.result", {"v": 1, "task": claim.session_id, "outcome": outcome, "text": text})
        return await self.turns.queue.end(
            claim, commit_id(claim, "end"), [result, ended(outcome)], Ending(outcome)
        )

    async def store_result(self, claim: Claim, text: str = "found it") -> None:
        """Store a task's result before its turn ends."""
        result = draft(
            "task.result", {"v": 1, "task": claim.session_id, "outcome": "completed", "text": text}
        )
        await self.turns.queue.append(claim, commit_id(claim, "result"), [result])

    async def done(self, text: str = "found it", **given: Any) -> SessionId:
        """Run a task to its end; return its id."""
        claim = await self.run(**given)
        await self.end(claim, text)
        return claim.session_id

    async def cancel(self, task_id: str) -> CancelledTask:
        """Cancel a task."""
        return await self.tasks.cancel(self.parent, task_id, self.owner)

    async def status(self, task_id: str) -> TaskView:
        """Read where a task stands."""
        return await self.tasks.status(self.parent, task_id, self.owner)

    async def owed(self) -> Sequence[Debt]:
        """Read what the parent is owed."""
        return await self.tasks.owed(parent=self.parent, limit=1_000)

    async def deliver(self) -> list[DeliveredTask]:
        """Deliver all that the parent is owed."""
        delivered = [await self.tasks.deliver(debt) for debt in await self.owed()]
        return [each for each in delivered if each is not None]

    async def items(self) -> list[Record]:
        """Read the parent's deliveries."""
        return list(await self.turns.log.read(self.parent, kinds=["inbox.queued"]))

    async def kinds(self, session_id: SessionId) -> list[str]:
        """Read the kinds of a log."""
        return [record.kind for record in await self.turns.log.read(session_id)]

    async def closed_turn(self, session_id: SessionId) -> TurnId:
        """Run a user's turn of a session to its end."""
        receipt = await self.turns.admit(session_id)
        claim = await self.turns.claim(takeovers=False)
        await self.turns.open(claim)
        await self.turns.end(claim)
        return receipt.turn_id


async def task_stage(subject: TaskStoreSubject, *, max_running: int = 2) -> TaskStage:
    """Return a new stage over a subject."""
    turns = await stage(subject)
    return TaskStage(turns, await subject.tasks(), await turns.session(), TaskLimits(max_running))

"""The model's own tools for background tasks: ``start_task`` and ``task_status`` (TSK-44 to 47)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from shared.agents import Agent, Tool, ToolContext, tool
from shared.domain.errors import TaskMissing
from shared.domain.failpoints import Failpoints
from shared.domain.ids import SessionId, TurnId
from shared.host.tasks.tasks import start_known
from shared.tasks.notice import NOTICE_CHARS
from shared.tasks.port import TaskLimits, TaskMode, TaskStore, TaskView, new_task
from shared.turns.queue import Claim

#: Makes a task's id of a call's token: a call that is repeated after a crash starts its task once.
_NAMESPACE: Final = uuid.UUID("5a1bb8f5-4fd0-4a55-9f0c-6f2f5d5c7e10")
UNKNOWN: Final = "There is no background task with this id in this conversation."


def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8").strip()


START_DESCRIPTION: Final = _text("start_task.md")
STATUS_DESCRIPTION: Final = _text("task_status.md")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTasks:
    """Gives agents that ask for it (``Agent(task_tools=True)``) the tools; one instance a process."""

    store: TaskStore
    limits: TaskLimits
    failpoints: Failpoints
    ring: Callable[[Sequence[TurnId]], None]

    def equip(self, agent: Agent, claim: Claim) -> Agent:
        """Return the agent as it runs this turn; one without the option, and a task's own turn, stay as they are."""
        if not agent.task_tools or claim.origin == "task":
            return agent
        return replace(agent, tools=(*agent.tools, *self.tools(agent, claim)), task_tools=False)

    def tools(self, agent: Agent, claim: Claim) -> tuple[Tool, Tool]:
        """Return the tools of one turn: what it starts has the turn's meta, run id and agent (TSK-45)."""

        async def start_task(instructions: str, mode: TaskMode, context: ToolContext) -> Mapping[str, Any]:
            task = new_task(
                claim.session_id,
                claim.owner,
                instructions,
                mode,
                task_id=task_id_of(context.idempotency_token),
                meta=claim.meta,
                started_by=claim.run_id,
                agent=agent.name,
                agent_revision=agent.revision,
                on_worker_loss=agent.on_worker_loss,
                max_duration_s=agent.policy.max_duration_s,
            )
            started = await start_known(self.store, task, self.limits)
            await self.failpoints.hit("task.unrung")
            self.ring([started.turn_id])
            return {"task_id": started.task_id, "status": "started"}

        async def task_status(task_id: str) -> Any:
            try:
                view = await self.store.status(claim.session_id, task_id, claim.owner)
            except TaskMissing:
                return UNKNOWN
            return describe_task(view)

        return replace(_START, handler=start_task), replace(_STATUS, handler=task_status)


@tool(name="start_task", description=START_DESCRIPTION, repeatable=True)
async def _START(instructions: str, mode: TaskMode, context: ToolContext) -> Mapping[str, Any]:
    raise NotImplementedError("each turn has a handler of its own")


@tool(name="task_status", description=STATUS_DESCRIPTION, repeatable=True)
async def _STATUS(task_id: str) -> Any:
    raise NotImplementedError("each turn has a handler of its own")


def task_id_of(token: str) -> SessionId:
    """Return the id of the task that a call starts: the same for the same idempotency token."""
    return SessionId(f"ses_{uuid.uuid5(_NAMESPACE, token).hex}")


def describe_task(view: TaskView) -> dict[str, Any]:
    """Return what the model is told of a task; a long result is cut, the whole stays in the task's session."""
    told: dict[str, Any] = {"task_id": view.task_id, "status": view.status}
    if view.text is not None:
        told["result"] = view.text[:NOTICE_CHARS]
        if len(view.text) > NOTICE_CHARS:
            told["cut"] = f"the first {NOTICE_CHARS} of {len(view.text)} characters"
    for name, value in (("code", view.code), ("failure", view.failure)):
        if value is not None:
            told[name] = value
    return told

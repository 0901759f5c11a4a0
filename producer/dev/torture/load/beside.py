"""What a client does beside its turns: items into inboxes, background tasks, and cancels of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from producer.dev.torture.load.asking import Door
from producer.dev.torture.load.notes import Item, Notes
from producer.dev.torture.load.tasks import StartedTask

#: How often a client does each between two bursts of its turns.
DELIVERS: Final = 0.5
STARTS_A_TASK: Final = 0.35
ASKS_AGAIN: Final = 0.15
CANCELS_A_TASK: Final = 0.15
HANGS_UP: Final = 0.15


@dataclass(slots=True)
class Beside:
    """One client's deliveries and tasks. Every id is used for one thing, and asked for again now and then."""

    client: int
    door: Door
    rng: Random
    notes: Notes
    made: int = 0

    async def act(self, session: str) -> None:
        """Do one of these, or nothing."""
        if self.rng.random() < DELIVERS:
            await self._deliver(session)
        if self.rng.random() < STARTS_A_TASK:
            await self._start_task(session)

    async def _deliver(self, session: str) -> None:
        item = Item(self._name("item"), session)
        self.notes.items[item.name] = item
        directive = {"reply": f"{item.name} is read", "first_token_ms": self.rng.choice((0, 20, 100, 400))}
        body = {"id": item.name, "source": f"client-{self.client}", "content": _content(item.name, directive)}
        item.is_acknowledged = bool(await self._put(f"/v1/sessions/{session}/inbox", body, key=None))

    async def _start_task(self, session: str) -> None:
        task = StartedTask(self._name("task"), session)
        self.notes.tasks[task.name] = task
        directive = {"reply": f"{task.name} is done", "first_token_ms": self.rng.choice((0, 100, 400, 1_500))}
        mode = self.rng.choice(("fork", "spawn"))
        body = {"mode": mode, "instructions": _content(task.name, directive)}
        path = f"/v1/sessions/{session}/tasks"
        task.ids |= {str(answer["task_id"]) for answer in await self._put(path, body, key=task.name)}
        if task.ids and self.rng.random() < CANCELS_A_TASK:
            task.cancel = "asked"
            done = await self.door.ask(f"{path}/{min(task.ids)}/cancel", {}, key=None)
            if done is not None:
                task.cancel = "cancelled" if done["cancelled"] else "too-late"

    async def _put(self, path: str, body: dict[str, Any], *, key: str | None) -> list[dict[str, Any]]:
        """Ask, and now and then ask again long after: the same id or key still names the one thing. Return the answers."""
        answers = [await self.door.ask(path, body, key=key, impatient=self.rng.random() < HANGS_UP)]
        if answers[0] is not None and self.rng.random() < ASKS_AGAIN:
            answers.append(await self.door.ask(path, body, key=key))
        return [answer for answer in answers if answer is not None]

    def _name(self, kind: str) -> str:
        self.made += 1
        return f"{kind}-{self.client}-{self.made}"


def _content(name: str, directive: dict[str, Any]) -> str:
    return f"{name} [[offline: {json.dumps(directive)}]]"

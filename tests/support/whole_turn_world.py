"""A program with persistent sessions over a log in memory, and probes of the order in which a turn's end is done."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from shared.agents import Turn, TurnOutcome
from shared.models.scripted import ScriptedModel
from shared.sessions.inproc import InprocSessionLog, InprocStore
from shared.sessions.log import Committed, NewSession
from shared.sessions.records import Draft
from shared.sessions.vocabulary import Payload
from workers.in_process import PersistentSessions, persistent_sessions


class ProbedLog(InprocSessionLog):
    """Tells each append; ``fail_before`` and ``fail_after`` are raised, once each, around the next ones."""

    def __init__(self, store: InprocStore, tell: Callable[[str], None]) -> None:
        super().__init__(store)
        self._tell = tell
        self.fail_before: list[Exception] = []
        self.fail_after: list[Exception] = []

    async def retain(
        self, new: NewSession, drafts: Sequence[Draft], *, tail: bytes, commit_id: str
    ) -> Committed:
        if self.fail_before:
            raise self.fail_before.pop(0)
        committed = await super().retain(new, drafts, tail=tail, commit_id=commit_id)
        self._tell("commit")
        if self.fail_after:
            raise self.fail_after.pop(0)
        return committed


class Program:
    """What a program opens. ``steps`` holds, in order, what was done at the end of its turns."""

    def __init__(self, *script: Any, store: InprocStore | None = None) -> None:
        self.store = store if store is not None else InprocStore()
        self.steps: list[str] = []
        self.log = ProbedLog(self.store, self.steps.append)
        self.model = ScriptedModel(script)
        self.close_fails: Exception | None = None
        self.refuses: Exception | None = None

    @asynccontextmanager
    async def resources(self, turn: Turn) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self.steps.append("close")
            if self.close_fails is not None:
                raise self.close_fails

    async def validate(self, outcome: TurnOutcome) -> None:
        self.steps.append("validate")
        if self.refuses is not None:
            raise self.refuses

    async def publish(self, name: str, payload: Payload) -> None:
        self.steps.append(name)

    @asynccontextmanager
    async def opened(self, **given: Any) -> AsyncIterator[PersistentSessions]:
        parts: dict[str, Any] = {
            "log": self.log,
            "model": self.model,
            "model_name": "m",
            "resources": self.resources,
            "validate": self.validate,
            "publish": self.publish,
        }
        async with persistent_sessions(**parts | given) as sessions:
            yield sessions

    @property
    def kinds(self) -> list[str]:
        """The kinds of all records of all sessions."""
        return [record.kind for session in self.store.sessions.values() for record in session.records]

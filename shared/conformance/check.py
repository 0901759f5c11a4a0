"""What a conformance kit is made of: checks with a sentence as their name, which any test runner can run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from shared.domain.errors import TurnkeeperError

#: A check that has not ended by then fails: an adapter that hangs is reported, it does not hang the run.
CHECK_TIMEOUT_S = 60.0

S = TypeVar("S")
E = TypeVar("E", bound=TurnkeeperError)


class ConformanceFailure(Exception):
    """An adapter breaks its contract; the message begins with the broken check's name, the cause says how."""


class Unmet(Exception):
    """Inside a check: a promise that was not kept. Reaches the runner as the cause of a ``ConformanceFailure``."""


@dataclass(frozen=True, slots=True)
class ConformanceCheck:
    """One behaviour of a port, ready to run: its name, what runs it, and the rows of docs/spec that it proves."""

    name: str
    run: Callable[[], Awaitable[None]]
    behaviours: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Check(Generic[S]):
    """One behaviour of a port, not yet bound to the subject that is to show it."""

    name: str
    behaviours: tuple[str, ...]
    body: Callable[[S], Awaitable[None]]

    def on(self, subject: S, *, timeout_s: float = CHECK_TIMEOUT_S) -> ConformanceCheck:
        """Return the check of this subject. Its ``run`` raises ``ConformanceFailure`` and nothing else but cancellation."""

        async def run() -> None:
            try:
                async with asyncio.timeout(timeout_s):
                    await self.body(subject)
            except Exception as error:  # whatever an adapter raises, the broken check is named
                raise ConformanceFailure(f"{self.name}: {type(error).__name__}: {error}") from error

        return ConformanceCheck(self.name, run, self.behaviours)


def check(name: str, *behaviours: str) -> Callable[[Callable[[S], Awaitable[None]]], Check[S]]:
    """Make a :class:`Check` of the function below: its sentence, and the behaviour rows that it proves."""

    def bind(body: Callable[[S], Awaitable[None]]) -> Check[S]:
        return Check(name, behaviours, body)

    return bind


def checks_of(namespace: Mapping[str, Any]) -> tuple[Check[Any], ...]:
    """Return every check that a module defines, in the order of the file; a kit asks with its ``globals()``."""
    return tuple(value for value in namespace.values() if isinstance(value, Check))


def require(condition: object, promise: str) -> None:
    """Raise ``Unmet`` with the promise unless the condition is true."""
    if not condition:
        raise Unmet(promise)


def same(found: object, expected: object, promise: str) -> None:
    """Raise ``Unmet`` with both values unless they are equal."""
    if found != expected:
        raise Unmet(f"{promise}: expected {expected!r}, found {found!r}")


@asynccontextmanager
async def refused(error: type[E], promise: str, **fields: Any) -> AsyncIterator[None]:
    """Require that the block raises exactly this error class, with these fields."""
    try:
        yield
    except error as raised:
        same(type(raised), error, promise)
        same({name: raised.fields.get(name) for name in fields}, fields, promise)
        return
    raise Unmet(f"{promise}: no {error.__name__} was raised")


async def outcomes(calls: Sequence[Awaitable[Any]]) -> list[Any]:
    """Run calls at once and return each one's answer or typed error; anything else is raised."""
    answers = await asyncio.gather(*calls, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, TurnkeeperError):
            raise answer
    return answers

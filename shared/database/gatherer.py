"""Gathers members that may share a statement: those that come together leave together, and nobody waits for long."""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, Literal, TypeVar

from shared.domain.errors import StoreUnavailable

M = TypeVar("M")
A = TypeVar("A")


class Apart(Enum):
    """The answer to a member that a group left out: nothing was done for it, or nobody knows; its own statement decides."""

    APART = "apart"


APART: Final = Apart.APART
#: Sends members of different sessions together; answers each in their order, or ``APART``. An error is that of all.
Send = Callable[[Sequence[M]], Awaitable[Sequence[A | Literal[Apart.APART]]]]


@dataclass(eq=False, slots=True)
class _Place(Generic[M, A]):
    """A member that waits, or that was sent and is not answered yet."""

    session: str
    member: M
    answer: asyncio.Future[A | Literal[Apart.APART]]


class Gatherer(Generic[M, A]):
    """Decides who leaves when, and with whom. Belongs to one event loop.

    While fewer than ``at_once`` statements are under way, those that one turn of the event loop brings leave when it is over;
    otherwise those that come wait for the next answer. They leave together, at most ``members_max`` and one a session.
    Whoever waited ``wait_s`` seconds leaves beside what is under way, up to ``at_once_late`` groups, so that one that waits
    for a row holds up no other.

    Members of one session leave in the order in which they came: behind a group of its session a member waits for that
    group's answer; behind one that went by itself (its head may be held for seconds) it goes by itself after ``wait_s``.
    A caller that is cancelled takes its member out while it waits. Once sent, its outcome is unknown to the caller, as
    that of a statement of its own would be.
    """

    def __init__(
        self, send: Send[M, A], *, members_max: int, wait_s: float, at_once: int, at_once_late: int
    ) -> None:
        self._send = send
        self._members_max = members_max
        self._wait_s = wait_s
        self._at_once = at_once
        self._at_once_late = max(at_once, at_once_late)
        self._waiting: dict[_Place[M, A], None] = {}
        self._under_way = 0
        self._grouped: set[str] = set()
        self._by_themselves: Counter[str] = Counter()
        self._sending: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._turns_end: asyncio.Handle | None = None

    @property
    def waiting(self) -> int:
        """How many wait to leave."""
        return len(self._waiting)

    async def apart(self, session: str, call: Callable[[], Awaitable[A]]) -> A:
        """Run a statement of one member that nobody waits for: it may be held up for seconds."""
        self._by_themselves[session] += 1
        try:
            return await call()
        finally:
            self._by_themselves[session] -= 1
            if not self._by_themselves[session]:
                del self._by_themselves[session]

    async def join(self, session: str, member: M) -> A | Literal[Apart.APART]:
        """Wait for the answer of the group that this member leaves with. Raises the group's error."""
        # Annotated, not subscripted: a call through an alias costs as much as all else here.
        place: _Place[M, A] = _Place(session, member, asyncio.get_running_loop().create_future())
        self._waiting[place] = None
        if self._turns_end is None:
            self._turns_end = asyncio.get_running_loop().call_soon(self._end_turn)
        try:
            return await place.answer
        finally:
            self._waiting.pop(place, None)

    async def close(self) -> None:
        """Wait until every group that left is answered. Whoever still waits leaves as before."""
        while self._sending:
            await asyncio.wait(self._sending)

    def _end_turn(self) -> None:
        self._turns_end = None
        self._leave(self._at_once)

    def _leave(self, at_once: int) -> None:
        """Send what waits and may leave, and see to it that the rest is looked at again."""
        while self._waiting and self._under_way < at_once and (group := self._take()):
            self._under_way += 1
            task = asyncio.get_running_loop().create_task(self._run(group), name="gathered statement")
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        if not self._waiting:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._wait_s, self._look_again)

    def _take(self) -> list[_Place[M, A]]:
        """Take the next group out of those that wait: the first member of each session that has none under way."""
        group: list[_Place[M, A]] = []
        passed: set[str] = set()
        for place in self._waiting:
            session = place.session
            # One whose caller was cancelled is about to be taken out: it is not sent.
            if place.answer.done() or session in passed:
                continue
            passed.add(session)
            if session not in self._grouped and session not in self._by_themselves:
                group.append(place)
                if len(group) == self._members_max:
                    break
        for place in group:
            del self._waiting[place]
            self._grouped.add(place.session)
        return group

    def _look_again(self) -> None:
        """Let go of those that waited as long as they may."""
        self._timer = None
        for place in [place for place in self._waiting if place.session in self._by_themselves]:
            del self._waiting[place]
            _settle(place, APART)
        self._leave(self._at_once_late)

    async def _run(self, group: Sequence[_Place[M, A]]) -> None:
        answers: Sequence[A | Literal[Apart.APART] | Exception] = ()
        try:
            answers = await self._answers(group)
        finally:
            # Without answers the loop is ending under us: what became of the group is unknown.
            answers = answers or [StoreUnavailable("the process ended before the database answered")] * len(
                group
            )
            for place, answer in zip(group, answers, strict=True):
                self._grouped.discard(place.session)
                _settle(place, answer)
            self._under_way -= 1
            self._leave(self._at_once)

    async def _answers(self, group: Sequence[_Place[M, A]]) -> Sequence[A | Literal[Apart.APART] | Exception]:
        try:
            return await self._send([place.member for place in group])
        except Exception as error:
            # One each: an exception keeps a traceback, and every caller adds its own to it.
            return [error, *(copy.copy(error) for _ in group[1:])]


def _settle(place: _Place[M, A], answer: A | Literal[Apart.APART] | Exception) -> None:
    """Answer a member, unless it is answered or its caller is gone."""
    if place.answer.done():
        return
    if isinstance(answer, Exception):
        place.answer.set_exception(answer)
    else:
        place.answer.set_result(answer)

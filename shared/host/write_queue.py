"""The writer's queue: what waits to be stored, strictly in order, bounded, and taken in batches that fit one commit."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeAlias, TypeVar

from shared.domain.bounds import COMMIT_MAX_BYTES
from shared.sessions.records import Draft, check_commit_size
from shared.turns.queue import CallEntry, Ended, Ending

T = TypeVar("T")

#: What one commit holds at most of things that were queued apart (EVT-62).
BATCH_ITEMS: Final = 64
BATCH_RECORDS: Final = 256


class Answer(Generic[T]):
    """What a queued item comes to, for the caller who waits for it, if one does."""

    def __init__(self) -> None:
        self._future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def give(self, value: T) -> None:
        """Answer; a caller who left hears nothing."""
        if not self._future.done():
            self._future.set_result(value)

    def fail(self, error: BaseException) -> None:
        """Fail the caller who waits."""
        if not self._future.done():
            self._future.set_exception(error)
            self._future.exception()  # whoever left needs no warning that nobody looked

    async def wait(self) -> T:
        """Return the answer; a caller who is cancelled leaves the item queued."""
        return await self._future


@dataclass(frozen=True, slots=True, eq=False)
class Append:
    """Records to store. One with ledger lines or a whole step ends its commit: lines of two must not meet in one."""

    drafts: Sequence[Draft]
    stepped: bool = False
    calls: Sequence[CallEntry] = ()
    answer: Answer[int] | None = None

    @property
    def ends_its_commit(self) -> bool:
        return self.stepped or bool(self.calls)


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A write of the host, or a transaction, at its place in the order."""

    op: Callable[[], Awaitable[Any]]
    answer: Answer[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Flush:
    """Answered with the log's seq once everything before it is stored."""

    answer: Answer[int]


@dataclass(frozen=True, slots=True, eq=False)
class Close:
    """The closing commit."""

    drafts: Sequence[Draft]
    ending: Ending
    calls: Sequence[CallEntry]
    answer: Answer[Ended]


Item: TypeAlias = Append | Run | Flush | Close


class WriteQueue:
    """Items in the order they came. At most ``capacity`` wait; callers beyond it wait for room, first come first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: deque[Item] = deque()
        self._entry = asyncio.Lock()
        self._room = asyncio.Event()

    def __len__(self) -> int:
        return len(self._items)

    async def put(self, items: Sequence[Item], is_open: Callable[[], None]) -> None:
        """Queue items side by side, each once there is room. ``is_open`` raises when nothing is taken any more."""
        async with self._entry:
            is_open()
            for item in items:
                while len(self._items) >= self._capacity:
                    self._room.clear()
                    await self._room.wait()
                    is_open()
                self._items.append(item)

    def put_at_once(self, items: Sequence[Item]) -> None:
        """Queue items beyond the capacity: for what the queue itself runs, which must not wait for its own room."""
        self._items.extend(items)

    def take(self) -> list[Item]:
        """Take what the next commit may hold: appends that follow each other, with the closing one after them or without.

        Any other item comes alone; nothing when none waits.
        """
        taken = [self._items.popleft()] if self._items else []
        records, size = _weight(taken)
        while self._items and len(taken) < BATCH_ITEMS and _takes_more(taken[-1]):
            following = self._items[0]
            more_records, more_size = _weight([following])
            records, size = records + more_records, size + more_size
            fits = records <= BATCH_RECORDS and size <= COMMIT_MAX_BYTES
            if not fits or not isinstance(following, Append | Close):
                break
            taken.append(self._items.popleft())
        self._room.set()
        return taken

    def drain(self) -> list[Item]:
        """Take everything, and let whoever waits for room look whether it is still open."""
        left = list(self._items)
        self._items.clear()
        self._room.set()
        return left


def split(drafts: Sequence[Draft]) -> Iterator[Sequence[Draft]]:
    """Cut the records of one append where a commit ends: after ``BATCH_RECORDS``, or before it would be too large."""
    part: list[Draft] = []
    size = 0
    for draft in drafts:
        check_commit_size([draft])
        more = _size(draft)
        if part and (len(part) == BATCH_RECORDS or size + more > COMMIT_MAX_BYTES):
            yield part
            part, size = [], 0
        part.append(draft)
        size += more
    if part:
        yield part


def _takes_more(item: Item) -> bool:
    return isinstance(item, Append) and not item.ends_its_commit


def _weight(items: Sequence[Item]) -> tuple[int, int]:
    drafts = [draft for item in items if isinstance(item, Append | Close) for draft in item.drafts]
    return len(drafts), sum(map(_size, drafts))


def _size(draft: Draft) -> int:
    return len(draft.text) if draft.text.isascii() else len(draft.text.encode())

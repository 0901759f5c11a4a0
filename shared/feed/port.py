"""The ports of the feed: what a worker writes, what a producer reads, and hints between processes.

All of it is best effort. Nothing here raises or waits for a server: with Redis away deltas and hints are given up and
counted, records still arrive by polling (FOL-17). Everything belongs to the process's event loop; nothing is thread-safe.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol

from shared.domain.ids import SessionId, TurnId, WorkerId
from shared.feed.live_text import LiveText


@dataclass(frozen=True, slots=True)
class FeedStats:
    """What a process's feed did since it was made.

    ``flushes`` counts round trips that wrote, ``entries`` deltas and snapshots written, ``snapshots`` the latter of them,
    ``hints`` published ones, ``dropped`` deltas and hints given up, ``failures`` failed exchanges with the server,
    ``read`` entries read. ``is_up`` says whether the last exchange worked; None before the first. ``listening`` turns' texts
    are listened to and ``watching`` channels watched as of now.
    """

    flushes: int = 0
    entries: int = 0
    snapshots: int = 0
    hints: int = 0
    dropped: int = 0
    failures: int = 0
    read: int = 0
    is_up: bool | None = None
    listening: int = 0
    watching: int = 0


class TurnFeed(Protocol):
    """Takes the text of one turn under one epoch. Never blocks, never raises."""

    def begin(self, run: int, step: int) -> None:
        """The step's text starts, or starts over, at offset 0; followers of an earlier try see a reset."""
        ...

    def push(self, run: int, step: int, text: str) -> None:
        """Add a piece to the step's text. NUL and lone surrogates become U+FFFD, as in the stored reply."""
        ...

    async def flush(self) -> None:
        """Wait until what was pushed is written, for a bounded time; returns at once while the server is away."""
        ...

    def close(self, *, ended: bool = False) -> None:
        """Write what is left with the next batch, then forget the turn. ``ended``: its reply is stored. Idempotent."""
        ...


class FeedWriter(Protocol):
    """Gives running turns their feeds."""

    def writer(self, turn_id: TurnId, epoch: int) -> TurnFeed:
        """Return a new feed of the turn; a higher epoch overrules a lower one."""
        ...


class Listening(Protocol):
    """A turn's live text as long as someone looks at it."""

    @property
    def text(self) -> LiveText:
        """The text; shared by all who listen to the turn in this process. Look, do not touch."""
        ...

    def close(self) -> None:
        """Stop looking. Idempotent."""
        ...


class FeedReader(Protocol):
    """Gives followers the live text of turns."""

    def listen(self, turn_id: TurnId) -> Listening:
        """Follow a turn's stream; ``text.wakes`` tells of news. One read serves all who listen to a turn."""
        ...


class ChangeHints(Protocol):
    """Says to other processes that something happened. A hint may be lost, doubled or late; polls are the guarantee."""

    def publish_change(self, session_id: SessionId) -> None:
        """Tell followers that the session changed; call it after the commit. Never blocks, never raises."""
        ...

    def publish_to_worker(self, worker_id: WorkerId, turn_id: TurnId) -> None:
        """Tell a worker process to look at a turn that it holds: it was cancelled (core 8). Never blocks or raises."""
        ...

    def watch_session(
        self, session_id: SessionId, on_change: Callable[[], None], on_gap: Callable[[], None]
    ) -> Callable[[], None]:
        """Call ``on_change`` at each hint for the session, ``on_gap`` when hints may have been missed and from now on are not.

        Returns its undoing.
        """
        ...

    def subscribe_worker(self, worker_id: WorkerId) -> AsyncIterator[TurnId]:
        """Yield the turns that this worker process is told to look at, until it is closed."""
        ...

    def stats(self) -> FeedStats:
        """Return the counters."""
        ...

"""The commits of one claim: numbered, under its fence, repeated by id until their outcome is known."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Required, TypedDict, TypeVar, Unpack
from uuid import uuid4

from shared.domain.errors import ConfigError, TurnRefused, Unavailable
from shared.domain.retrying import retried
from shared.host.port import CloseReason
from shared.sessions.records import Draft
from shared.turns.admission import TurnAdmission
from shared.turns.queue import CallEntry, Claim, Ended, Ending, Opened, TurnQueue

T = TypeVar("T")

CAPACITY_DEFAULT: Final = 1_024
CAPACITY_MAX: Final = 100_000
RETRIES_DEFAULT: Final = 8
RETRIES_MAX: Final = 1_000
_RETRY_MAX_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class WriterRules:
    """How a writer writes.

    ``capacity``: items that may wait, 1 to 100,000. ``retries``: conflicting commits in a row before a transaction is
    ``SessionContended``. ``patience_s``: how long one commit is repeated while the store is away or busy; None: for as long
    as the lease is trusted (something must call :meth:`QueuedTurnWriter.lose` then). ``extend_s``: every append moves the
    lease's end to that many seconds from then. Raises ``ConfigError`` naming the field and its bound.
    """

    capacity: int = CAPACITY_DEFAULT
    retries: int = RETRIES_DEFAULT
    patience_s: float | None = None
    extend_s: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.capacity <= CAPACITY_MAX:
            raise _out_of_bounds("capacity", f"1..{CAPACITY_MAX}")
        if not 0 <= self.retries <= RETRIES_MAX:
            raise _out_of_bounds("retries", f"0..{RETRIES_MAX}")
        if self.patience_s is not None and self.patience_s < 0:
            raise _out_of_bounds("patience_s", ">= 0")


@dataclass(frozen=True, slots=True)
class WriterEars:
    """Who hears of a writer's work, on its event loop: each commit's seq, when it was sent (loop time); whole steps.

    ``on_stored`` hears each commit's records, in the log's order.
    """

    on_commit: Callable[[int, float], None] = lambda _seq, _sent_at: None
    on_stored: Callable[[Sequence[Draft]], None] = lambda _drafts: None
    on_step: Callable[[], None] = lambda: None
    on_close: Callable[[CloseReason], None] = lambda _reason: None


class Opening(TypedDict, total=False):
    """How a claimed turn is opened, beside its records and its items."""

    title: Required[str | None]
    admit: TurnAdmission | None


class FencedCommits:
    """Sends what a claim's holder writes, one commit at a time.

    A commit whose answer was lost is repeated under the same id, so nothing is stored twice. All may raise ``FenceLost``
    or ``TurnClosed``, and a store error once the patience of the rules is spent. ``seq`` is the log's, as of the last one.
    """

    def __init__(self, queue: TurnQueue, claim: Claim, rules: WriterRules, ears: WriterEars) -> None:
        self.seq = 0
        self._queue = queue
        self._claim = claim
        self._rules = rules
        self._ears = ears
        # Another writer of the same claim must never find its commits among ours.
        self._prefix = f"{claim.fence.token}:{uuid4().hex[:8]}"
        self._number = 0

    async def open(
        self, drafts: Sequence[Draft], *, claims: Sequence[str] = (), **how: Unpack[Opening]
    ) -> Opened:
        """See :meth:`shared.turns.queue.TurnQueue.open`."""
        commit, sent_at = self._next_id(), _now()
        opened = await self.until_known(
            partial(self._queue.open, self._claim, commit, tuple(drafts), claims=tuple(claims), **how)
        )
        self.seq = opened.seq
        if opened.result == "opened":
            self._note(opened.seq, sent_at, drafts)
        return opened

    async def append(
        self,
        drafts: Sequence[Draft],
        *,
        stepped: bool = False,
        calls: Sequence[CallEntry] = (),
        expect: int | None = None,
    ) -> int:
        """See :meth:`shared.turns.queue.TurnQueue.append`."""
        commit, sent_at = self._next_id(), _now()
        append = partial(self._queue.append, self._claim, commit, drafts, stepped=stepped, calls=calls)
        seq = await self.until_known(partial(append, expect=expect, extend_s=self._rules.extend_s))
        self._note(seq, sent_at, drafts)
        if stepped:
            self._ears.on_step()
        return seq

    async def end(self, drafts: Sequence[Draft], ending: Ending, calls: Sequence[CallEntry]) -> Ended:
        """See :meth:`shared.turns.queue.TurnQueue.end`.

        All tries have one id, whatever they say: the first that is stored is the turn's end, and the others find it.
        """
        commit, sent_at = f"{self._claim.fence.token}:end", _now()
        ended = await self.until_known(
            partial(self._queue.end, self._claim, commit, drafts, ending, calls=calls)
        )
        self._note(ended.seq, sent_at, drafts)
        return ended

    async def until_known(self, send: Callable[[], Awaitable[T]]) -> T:
        """Return what the store answers, asked again while it is away or busy and the patience lasts."""
        patience_s, started_at = self._rules.patience_s, _now()
        return await retried(
            send,
            # The host's refusal is an answer: it has ended the turn.
            when=Unavailable,
            unless=TurnRefused,
            pause_max_s=_RETRY_MAX_S,
            until=lambda: patience_s is not None and _now() - started_at >= patience_s,
        )

    def _next_id(self) -> str:
        self._number += 1
        return f"{self._prefix}:{self._number}"

    def _note(self, seq: int, sent_at: float, drafts: Sequence[Draft]) -> None:
        self.seq = seq
        self._ears.on_stored(drafts)
        self._ears.on_commit(seq, sent_at)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _out_of_bounds(field: str, bound: str) -> ConfigError:
    return ConfigError(f"{field} of a turn's writer must be {bound}", field=field, bound=bound)

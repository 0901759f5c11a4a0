"""What this process holds: every claimed turn with its fence and the moment until which it may be trusted.

One loop renews all leases in one statement, one asks once a second which turns were cancelled or lost, and a timer a
turn (the watchdog) cancels work whose lease could not be renewed in time, whatever the reason (core 2, rule 4; core 8).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from shared.domain.errors import Unavailable
from shared.domain.ids import TurnId, WorkerId
from shared.leases.fence import Fence
from shared.leases.keeper import LeaseKeeper
from shared.turns.queue import PRIORITIES, Claim, TurnQueue

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Holding:
    """One claimed turn. ``lost`` says why it is no longer ours; its task is cancelled then and stores nothing more.

    ``stepped``: a whole step was stored under this claim, so the turn is no suspect any more (core 7).
    """

    claim: Claim
    task: asyncio.Task[None] | None = None
    lost: str | None = None
    stepped: bool = False
    #: Loop time at which the claim was sent.
    sent_at: float = 0.0

    @property
    def held_for_s(self) -> float:
        """Seconds since the claim was sent."""
        return asyncio.get_running_loop().time() - self.sent_at

    def lose(self, reason: str) -> None:
        """Mark the turn as no longer ours and cancel its work at its next await. The first reason stays."""
        if self.lost is None:
            self.lost = reason
            if self.task is not None:
                self.task.cancel()


@dataclass(slots=True)
class HoldingCounts:
    """Figures of the process since its start."""

    lost: dict[str, int] = field(default_factory=dict)
    orphans_released: int = 0


class Holdings:
    """Keeps the leases of one process. All methods belong to its event loop."""

    def __init__(
        self, queue: TurnQueue, worker: WorkerId, *, lease_s: float, renew_s: float, poll_s: float
    ) -> None:
        self._queue = queue
        self._worker = worker
        self._lease_s = lease_s
        self._poll_s = poll_s
        self._held: dict[TurnId, Holding] = {}
        self._look = asyncio.Event()
        self._claims_begun = 0
        self._claims_done = 0
        self._orphans: dict[TurnId, tuple[Fence, int]] = {}
        self._given_up: set[tuple[TurnId, Fence]] = set()
        self._store_failed_at = float("-inf")
        self.counts = HoldingCounts()
        self.keeper: LeaseKeeper[TurnId] = LeaseKeeper(
            queue.renew, lease_s=lease_s, renew_s=renew_s, on_store_failure=self.note_store_failure
        )

    # --- for the claimer and the runner ------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._held)

    @property
    def suspects(self) -> int:
        """Turns held now that may have killed a worker before, and have stored no step since."""
        return sum(h.claim.suspect and not h.stepped for h in self._held.values())

    @property
    def background(self) -> int:
        """Turns of the background held now."""
        return sum(h.claim.priority >= PRIORITIES["background"] for h in self._held.values())

    @property
    def may_take_over(self) -> bool:
        """False for one lease after this process was itself without the database (core 7)."""
        return asyncio.get_running_loop().time() - self._store_failed_at > self._lease_s

    def note_store_failure(self) -> None:
        """Remember that the database could not be reached just now."""
        self._store_failed_at = asyncio.get_running_loop().time()

    def begin_claim(self) -> float:
        """Note that a claim is sent now; return the moment, from which its leases are trusted."""
        self._claims_begun += 1
        return asyncio.get_running_loop().time()

    def end_claim(self) -> None:
        """Note that the claim was answered, or will never be."""
        self._claims_done += 1

    def take(self, claim: Claim, sent_at: float) -> Holding:
        """Hold a claimed turn; its watchdog runs from when the claim was sent."""
        holding = Holding(claim, sent_at=sent_at)
        self._held[claim.turn_id] = holding
        self.keeper.keep(claim.turn_id, claim.fence, sent_at, partial(self._note_loss, holding))
        return holding

    def drop(self, holding: Holding) -> None:
        """Let go of a turn that ended, was given back or was lost."""
        self.keeper.drop(holding.claim.turn_id, holding.claim.fence)
        if self._held.get(holding.claim.turn_id) is holding:
            del self._held[holding.claim.turn_id]
        if holding.lost is not None:
            self.counts.lost[holding.lost] = self.counts.lost.get(holding.lost, 0) + 1

    def give_up(self, holding: Holding) -> None:
        """Leave a turn of which not even the failure could be stored to its lease, so that the loss counts (core 7).

        Given back it would be claimed again at once, uncounted, for ever.
        """
        left = (holding.claim.turn_id, holding.claim.fence)
        self._given_up.add(left)
        # Twice the lease: a renewal may be on its way just now.
        asyncio.get_running_loop().call_later(2 * self._lease_s, self._given_up.discard, left)

    def note_step(self, claim: Claim) -> None:
        """Remember that a whole step of a held turn was stored."""
        held = self._held.get(claim.turn_id)
        if held is not None and held.claim.fence == claim.fence:
            held.stepped = True

    def look_soon(self) -> None:
        """Ask the store at once what was cancelled or lost (a hint came)."""
        self._look.set()

    # --- loops, from start to the end of the drain -------------------------------------------------------------

    async def renew_for_ever(self) -> None:
        """Renew every lease on its beat."""
        await self.keeper.renew_for_ever()

    async def watch_for_ever(self) -> None:
        """Ask each ``poll_s`` seconds, and when a hint comes, which turns are still ours."""
        while True:
            try:
                async with asyncio.timeout(self._poll_s):
                    await self._look.wait()
            except TimeoutError:
                pass
            self._look.clear()
            try:
                await self._watch()
            except Unavailable as error:
                self.note_store_failure()
                _log.warning("held turns could not be looked at: %s", error, extra={"code": error.code})

    async def _watch(self) -> None:
        asked = self.keeper.fences()
        watched = await self._queue.watch(self._worker, asked)
        for turn, reason in watched.lost.items():
            self.keeper.lose(turn, asked[turn], reason)
        # Counted after the answer: a claim begun while we asked may own what we were told of.
        await self._release_orphans(watched.orphans, self._claims_begun)

    async def _release_orphans(self, found: Mapping[TurnId, Fence], begun: int) -> None:
        """Give back rows that are ours without our knowing: the answer of the claim that took them was lost.

        A row of a claim still under way looks the same, so only a row first seen before that many claims were answered
        is given back.
        """
        unknown = {
            turn: fence
            for turn, fence in found.items()
            if ((held := self._held.get(turn)) is None or held.claim.fence != fence)
            and (turn, fence) not in self._given_up
        }
        seen = {}
        for turn, fence in unknown.items():
            before = self._orphans.get(turn)
            seen[turn] = before if before is not None and before[0] == fence else (fence, begun)
        self._orphans = seen
        for turn, (fence, since) in list(seen.items()):
            if self._claims_done >= since and await self._queue.release(turn, fence):
                self.counts.orphans_released += 1
                del self._orphans[turn]

    def _note_loss(self, holding: Holding, reason: str) -> None:
        _log.info("a turn is no longer held: %s", reason, extra=_about(holding))
        holding.lose(reason)


def _about(holding: Holding) -> dict[str, object]:
    return {
        "turn": str(holding.claim.turn_id),
        "session": holding.claim.session_id,
        "epoch": holding.claim.fence.epoch,
    }

"""The leases of a host's open turns: one loop renews them all in one statement, a timer each ends the trust in time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, get_args

from shared.domain.errors import Unavailable
from shared.domain.ids import TurnId, WorkerId
from shared.host.ownership import EveryMs, LeaseOwnership
from shared.host.port import CloseReason
from shared.host.writer import QueuedTurnWriter
from shared.leases.fence import Fence
from shared.leases.keeper import LeaseKeeper
from shared.turns.queue import Claim, Renewal, TurnQueue

_REASONS: Final[Mapping[str, CloseReason]] = {reason: reason for reason in get_args(CloseReason)}


class HeldLeases:
    """Keeps the leases of one instance's turns. The keep-alive runs only while there is a turn to keep (SES-88, 93).

    A turn that is ours no longer closes its writer, with the reason that the store gives.
    """

    def __init__(self, queue: TurnQueue, holder: WorkerId, ownership: LeaseOwnership) -> None:
        self._queue = queue
        self._holder = holder
        self._renew = ownership.renew
        self._reasons: dict[TurnId, str] = {}
        self._beat: asyncio.Task[None] | None = None
        every_s = ownership.renew.every_ms / 1_000 if isinstance(ownership.renew, EveryMs) else 0.0
        self.keeper: LeaseKeeper[TurnId] = LeaseKeeper(
            self._renew_all, lease_s=ownership.lease_s, renew_s=every_s
        )

    def hold(self, claim: Claim, sent_at: float, writer: QueuedTurnWriter) -> None:
        """Keep the lease of a turn whose begin was sent at ``sent_at`` (loop time), until :meth:`drop`."""
        self.keeper.keep(
            claim.turn_id, claim.fence, sent_at, lambda why: writer.lose(self._reason(claim.turn_id, why))
        )
        if self._beat is None and isinstance(self._renew, EveryMs):
            self._beat = asyncio.create_task(self.keeper.renew_for_ever(), name="host-leases")

    def note_commit(self, claim: Claim, sent_at: float) -> None:
        """A commit that extends the lease was answered: it is trusted from when that was sent."""
        if self._renew == "on-commit":
            self.keeper.trust(claim.turn_id, claim.fence, sent_at)

    def drop(self, claim: Claim) -> None:
        """Keep a lease no longer; the loop stops with the last one."""
        self.keeper.drop(claim.turn_id, claim.fence)
        if not len(self.keeper) and self._beat is not None:
            self._beat.cancel()
            self._beat = None

    async def _renew_all(self, fences: Mapping[TurnId, Fence], lease_s: float) -> Renewal:
        answer = await self._queue.renew(fences, lease_s)
        if answer.lost:
            with suppress(Unavailable):  # the reason is worth one statement, not the loss
                watched = await self._queue.watch(self._holder, {turn: fences[turn] for turn in answer.lost})
                self._reasons.update(watched.lost)
        return answer

    def _reason(self, turn: TurnId, why: str) -> CloseReason:
        return _REASONS.get(self._reasons.pop(turn, why), "interrupted")

"""What the pump asks of Postgres for this process: places, in fair order over the owners, under one identity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from shared.domain.errors import Unavailable
from shared.domain.ids import TurnId, WorkerId
from shared.turns.queue import Claim, ClaimRequest, TurnQueue
from workers.turns.holdings import Holding, Holdings


@dataclass(slots=True, kw_only=True)
class TurnClaimer:
    """Claims turns for one process and remembers its place in the rotation of owners."""

    queue: TurnQueue
    holdings: Holdings
    worker: WorkerId
    revisions: Sequence[str]
    lease_s: float
    attempts_max: int
    suspects_max: int
    running_per_owner: int
    cursor: str = ""
    hinted_last: bool = False

    async def claim(self, places: int, hints: Sequence[str]) -> Sequence[Holding]:
        """Own up to ``places`` turns. A hint that a full claim followed is not followed twice in a row: the rotation goes on."""
        ids = () if self.hinted_last else turn_ids(hints)
        sent_at = self.holdings.begin_claim()
        try:
            claims = await self.queue.claim(self._request(places, ids))
            holdings = [self.holdings.take(claim, sent_at) for claim in claims]
        except Unavailable:
            self.holdings.note_store_failure()
            raise
        finally:
            self.holdings.end_claim()
        self._move_on(claims, ids, full=len(claims) >= places)
        return holdings

    def _request(self, places: int, ids: Sequence[TurnId]) -> ClaimRequest:
        return ClaimRequest(
            worker=self.worker,
            places=places,
            revisions=self.revisions,
            lease_s=self.lease_s,
            cursor=self.cursor,
            hints=ids,
            takeovers=self.holdings.may_take_over,
            suspects_left=max(0, self.suspects_max - self.holdings.suspects),
            attempts_max=self.attempts_max,
            running_per_owner=self.running_per_owner,
        )

    def _move_on(self, claims: Sequence[Claim], hints: Sequence[TurnId], *, full: bool) -> None:
        ready = [c.owner for c in claims if not c.lost]
        # A hint's owner comes first, by whichever of its turns is due; it moves nothing, or its wakes would hold the
        # owners between back for ever. Left places go round once more: the owner that came last for the first time is
        # the furthest. (Not the greatest: the database's collation orders owners, not ours.)
        rotated = dict.fromkeys(owner for owner in ready if not hints or owner != ready[0])
        if rotated:
            self.cursor = next(reversed(rotated))
        self.hinted_last = bool(hints) and full


def turn_ids(names: Sequence[str]) -> tuple[TurnId, ...]:
    """Return the ids among ``names``; a wake is only a hint, so what is no id is passed over."""
    found = []
    for name in names:
        try:
            found.append(TurnId(UUID(name)))
        except ValueError:
            continue
    return tuple(found)

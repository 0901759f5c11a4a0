"""What the pump asks of Postgres for this process: places, in fair order over the owners, under one identity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from shared.domain.errors import Unavailable
from shared.domain.ids import TurnId, WorkerId
from shared.turns.queue import Claim, ClaimRequest, TurnQueue
from workers.turns.holdings import Holding, Holdings

#: One claim in so many begins with the turn that waits longest, whatever its priority and owner (DST-15).
OLDEST_EVERY: Final = 8


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
    capacity: int
    cursor: str = ""
    hinted_last: bool = False
    claims_sent: int = 0

    async def claim(self, places: int, hints: Sequence[str]) -> Sequence[Holding]:
        """Own up to ``places`` turns. A hint that a full claim followed is not followed twice in a row: the rotation goes on."""
        ids = () if self.hinted_last else turn_ids(hints)
        self.claims_sent += 1
        oldest_first = self.claims_sent % OLDEST_EVERY == 0
        sent_at = self.holdings.begin_claim()
        try:
            claims = await self.queue.claim(self._request(places, ids, oldest_first))
            holdings = [self.holdings.take(claim, sent_at) for claim in claims]
        except Unavailable:
            self.holdings.note_store_failure()
            raise
        finally:
            self.holdings.end_claim()
        self._move_on(claims, ahead=bool(ids) + oldest_first)
        self.hinted_last = bool(ids) and len(claims) >= places
        return holdings

    def _request(self, places: int, ids: Sequence[TurnId], oldest_first: bool) -> ClaimRequest:
        return ClaimRequest(
            worker=self.worker,
            places=places,
            revisions=self.revisions,
            lease_s=self.lease_s,
            cursor=self.cursor,
            hints=ids,
            background_places=max(0, background_places(self.capacity) - self.holdings.background),
            oldest_first=oldest_first,
            takeovers=self.holdings.may_take_over,
            suspects_left=max(0, self.suspects_max - self.holdings.suspects),
            attempts_max=self.attempts_max,
            running_per_owner=self.running_per_owner,
        )

    def _move_on(self, claims: Sequence[Claim], *, ahead: int) -> None:
        """Move the cursor to the last owner that the rotation served; up to ``ahead`` owners were served out of it."""
        # The owner of a hint, and of the turn that waits longest, come first; they move nothing, or an owner's wakes would
        # hold the owners between back for ever. Left places go round once more: the owner that came last for the first
        # time is the furthest. (Not the greatest: the database's collation orders owners, not ours.)
        rotated = list(dict.fromkeys(c.owner for c in claims if not c.lost))[ahead:]
        if rotated:
            self.cursor = rotated[-1]


def background_places(capacity: int) -> int:
    """Return how many of a process's places turns of the background may hold: at most half, at least one (DST-15)."""
    return max(1, capacity // 2)


def turn_ids(names: Sequence[str]) -> tuple[TurnId, ...]:
    """Return the ids among ``names``; a wake is only a hint, so what is no id is passed over."""
    found = []
    for name in names:
        try:
            found.append(TurnId(UUID(name)))
        except ValueError:
            continue
    return tuple(found)

"""The watcher: samples what is held and by whom, and writes late under fences that others have superseded.

The stale writer is honest about being one. A worker that was stopped past its lease cancels its own work before it writes again
(its watchdog), so real late writes are rare; they are counted all the same, from the workers' logs. Beside them the watcher
plays the holder that has no watchdog: for each turn that it sees claimed again it sends the lost holder's next write, an append
of a reply, under the lost fence, again and again while the new holder works. Postgres must refuse each of them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from producer.dev.torture.crew import Crew
from producer.dev.torture.postgres import PostgresTables
from producer.dev.torture.timeline import Timeline
from shared.domain.errors import FenceLost, TurnkeeperError
from shared.domain.ids import OwnerId, RunId, SessionId, TurnId
from shared.leases.fence import Fence
from shared.sessions.vocabulary import TurnReply, draft_of
from shared.turns.postgres import PostgresTurnQueue
from shared.turns.queue import Claim

SAMPLE_S: Final = 0.1
#: Samples that come later than this (the database is away, the machine has no core to spare) measure nothing.
LATE_S: Final = 0.25
SEEN_EVERY: Final = 5
SEEN_WITHIN_S: Final = 2.0
#: A turn that is overdue for longer is told of in the timeline, with these of its fields.
TOLD_OVERDUE_S: Final = 1.0
TOLD: Final = ("id", "epoch", "overdue_s", "lease_owner", "on_worker_loss", "attempts", "suspect")
STALE_WRITES_PER_FENCE: Final = 10

#: How a turn worker says that Postgres refused one of its writes (``workers/turns/runner.py``).
_REFUSED: Final = b"a write was refused"
_TRACEBACK: Final = b"Traceback (most recent call last)"


@dataclass(slots=True)
class HeldTime:
    """For how long turns stay held by holders that are gone, by the database's clock.

    A lease that has passed and that nobody took over nor ended shows a holder that is dead or stopped. What is counted is
    the lease and the time past it, less the time in which nobody could have repaired it by the protocol or
    the samples themselves came late. ``counted_s`` and
    ``not_counted_s`` are the time past leases, of all turns together; ``losses_measured`` are the losses with any of the first.
    """

    lease_s: float
    longest_s: float = 0.0
    longest_of: tuple[TurnId, int] | None = None
    losses: int = 0
    losses_measured: int = 0
    counted_s: float = 0.0
    not_counted_s: float = 0.0
    _overdue: dict[tuple[TurnId, int], float] = field(default_factory=dict)
    _counted: dict[tuple[TurnId, int], float] = field(default_factory=dict)

    def note(self, overdue: Mapping[tuple[TurnId, int], float], *, can_repair: bool) -> None:
        """Take one sample: seconds past the lease of each held turn (and epoch), negative while the lease lasts."""
        late = {held: seconds for held, seconds in overdue.items() if seconds > 0}
        for held, seconds in late.items():
            if held not in self._overdue:
                self.losses += 1
            passed = seconds - self._overdue.get(held, 0.0)
            step = passed if can_repair and passed <= LATE_S else 0.0
            self.counted_s += step
            self.not_counted_s += passed - step
            counted = self._counted.get(held, 0.0) + step
            self.losses_measured += step > 0 and counted == step
            self._counted[held] = counted
            if self.lease_s + counted > self.longest_s:
                self.longest_s, self.longest_of = self.lease_s + counted, held
        self._overdue = late
        self._counted = {held: self._counted[held] for held in late}


@dataclass(slots=True)
class StaleWriter:
    """Repeats the writes of holders that lost their turn. ``accepted`` names the turns whose log took one."""

    queue: PostgresTurnQueue
    refused: int = 0
    accepted: list[str] = field(default_factory=list)
    _last: dict[TurnId, Claim] = field(default_factory=dict)
    _stale: dict[TurnId, Claim] = field(default_factory=dict)
    _writes: Counter[TurnId] = field(default_factory=Counter)

    async def note(self, held: Mapping[TurnId, Claim]) -> None:
        """Take one sample of what is held: write under the fence before the present one, where there was one."""
        for turn, claim in held.items():
            before = self._last.get(turn)
            if before is not None and before.fence != claim.fence:
                self._stale[turn], self._writes[turn] = before, 0
        self._last |= held
        for turn in held:
            stale = self._stale.get(turn)
            if stale is not None and self._writes[turn] < STALE_WRITES_PER_FENCE:
                self._writes[turn] += 1
                await self._write(stale)

    async def _write(self, claim: Claim) -> None:
        reply = draft_of(TurnReply(outcome="completed", text="a reply of a holder that lost its turn"))
        commit = f"{claim.fence.token}:stale:{self._writes[claim.turn_id]}"
        try:
            await self.queue.append(claim, commit, [reply])
        except FenceLost:
            self.refused += 1
        else:
            self.accepted.append(str(claim.turn_id))


@dataclass(slots=True)
class Watch:
    """Samples until told to stop; what it saw last stands in its fields."""

    tables: PostgresTables
    queue: PostgresTurnQueue
    crew: Crew
    held: HeldTime
    stale: StaleWriter
    timeline: Timeline
    unfinished: list[str] = field(default_factory=list)
    recent: list[str] = field(default_factory=list)
    samples: int = 0
    failures: int = 0
    is_running: bool = True

    async def run(self) -> None:
        """Sample for ever; a database that is away is met again on the next beat."""
        beat = 0
        while self.is_running:
            try:
                await self._sample()
                if beat % SEEN_EVERY == 0:
                    await self._look_around()
                self.samples += 1
            except TurnkeeperError:
                self.failures += 1
            beat += 1
            await asyncio.sleep(SAMPLE_S)

    async def _sample(self) -> None:
        could_repair = self.crew.can_repair()
        rows = await self.tables.read("held")
        can_repair = could_repair and self.crew.can_repair()
        self.held.note(
            {(TurnId(row["id"]), row["epoch"]): row["overdue_s"] for row in rows}, can_repair=can_repair
        )
        for row in rows:
            if row["overdue_s"] > TOLD_OVERDUE_S:
                about = {name: str(row[name]) for name in TOLD}
                fit = [member.program.name for member in self.crew.members if member.is_fit]
                self.timeline.note(f"overdue: {about}, can repair: {can_repair}, fit: {fit}")
        await self.stale.note({TurnId(row["id"]): _claim(row) for row in rows})

    async def _look_around(self) -> None:
        self.unfinished = [str(row["id"]) for row in await self.tables.read("unfinished")]
        self.recent = [str(row["id"]) for row in await self.tables.read("recent")]
        workers = await self.queue.workers()
        self.crew.note_seen({one["pid"] for one in workers if one["silent_s"] < SEEN_WITHIN_S})


def count_refusals(logs: Sequence[Path]) -> int:
    """Return how often a worker says in these logs that Postgres refused a write of its own."""
    return sum(path.read_bytes().count(_REFUSED) for path in logs)


def count_tracebacks(logs: Sequence[Path]) -> int:
    """Return how many exceptions these logs show: what a process met and did not expect."""
    return sum(path.read_bytes().count(_TRACEBACK) for path in logs)


def _claim(row: Mapping[str, Any]) -> Claim:
    """Return what a holder of this row would show: only its ids and its fence are looked at."""
    return Claim(
        turn_id=TurnId(row["id"]),
        session_id=SessionId(row["session_id"]),
        owner=OwnerId(row["owner"]),
        fence=Fence(row["epoch"], row["token"]),
        number=None,
        origin="user",
        run_id=RunId(""),
        key=None,
        message=None,
        command=None,
        meta=None,
        agent="",
        agent_revision="1",
        on_worker_loss=row["on_worker_loss"],
        priority=1,
        attempts=0,
        suspect=False,
        lost=True,
        max_duration_s=None,
        open_for_s=None,
    )

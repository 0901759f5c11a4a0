"""The claim pump: turns wakes into batches claimed from the database, and runs each claimed work as its own coroutine.

States of the claiming coroutine::

    claiming ──short──▶ resting (gate open) ──wake or unasked time──▶ claiming
        │  ▲
        │  └──room──┐
        └──full─────┴─ without room (gate shut, one ring for others)

1. A claim asks for all the room there is; one that came back full is followed by another as soon as there is room.
2. Work that is owed is found without wakes: a pump with room claims unasked (DST-12, law 4).
3. Nothing that ``claim`` or ``run`` raises ends the pump; only ``drain`` and ``stop_now`` do.
4. While the event loop is overloaded there is no room beside what is held already; with nothing held, for one work (DST-32).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from shared.domain.errors import TurnkeeperError, Unavailable
from workers.parts import ConsumerGate

W = TypeVar("W")

_log: Final = logging.getLogger(__name__)

HINTS_MAX: Final = 1_000
HINTS_PER_CLAIM: Final = 200
BACKOFF_FIRST_S: Final = 0.1
BACKOFF_MAX_S: Final = 5.0
CLEAN_UP_S: Final = 5.0
#: Seconds after which an overloaded pump looks at its loop again.
OVERLOAD_LOOK_S: Final = 0.25


class Pump(Generic[W]):
    """Claims and runs the work of one queue; a :class:`workers.parts.QueueServer`.

    ``claim(n, hints)`` owns up to ``n`` works and returns them (all of them: what it does not return is nobody's).
    ``run(work)`` does one and stores its own end; cancelled, it releases or flushes within ``CLEAN_UP_S``. ``name``
    gives a work's id. ``ring`` rings this queue for the workers elsewhere. ``is_overloaded`` says whether the loop carries
    as much as it can. ``unasked_s`` is the mean of the time between claims nobody asked for, a third more or less of it at
    random.
    """

    def __init__(
        self,
        *,
        queue: str,
        capacity: int,
        claim: Callable[[int, Sequence[str]], Awaitable[Sequence[W]]],
        run: Callable[[W], Awaitable[None]],
        name: Callable[[W], str],
        ring: Callable[[], None],
        gate: ConsumerGate,
        is_overloaded: Callable[[], bool] = lambda: False,
        unasked_s: float = 1.5,
        hints_max: int = HINTS_MAX,
        rng: random.Random | None = None,
    ) -> None:
        self._queue = queue
        self._capacity = capacity
        self._claim = claim
        self._run = run
        self._name = name
        self._ring = ring
        self._gate = gate
        self._is_overloaded = is_overloaded
        self._unasked_s = unasked_s
        self._hints_max = hints_max
        self._rng = rng or random.Random()
        self._hints: dict[str, None] = {}
        self._held: dict[asyncio.Task[None], str] = {}
        self._claiming: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._wanted = True
        self._shut = False
        self._overloaded = False
        self._swallowed = False
        self._passed_on = False
        self._stopping = False
        self._claims_failing = 0
        self._counts = dict.fromkeys(
            (
                "offered",
                "dropped",
                "claims",
                "claimed",
                "lost_claims",
                "claim_failures",
                "failed",
                "rings",
                "overloads",
            ),
            0,
        )

    # --- from outside ----------------------------------------------------------------------------------------

    def offer(self, ids: Sequence[str] = ()) -> None:
        """Take a wake. Ids past ``hints_max`` waiting ones are dropped and counted; the wake itself never is.

        A pump that stops passes it on to the workers elsewhere, if it names ids: one without may be that very ring.
        """
        self._counts["offered"] += 1
        if self._stopping:
            if ids:
                self._ring_elsewhere()
            return
        for one in ids:
            if one in self._hints:
                continue
            if len(self._hints) >= self._hints_max:
                self._counts["dropped"] += 1
                continue
            self._hints[one] = None
        self._wanted = True
        self._swallowed = self._swallowed or self._shut
        self._changed.set()

    async def serve(self) -> None:
        """Claim and run until :meth:`drain` or :meth:`stop_now`; what is held then is theirs."""
        self._claiming = asyncio.create_task(self._claim_while_serving(), name=f"pump:{self._queue}")
        try:
            await asyncio.wait({self._claiming})
        except asyncio.CancelledError:
            self.stop_now()
            raise
        if not self._claiming.cancelled():
            self._claiming.result()

    async def drain(self, timeout_s: float) -> None:
        """Claim no more, let what is held go on for ``timeout_s`` seconds, then cancel it and await its clean-up.

        A claim under way is awaited, and what it owned is run: it belongs to this process already.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        self._stopping = True
        self._changed.set()
        if self._claiming is not None and not self._claiming.done():
            await asyncio.wait({self._claiming}, timeout=timeout_s)
            self._claiming.cancel()
            await asyncio.wait({self._claiming}, timeout=CLEAN_UP_S)
        if self._hints:
            self._ring_elsewhere()  # wakes that no claim of ours followed any more
        left = deadline - asyncio.get_running_loop().time()
        if self._held and left > 0:
            await asyncio.wait(set(self._held), timeout=left)
        if self._held:
            ids = sorted(self._held.values())
            _log.warning(
                "the time to drain is over: %d works are handed back", len(ids), extra=self._about(ids=ids)
            )
        self._cancel_held()
        if self._held:
            await asyncio.wait(set(self._held), timeout=CLEAN_UP_S)
        if self._held:
            _log.error("works did not end when cancelled", extra=self._about(ids=sorted(self._held.values())))

    def stop_now(self) -> None:
        """Claim no more and cancel everything held; a :meth:`drain` under way then ends early."""
        self._stopping = True
        self._changed.set()
        if self._claiming is not None:
            self._claiming.cancel()
        self._cancel_held()

    def info(self) -> dict[str, Any]:
        """Return what the pump holds and has counted; from any thread (each copy below is one step of the interpreter)."""
        ids = sorted(list(self._held.values()))
        return {
            "queue": self._queue,
            "held": len(ids),
            "capacity": self._capacity,
            "ids": ids,
            "without_room": self._shut,
            "overloaded": self._overloaded,
            "owes_a_claim": self._wanted and not self._shut and not self._stopping,
            "draining": self._stopping,
            **self._counts,
        }

    # --- claiming --------------------------------------------------------------------------------------------

    async def _claim_while_serving(self) -> None:
        loop = asyncio.get_running_loop()
        unasked_at = loop.time()
        while not self._stopping:
            # Cleared before anything is looked at: what changes from here on ends the wait below at once.
            self._changed.clear()
            room = self._find_room()
            if room <= 0:
                self._note_no_room()
                # What the loop carries changes without a word to us.
                await self._wait_for_change(OVERLOAD_LOOK_S if self._overloaded else None)
            elif not self._wanted and (wait_s := unasked_at - loop.time()) > 0:
                self._note_room()
                await self._wait_for_change(wait_s)
            else:
                await self._claim_once(room)
                unasked_at = loop.time() + self._unasked_s * self._rng.uniform(2 / 3, 4 / 3)

    async def _claim_once(self, room: int) -> None:
        hints = tuple(islice(self._hints, HINTS_PER_CLAIM))
        self._wanted = False
        try:
            works = await self._claim(room, hints)
        except Exception as error:  # whatever a claim meets, the pump outlives it (rule 3)
            self._wanted = True
            await self._back_off(error)
            return
        if self._claims_failing:
            _log.warning("claims succeed again", extra=self._about(failures=self._claims_failing))
            self._claims_failing = 0
        self._note_claim(hints, works, full=len(works) >= room)
        for work in works:
            self._start(work)

    def _note_claim(self, hints: Sequence[str], works: Sequence[W], *, full: bool) -> None:
        self._counts["claims"] += 1
        self._counts["claimed"] += len(works)
        for work in works:
            self._hints.pop(self._name(work), None)
        if full:
            self._wanted = True
            return
        # Nothing more is owed to this process: a hint it was given and did not get is lost (DST-07).
        self._counts["lost_claims"] += len(self._hints.keys() & hints)
        for one in hints if self._wanted else tuple(self._hints):
            self._hints.pop(one, None)

    async def _back_off(self, error: Exception) -> None:
        self._counts["claim_failures"] += 1
        self._claims_failing += 1
        if self._claims_failing == 1:
            expected = isinstance(error, Unavailable)
            _log.log(
                logging.WARNING if expected else logging.ERROR,
                "claims fail: %s",
                error,
                extra=self._about(code=getattr(error, "code", type(error).__name__)),
                exc_info=None if expected else error,
            )
        pause = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(self._claims_failing - 1, 10))
        resume_at = asyncio.get_running_loop().time() + pause * self._rng.uniform(0.5, 1.0)
        while not self._stopping and (wait_s := resume_at - asyncio.get_running_loop().time()) > 0:
            self._changed.clear()
            await self._wait_for_change(wait_s)

    async def _wait_for_change(self, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            pass

    # --- room ------------------------------------------------------------------------------------------------

    def _find_room(self) -> int:
        """Return how many works may be claimed now. A loop that others slow down still takes one at a time."""
        room = self._capacity - len(self._held)
        overloaded = self._is_overloaded()
        self._counts["overloads"] += overloaded and not self._overloaded
        self._overloaded = overloaded
        return min(room, 1 - len(self._held)) if overloaded else room

    def _note_no_room(self) -> None:
        """Shut the gate and ring once for the workers elsewhere; once more if a wake was swallowed since."""
        if not self._shut:
            self._shut = True
            self._gate.shut(self._queue)
            self._ring_elsewhere()
        elif self._swallowed and not self._passed_on:
            self._passed_on = True  # once a closing: two full workers must not play ping-pong with a wake
            self._ring_elsewhere()

    def _note_room(self) -> None:
        """Open the gate: there is room, and the last claim found no more to fill it with."""
        if self._shut:
            self._shut = self._swallowed = self._passed_on = False
            self._gate.open(self._queue)

    def _ring_elsewhere(self) -> None:
        self._counts["rings"] += 1
        self._ring()

    # --- running ---------------------------------------------------------------------------------------------

    def _start(self, work: W) -> None:
        name = self._name(work)
        task = asyncio.create_task(self._run_guarded(work, name), name=f"{self._queue}:{name}")
        self._held[task] = name
        task.add_done_callback(self._let_go)

    async def _run_guarded(self, work: W, name: str) -> None:
        try:
            await self._run(work)
        except Exception as error:  # one work's failure is its own (rule 3)
            self._counts["failed"] += 1
            code = error.code if isinstance(error, TurnkeeperError) else type(error).__name__
            _log.exception("work failed", extra=self._about(id=name, code=code))

    def _let_go(self, task: asyncio.Task[None]) -> None:
        self._held.pop(task, None)
        self._changed.set()

    def _cancel_held(self) -> None:
        # Soon, not now: a task that has not begun would be cancelled without its work ever having seen ``run``, which
        # is what releases it. The first step of each was scheduled before this.
        loop = asyncio.get_running_loop()
        for task in list(self._held):
            loop.call_soon(task.cancel)

    def _about(self, **fields: Any) -> dict[str, Any]:
        return {"queue": self._queue, **fields}

"""Liveness of a worker is progress, not a heartbeat: what is owed and not taken for too long ends the process (DST-30).

One thread looks a few times within the bound at three things::

    the event loop       its beats                  blocked: nothing of this process can be stored any more
    a pump               its claims                 it wants work, has room, and claims nothing
    a queue's consumer   the wakes that it took     its gate is open, wakes wait at the broker, and it takes none

What did not move between enough looks in a row is reported, once; its supervisor starts another process. Looks are
counted, not seconds: a process that was stopped for an hour gets all of them anew once it goes on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final, Protocol

from shared.domain.errors import BrokerUnavailable

_log: Final = logging.getLogger(__name__)

#: Looks within the bound.
LOOKS: Final = 6
LOOP_BLOCKED: Final = "the event loop is blocked"


class Standstill:
    """Counts looks in a row at which something was owed and nothing had moved since the look before."""

    def __init__(self, looks: int) -> None:
        self._looks = looks
        self._seen: Hashable = None
        self._still = 0

    def look(self, moved: Hashable, *, owed: bool = True) -> bool:
        """Take a look; return whether it stands still for good."""
        self._still = self._still + 1 if owed and moved == self._seen else 0
        self._seen = moved
        return self._still >= self._looks


class Watched(Protocol):
    """What is watched of a worker process; called from the watching thread."""

    def beats(self) -> int:
        """Return how often the event loop has beaten."""
        ...

    def pumps(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the ``info`` of what serves each queue; see :class:`workers.parts.QueueServer`."""
        ...

    def taken(self, queue: str) -> int:
        """Return how many wakes of a queue this process took from the broker."""
        ...

    def waiting(self, queues: Iterable[str]) -> Mapping[str, int]:
        """Return how many wakes wait at the broker. Blocks a bounded time; raises ``BrokerUnavailable``."""
        ...


class Liveness:
    """Looks at a process in a thread of its own and calls ``on_stuck(reason)`` there, at most once."""

    def __init__(self, watched: Watched, *, bound_s: float, on_stuck: Callable[[str], None]) -> None:
        self._watched = watched
        self._pause_s = bound_s / LOOKS
        self._on_stuck = on_stuck
        self._loop = Standstill(LOOKS)
        self._claims: dict[str, Standstill] = {}
        self._consumers: dict[str, Standstill] = {}
        self._ended = threading.Event()

    def start(self) -> None:
        """Begin to look."""
        threading.Thread(target=self._watch, name="liveness", daemon=True).start()

    def stop(self) -> None:
        """Look no more: the process stops in order. Safe in a signal handler's thread; returns at once."""
        self._ended.set()

    def look(self) -> str | None:
        """Take one look at everything; return why the process is stuck, or None."""
        if self._loop.look(self._watched.beats()):
            return LOOP_BLOCKED
        pumps = self._watched.pumps()
        for queue, info in pumps.items():
            tried = info.get("claims", 0) + info.get("claim_failures", 0)
            standstill = self._claims.setdefault(queue, Standstill(LOOKS))
            if standstill.look(tried, owed=bool(info.get("owes_a_claim"))):
                return f"{queue}: work is wanted, there is room, and nothing is claimed"
        return self._look_at_consumers(
            [
                queue
                for queue, info in pumps.items()
                if not info.get("without_room") and not info.get("draining")
            ]
        )

    def _look_at_consumers(self, open_queues: list[str]) -> str | None:
        try:
            waiting = self._watched.waiting(open_queues)
        except BrokerUnavailable as error:
            # A broker that is away owes nothing; Celery connects again by itself.
            _log.debug("wakes were not counted: %s", error)
            waiting = {}
        for queue in self._watched.pumps():
            standstill = self._consumers.setdefault(queue, Standstill(LOOKS))
            if standstill.look(self._watched.taken(queue), owed=waiting.get(queue, 0) > 0):
                return f"{queue}: {waiting[queue]} wakes wait at the broker and none is taken"
        return None

    def _watch(self) -> None:
        while not self._ended.wait(self._pause_s):
            reason = self.look()
            if reason is not None and not self._ended.is_set():
                self._on_stuck(reason)
                return

"""The port of the wake publisher, and what it counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class WakeStats:
    """What a publisher did since it was made.

    ``published`` counts messages, ``coalesced`` rings that joined a message already owed, ``dropped`` ids that were given
    up (and rings of unknown queues or after the close), ``failed`` publishes that the broker did not take.
    """

    published: int = 0
    coalesced: int = 0
    dropped: int = 0
    failed: int = 0
    broker_ok: bool = True
    published_by_queue: Mapping[str, int] = field(default_factory=dict)


class WakePublisher(Protocol):
    """Rings the bell of a queue.

    A ring is a hint: it may be lost, doubled, delayed or reordered, and sweeps and unasked claims find what it was about
    (law 1, DST-05). ``ids`` are tried first by whoever hears it; a ring without ids is as good. Never blocks, never
    raises, and may be called from the event loop or any thread (DST-28).
    """

    def ring(self, queue: str, ids: Sequence[str] = ()) -> None: ...

    def stats(self) -> WakeStats: ...

    def close(self, timeout: float) -> None:
        """Send what is owed within ``timeout`` seconds if the broker answers, then stop. Idempotent; blocks so long."""
        ...

"""A publisher that keeps its rings instead of sending them: for tests and for runs without a broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shared.wakes.port import WakeStats


@dataclass(slots=True)
class InprocWakes:
    """Records every ring in order, and hands it to ``on_ring`` in the caller's thread when one is given."""

    on_ring: Callable[[str, tuple[str, ...]], None] | None = None
    rings: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    def ring(self, queue: str, ids: Sequence[str] = ()) -> None:
        self.rings.append((queue, tuple(ids)))
        if self.on_ring is not None:
            self.on_ring(queue, tuple(ids))

    def stats(self) -> WakeStats:
        return WakeStats(
            published=len(self.rings), published_by_queue=Counter(queue for queue, _ in self.rings)
        )

    def close(self, timeout: float) -> None:
        return None

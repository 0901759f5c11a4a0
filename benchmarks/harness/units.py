"""What the product's processes count themselves, read from their metrics: units of work, and wakes that left."""

from __future__ import annotations

import urllib.request
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

BOUND_S: Final = 10.0
_STORE: Final = "turnkeeper_store_"
_WAKES: Final = "turnkeeper_wakes_total"
#: What a look at the metrics itself asks the database for.
_OF_THE_LOOK: Final = frozenset({"worker.list", "turn.backlog", "turn.unserved", "job.backlog"})


@dataclass(frozen=True, slots=True)
class Units:
    """Totals over some processes: each figure of the database by unit of work, and messages that the broker took."""

    store: dict[str, Counter[str]] = field(default_factory=dict)
    messages: float = 0.0

    def since(self, before: Units) -> Units:
        """Return what came after an earlier look at the same processes."""
        store = {name: units - before.store.get(name, Counter()) for name, units in self.store.items()}
        return Units(store, self.messages - before.messages)

    def total(self, figure: str) -> float:
        """Return a figure (``statements``, ``round_trips``, ``commits``, ``calls``, ``rows``) over all units."""
        return sum(self.store.get(figure, Counter()).values())


def read_units(ports: Iterable[int]) -> Units:
    """Return the totals of the processes whose metrics are at these ports of this machine. Blocks."""
    store: dict[str, Counter[str]] = {}
    messages = 0.0
    for port in ports:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=BOUND_S) as answer:
            text = answer.read().decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == _WAKES and sample.labels.get("result") == "published":
                    messages += sample.value
                elif sample.name.startswith(_STORE) and sample.name.endswith("_total"):
                    figure = sample.name.removeprefix(_STORE).removesuffix("_total")
                    unit = sample.labels["unit"]
                    if unit not in _OF_THE_LOOK:
                        store.setdefault(figure, Counter())[unit] += int(sample.value)
    return Units(store, messages)

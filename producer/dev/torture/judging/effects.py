"""What happened outside, by the journal of the tools, held against what was ordered."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from producer.dev.torture.app import KEYED_TOOLS
from producer.dev.torture.judging.judgement import Judgement
from producer.dev.torture.load.notes import Order


@dataclass(frozen=True, slots=True)
class Effect:
    """One line of the tools' journal."""

    tool: str
    order: str
    token: str
    turn: str


def judge_effects(found: Judgement, orders: Mapping[str, Order], effects: Sequence[Effect]) -> None:
    """Count what happened outside more often than its order's calls allow.

    A tool whose effects the outside keeps by token may meet a token twice; any other may not. No order may have effects under
    more tokens than it has calls, whatever the tool.
    """
    found.effects = len(effects)
    by_order: dict[str, list[Effect]] = defaultdict(list)
    for effect in effects:
        by_order[effect.order].append(effect)
    for name, lines in by_order.items():
        allowed = orders[name].effects if name in orders else 0
        tokens = Counter(effect.token for effect in lines)
        surplus = max(0, len(tokens) - allowed)
        if lines[0].tool not in KEYED_TOOLS:
            surplus += sum(count - 1 for count in tokens.values())
        found.doubled_effects += [f"{name}: {dict(tokens)}, {allowed} allowed"] * surplus


def read_journal(path: Path) -> list[Effect]:
    """Return every effect that happened, in order; none when no tool ever ran."""
    if not path.exists():
        return []
    return [Effect(**json.loads(line)) for line in path.read_text().splitlines()]

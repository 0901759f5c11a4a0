"""What a judgement found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Judgement:
    """What was found. Every list names what is wrong, for a person to look at; the figures are their lengths."""

    admitted: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    doubled_turns: list[str] = field(default_factory=list)
    doubled_replies: list[str] = field(default_factory=list)
    doubled_effects: list[str] = field(default_factory=list)
    doubled_items: list[str] = field(default_factory=list)
    doubled_tasks: list[str] = field(default_factory=list)
    missing_effects: list[str] = field(default_factory=list)
    log_errors: list[str] = field(default_factory=list)
    follow_errors: list[str] = field(default_factory=list)
    records: int = 0
    effects: int = 0
    delivered: int = 0
    answered: int = 0
    dropped: int = 0
    tasks: int = 0
    tasks_cancelled: int = 0

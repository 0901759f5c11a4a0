"""Values of a recall: sources, their lookups, limits and the composed result (RCL-04 to 30)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from memory_pipeline.store.documents import Passage
from shared.domain.errors import ConfigError

PASSAGES_PER_LOOKUP_MAX = 128


@dataclass(frozen=True, slots=True)
class Found:
    """Passages in rank order."""

    passages: tuple[Passage, ...]


@dataclass(frozen=True, slots=True)
class NoMatch:
    """The source was asked and has nothing; success, also for an essential source."""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The source could not be asked; ``reason`` is a stable word for people who operate it."""

    reason: str


@dataclass(frozen=True, slots=True)
class InsufficientFreshness:
    """The source answered from a state that is too old."""


Lookup = Found | NoMatch | Unavailable | InsufficientFreshness


@dataclass(frozen=True, slots=True)
class RecallSource:
    """A readable source. ``essential``: without it the recall fails; otherwise a returned outcome is reported only."""

    id: str
    essential: bool
    read: Callable[[], Awaitable[Lookup]]


@dataclass(frozen=True, slots=True)
class RecallLimits:
    """Bounds of one recall (decision 30); the whole rendered envelope counts."""

    max_sources: int = 8
    max_items: int = 8
    max_bytes: int = 16_384
    max_tokens: int = 4_096
    timeout_s: float = 1.0
    max_input_bytes: int = 16_777_216

    def __post_init__(self) -> None:
        for name, low, high in (
            ("max_sources", 1, 16),
            ("max_items", 1, 128),
            ("max_bytes", 1, 4_194_304),
            ("max_tokens", 1, 1_048_576),
            ("timeout_s", 0.001, 60.0),
            ("max_input_bytes", 1, 67_108_864),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not low <= value <= high:
                raise ConfigError(f"recall {name} must be {low}..{high}", field=f"recall.{name}")


OutcomeStatus = Literal["found", "no-match", "unavailable", "insufficient-freshness"]


@dataclass(frozen=True, slots=True)
class SourceOutcome:
    """What happened at one source; for operators, never for a prompt."""

    id: str
    status: OutcomeStatus
    reason: str | None = None
    selected: int = 0
    deduplicated: int = 0
    omitted: int = 0


@dataclass(frozen=True, slots=True)
class Recalled:
    """The composed view: ``text`` is what a model may see; ``passages`` keep their private authority for the host."""

    text: str = ""
    passages: tuple[Passage, ...] = ()
    outcomes: tuple[SourceOutcome, ...] = field(default=())
    bytes: int = 0
    estimated_tokens: int = 0


EstimateTokens = Callable[[str], int]


def one_token_a_byte(text: str) -> int:
    """Estimate tokens safely: one a UTF-8 byte."""
    return len(text.encode())


def outcome_of(source: RecallSource, lookup: Lookup) -> SourceOutcome:
    """Return the outcome of a lookup before anything of it was selected."""
    match lookup:
        case Found():
            return SourceOutcome(source.id, "found")
        case NoMatch():
            return SourceOutcome(source.id, "no-match")
        case Unavailable(reason):
            return SourceOutcome(source.id, "unavailable", reason)
        case InsufficientFreshness():
            return SourceOutcome(source.id, "insufficient-freshness")


Sources = Sequence[RecallSource]

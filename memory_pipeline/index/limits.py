"""Bounds of a refresh, of a query and of the index in memory; each is refused when it is made, not when it is met."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shared.domain.errors import ConfigError

MIB: Final = 1024 * 1024
COMPONENTS_MAX: Final = 16_777_216


@dataclass(frozen=True, slots=True)
class SemanticIndexLimits:
    """Bounds of one refresh: bytes and chunks of one source, and its time in seconds (SEM-12, 70).

    The chunks are enough for a document of as many facts as one may have, each on its line, some of them long.
    """

    max_source_bytes: int = 262_144
    max_chunks: int = 256
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        _check("max_source_bytes", self.max_source_bytes, 1, 4 * MIB)
        _check("max_chunks", self.max_chunks, 1, 256)
        _check("timeout_s", self.timeout_s, 0.001, 300.0)


@dataclass(frozen=True, slots=True)
class SemanticQueryLimits:
    """Bounds of one query; scores are cosines, ``timeout_s`` is in seconds (SEM-13, 14, 24, 65).

    ``max_source_bytes`` bounds the distinct documents that are read again, ``max_output_bytes`` the passages given.
    At 0.25 the local model, with chunks by lines, finds 12 of 16 questions' facts among 15 and nothing for 5 others; at
    0.35 it finds 8.
    """

    max_query_bytes: int = 8_192
    max_candidates: int = 16
    max_scanned_chunks: int = 8_192
    min_score: float = 0.25
    timeout_s: float = 1.0
    max_source_bytes: int = 16 * MIB
    max_output_bytes: int = 16 * MIB

    def __post_init__(self) -> None:
        _check("max_query_bytes", self.max_query_bytes, 1, 65_536)
        _check("max_candidates", self.max_candidates, 1, 128)
        _check("max_scanned_chunks", self.max_scanned_chunks, 1, 65_536)
        _check("min_score", self.min_score, -1.0, 1.0)
        _check("timeout_s", self.timeout_s, 0.001, 60.0)
        _check("max_source_bytes", self.max_source_bytes, 1, 64 * MIB)
        _check("max_output_bytes", self.max_output_bytes, 1, 64 * MIB)


@dataclass(frozen=True, slots=True)
class InprocCapacity:
    """What an index in memory keeps: sources (tombstones count), chunks, bytes of identities (SEM-16, 35, 41).

    ``max_source_bytes`` counts the UTF-8 JSON of the kept source identities, neither keys of mappings nor vectors.
    """

    max_sources: int = 1_024
    max_chunks: int = 8_192
    max_source_bytes: int = 16 * MIB

    def __post_init__(self) -> None:
        _check("max_sources", self.max_sources, 1, 65_536)
        _check("max_chunks", self.max_chunks, 1, 65_536)
        _check("max_source_bytes", self.max_source_bytes, 1, 64 * MIB)

    def check_components(self, dimensions: int) -> None:
        """Raise ``ConfigError`` if full chunks of so many dimensions are too many components (SEM-38)."""
        if self.max_chunks * dimensions > COMPONENTS_MAX:
            raise ConfigError(
                f"max_chunks times dimensions must be at most {COMPONENTS_MAX}", field="index.max_chunks"
            )


def _check(name: str, value: float, low: float, high: float) -> None:
    if isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(f"index {name} must be {low}..{high}", field=f"index.{name}")

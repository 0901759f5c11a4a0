"""The identity of an index: which embedder, and which chunking, its vectors come from (SEM-04 to 08)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Final, Literal

from shared.domain.bounds import check_identity
from shared.domain.canonical import canonical_json
from shared.domain.errors import InvalidInput, MemoryCorrupt
from shared.models.embeddings import DIMENSIONS_MAX, EmbedderProfile

#: How a text is cut: greedily by code points; or after each line, which suits a document of one fact a line, since the
#: vector of many facts together is near to no question about one of them.
Chunker = Literal["utf8-codepoint@1", "utf8-line@1"]
CODEPOINTS: Final = "utf8-codepoint@1"
LINES: Final = "utf8-line@1"
CHUNK_BYTES: Final = 1_024
CHUNK_BYTES_MIN: Final = 4
CHUNK_BYTES_MAX: Final = 8_192
_VERSION: Final = 1


@dataclass(frozen=True)
class SemanticProfile:
    """Which vectors an index holds; a change of any part is another index, which has to be built (SEM-05).

    ``model_revision`` names what else decides the vectors: weights, preprocessing, precision. Raises ``InvalidInput``.
    """

    provider: str
    model: str
    model_revision: str
    dimensions: int
    max_chunk_bytes: int = CHUNK_BYTES
    chunker: Chunker = CODEPOINTS
    distance: Literal["cosine"] = "cosine"

    def __post_init__(self) -> None:
        for name in ("provider", "model", "model_revision"):
            check_identity(getattr(self, name), field=name)
        _check_range("dimensions", self.dimensions, 1, DIMENSIONS_MAX)
        _check_range("max_chunk_bytes", self.max_chunk_bytes, CHUNK_BYTES_MIN, CHUNK_BYTES_MAX)
        _check_known("chunker", self.chunker, (CODEPOINTS, LINES))
        _check_known("distance", self.distance, ("cosine",))

    @classmethod
    def of(
        cls, embedder: EmbedderProfile, *, max_chunk_bytes: int = CHUNK_BYTES, chunker: Chunker = CODEPOINTS
    ) -> SemanticProfile:
        """Return the profile of an embedder's vectors over chunks of at most this many bytes."""
        return cls(
            embedder.provider,
            embedder.model,
            embedder.revision,
            embedder.dimensions,
            max_chunk_bytes=max_chunk_bytes,
            chunker=chunker,
        )

    @property
    def embedder(self) -> EmbedderProfile:
        """The embedder that this profile's vectors come from; no other one's are compared with them (SEM-06)."""
        return EmbedderProfile(self.provider, self.model, self.model_revision, self.dimensions)

    @cached_property
    def encoding(self) -> str:
        """The canonical JSON of all parts: what is stored, and digested."""
        return canonical_json(
            {
                "version": _VERSION,
                "provider": self.provider,
                "model": self.model,
                "model_revision": self.model_revision,
                "dimensions": self.dimensions,
                "chunker": self.chunker,
                "max_chunk_bytes": self.max_chunk_bytes,
                "distance": self.distance,
            }
        )

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the encoding, in hex: the profile's lasting name."""
        return sha256(self.encoding.encode()).hexdigest()


def decode_profile(encoding: str) -> SemanticProfile:
    """Read a stored profile; raise ``MemoryCorrupt`` for one that does not decode or is not canonical."""
    try:
        parts = json.loads(encoding)
        parts.pop("version")
        profile = SemanticProfile(**parts)
    except (ValueError, TypeError, AttributeError, KeyError, InvalidInput) as error:
        raise MemoryCorrupt("a stored index profile does not decode") from error
    if profile.encoding != encoding:
        raise MemoryCorrupt("a stored index profile is not canonical")
    return profile


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not low <= value <= high:
        raise InvalidInput(f"{name} must be {low}..{high}", field=name, bound=f"{low}..{high}")


def _check_known(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InvalidInput(f"{name} must be one of {', '.join(known)}", field=name, bound="|".join(known))

"""The port of embedding models, what an index must know of one, and the checks of texts and vectors. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from shared.domain.bounds import check_identity, check_text
from shared.domain.canonical import digest_of
from shared.domain.errors import EmbeddingInvalid, InvalidInput
from shared.models.types import Usage

#: Texts of one call, bytes of one text in UTF-8 (some 8,000 tokens, the limit of usual models), components of a vector.
TEXTS_MAX: Final = 2048
TEXT_MAX_BYTES: Final = 32 * 1024
DIMENSIONS_MAX: Final = 4096

_PROFILE_DOMAIN: Final = "turnkeeper/embedder@1"


@dataclass(frozen=True, slots=True)
class EmbedderProfile:
    """Which vectors these are: those of two profiles are never compared, equal dimensions or not (SEM-04 to SEM-08).

    ``revision`` names what else decides the vectors: weights, preprocessing, precision. Raises ``InvalidInput``.
    """

    provider: str
    model: str
    revision: str
    dimensions: int

    def __post_init__(self) -> None:
        for name in ("provider", "model", "revision"):
            check_identity(getattr(self, name), field=name)
        if not 1 <= self.dimensions <= DIMENSIONS_MAX:
            bound = f"1..{DIMENSIONS_MAX}"
            raise InvalidInput(f"dimensions must be {bound}", field="dimensions", bound=bound)

    @property
    def digest(self) -> str:
        """The profile's lasting identity: SHA-256, in hex, over all four parts."""
        return digest_of([_PROFILE_DOMAIN, self.provider, self.model, self.revision, self.dimensions])


@dataclass(frozen=True, slots=True)
class Embeddings:
    """One vector for each text, in the texts' order; ``usage`` is all zero when the provider reports none."""

    vectors: list[list[float]]
    usage: Usage = field(default_factory=Usage)


class Embedder(Protocol):
    """A model that turns texts into vectors of ``profile.dimensions`` components.

    **Vectors.** Each has length 1, is finite, and is the same for the same text, whatever texts stand beside it (up
    to the precision of the provider). Cosine similarity is their dot product.

    **Bounds.** At most ``TEXTS_MAX`` texts, each of 1 to ``TEXT_MAX_BYTES`` bytes, storable; else ``InvalidInput``
    before anything is sent. No texts: no call.

    **Failure.** ``EmbeddingInvalid`` a vector is missing, too many, of the wrong length, not finite or has no norm
    (SEM-32); ``ModelUnavailable`` and ``ModelStreamBroken`` the endpoint is away, or its answer broke;
    ``ModelRefused`` and ``ModelAuthFailed`` as for chat models. Nothing is returned unless all vectors are there. No
    error holds a text or a credential.
    """

    @property
    def profile(self) -> EmbedderProfile:
        """The identity of the vectors; it never changes."""
        ...

    async def embed(self, texts: Sequence[str]) -> Embeddings:
        """Return the vectors of ``texts``."""
        ...


def check_texts(texts: Sequence[str]) -> None:
    """Raise ``InvalidInput`` unless ``texts`` are within the port's bounds."""
    if len(texts) > TEXTS_MAX:
        raise InvalidInput(f"more than {TEXTS_MAX} texts", field="texts", bound=f"<= {TEXTS_MAX}")
    for number, text in enumerate(texts):
        if not text:
            raise InvalidInput("an empty text has no vector", field=f"texts/{number}", bound=">= 1 byte")
        check_text(text, field=f"texts/{number}", max_bytes=TEXT_MAX_BYTES)


def batches(texts: Sequence[str], *, texts_max: int, bytes_max: int) -> Iterator[Sequence[str]]:
    """Yield ``texts`` in order, in runs of at most ``texts_max``, and ``bytes_max`` bytes unless one text has more."""
    start = size = 0
    for end, text in enumerate(texts):
        added = len(text.encode())
        if end > start and (end - start == texts_max or size + added > bytes_max):
            yield texts[start:end]
            start, size = end, 0
        size += added
    if start < len(texts):
        yield texts[start:]


def unit_vectors(rows: Sequence[Any], *, count: int, profile: EmbedderProfile) -> list[list[float]]:
    """Return a provider's vectors at length 1; raise ``EmbeddingInvalid`` for what does not fit (SEM-32)."""
    if len(rows) != count:
        raise EmbeddingInvalid(f"{count} texts got {len(rows)} vectors", reason="count")
    return [_unit_vector(row, profile.dimensions).tolist() for row in rows]


def _unit_vector(row: Any, dimensions: int) -> NDArray[np.float64]:
    vector = _as_vector(row)
    if len(vector) != dimensions:
        raise EmbeddingInvalid(
            f"a vector has {len(vector)} components instead of {dimensions}", reason="dimensions"
        )
    # Squares of very large components overflow; that is what the check is for.
    with np.errstate(over="ignore"):
        norm = float(np.linalg.norm(vector))
    if not np.isfinite(norm):
        raise EmbeddingInvalid("a vector is not finite", reason="not-finite")
    if norm <= 0:
        raise EmbeddingInvalid("a vector has no norm", reason="zero-norm")
    return vector / norm


def _as_vector(row: Any) -> NDArray[np.float64]:
    if isinstance(row, np.ndarray) and row.ndim == 1 and row.dtype.kind == "f":
        return row.astype(np.float64)
    if isinstance(row, list | tuple) and all(type(component) in (float, int) for component in row):
        try:
            return np.array(row, dtype=np.float64)
        except OverflowError:
            raise EmbeddingInvalid("a vector is not finite", reason="not-finite") from None
    raise EmbeddingInvalid("a vector is no list of numbers", reason="malformed")

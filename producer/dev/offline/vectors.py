"""Embeddings by the offline model: unit vectors of a text's words by their hashes, so that texts that share words are near."""

from __future__ import annotations

import base64
import hashlib
import math
import struct
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from producer.dev.offline.requests import parse_body
from producer.dev.offline.wire import count_tokens
from producer.dev.offline.words import words_of

DIMENSIONS = 256
DIMENSIONS_MAX = 4096
INPUTS_MAX = 2048

Text = Annotated[str, Field(min_length=1)]
Token = Annotated[int, Field(ge=0)]
Texts = Annotated[list[Text], Field(min_length=1, max_length=INPUTS_MAX)]
Tokens = Annotated[list[Token], Field(min_length=1)]
TokenLists = Annotated[list[Tokens], Field(min_length=1, max_length=INPUTS_MAX)]


class EmbeddingsRequest(BaseModel):
    """Texts, or token numbers in their place, which count as words."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    model: str = Field(min_length=1)
    input: Text | Texts | TokenLists | Tokens
    dimensions: int | None = Field(None, ge=1, le=DIMENSIONS_MAX)
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = None

    @property
    def texts(self) -> list[str]:
        """The inputs as texts, in order."""
        if isinstance(self.input, str):
            return [self.input]
        numbers = [item for item in self.input if isinstance(item, int)]
        lists = [item for item in self.input if not isinstance(item, int)]
        return [_as_text(item) for item in lists] or [_as_text(numbers)]


def _as_text(item: str | list[int]) -> str:
    return item if isinstance(item, str) else " ".join(map(str, item))


def parse_embeddings_request(body: bytes) -> EmbeddingsRequest:
    """Return the request in ``body``; raise ``RequestRefused`` that names what is wrong."""
    return parse_body(EmbeddingsRequest, body)


def embed(text: str, dimensions: int) -> list[float]:
    """Return the vector of ``text``, of length 1. Equal texts get equal vectors, in every process."""
    counts = Counter[int]()
    for word in words_of(text) or {text}:
        digest = _hash(word)
        # The sign keeps words that fall on one place from always looking alike.
        counts[digest % dimensions] += 1 if digest >> 63 else -1
    norm = math.sqrt(sum(count * count for count in counts.values()))
    if not norm:
        counts, norm = Counter({_hash(text) % dimensions: 1}), 1.0
    return [counts[place] / norm for place in range(dimensions)]


def _hash(text: str) -> int:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


class EmbeddingsAnswer:
    """The vectors of one request; sent whole, as one token."""

    def __init__(self, request: EmbeddingsRequest, texts: list[str]) -> None:
        self._request = request
        self._texts = texts

    def whole(self) -> dict[str, Any]:
        """Return the list object."""
        dimensions = self._request.dimensions or DIMENSIONS
        tokens = sum(map(count_tokens, self._texts))
        return {
            "object": "list",
            "model": self._request.model,
            "data": [
                {"object": "embedding", "index": number, "embedding": self._encode(embed(text, dimensions))}
                for number, text in enumerate(self._texts)
            ],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }

    def tokens(self) -> Iterator[bytes]:
        """Yield nothing: vectors are not streamed."""
        yield from ()

    def opening(self) -> bytes:
        """Return nothing."""
        return b""

    def closing(self) -> bytes:
        """Return nothing."""
        return b""

    def _encode(self, vector: list[float]) -> list[float] | str:
        if self._request.encoding_format != "base64":
            return vector
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()

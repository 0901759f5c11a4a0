"""The adapter for embeddings of OpenAI-compatible endpoints."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import SecretStr

from shared.domain.errors import EmbeddingInvalid
from shared.models.embeddings import EmbedderProfile, Embeddings, batches, check_texts, unit_vectors
from shared.models.endpoint import ModelEndpoint
from shared.models.types import Usage, token_usage

BODY_MAX_BYTES = 64 * 1024 * 1024
BATCH_TEXTS = 64
BATCH_BYTES = 256 * 1024


class OpenAIEmbedder:
    """An ``Embedder`` for ``profile.model`` at ``base_url``.

    ``profile`` is the host's word for what is behind the endpoint: whoever exchanges that gives it another revision.
    ``send_dimensions`` asks for ``profile.dimensions``; models that know one length only refuse to be asked.

    **Bounds.** Texts go out in batches of ``batch_texts`` and ``batch_bytes``, one after the other. ``timeout_s``
    bounds them all; each is repeated up to ``retries`` times.
    """

    def __init__(
        self,
        *,
        base_url: str,
        api_key: SecretStr | str,
        profile: EmbedderProfile,
        send_dimensions: bool = False,
        timeout_s: float = 30.0,
        connect_timeout_s: float = 5.0,
        retries: int = 2,
        connections_max: int = 100,
        batch_texts: int = BATCH_TEXTS,
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        self._profile = profile
        self._timeout_s = timeout_s
        self._batch_texts = batch_texts
        self._batch_bytes = batch_bytes
        self._fields: dict[str, Any] = {"model": profile.model, "encoding_format": "base64"}
        if send_dimensions:
            self._fields["dimensions"] = profile.dimensions
        self._endpoint = ModelEndpoint(
            base_url=base_url,
            api_key=api_key,
            connect_timeout_s=connect_timeout_s,
            read_timeout_s=timeout_s,
            retries=retries,
            connections_max=connections_max,
        )

    @property
    def profile(self) -> EmbedderProfile:
        """The identity of the vectors."""
        return self._profile

    async def aclose(self) -> None:
        """Close the connections. Calls under way fail."""
        await self._endpoint.aclose()

    async def embed(self, texts: Sequence[str]) -> Embeddings:
        """Return the vectors of ``texts``; the port's contract holds."""
        check_texts(texts)
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        vectors: list[list[float]] = []
        usage = Usage()
        for batch in batches(texts, texts_max=self._batch_texts, bytes_max=self._batch_bytes):
            answer = await self._fetch(list(batch), deadline)
            vectors += unit_vectors(_rows_of(answer), count=len(batch), profile=self._profile)
            usage += _usage_of(answer)
        return Embeddings(vectors, usage)

    async def _fetch(self, batch: list[str], deadline: float) -> dict[str, Any]:
        return await self._endpoint.fetch(
            lambda client: client.embeddings.with_streaming_response.create(input=batch, **self._fields),
            deadline=deadline,
            body_max_bytes=BODY_MAX_BYTES,
        )


def _rows_of(answer: Mapping[str, Any]) -> list[Any]:
    """Return the vectors in the texts' order: by index, which must be that of each text once."""
    data = answer.get("data")
    if not isinstance(data, list) or not all(isinstance(item, dict) for item in data):
        raise EmbeddingInvalid("the embeddings are no list of objects", reason="malformed")
    indexes = [item.get("index") for item in data]
    if any(type(index) is not int for index in indexes):
        raise EmbeddingInvalid("an embedding has no index", reason="malformed")
    if sorted(indexes) != list(range(len(data))):
        raise EmbeddingInvalid("the embeddings are not one for each text", reason="count")
    return [_decode(item.get("embedding")) for item in sorted(data, key=lambda item: int(item["index"]))]


def _decode(embedding: object) -> Any:
    if not isinstance(embedding, str):
        # Servers that know no base64 send numbers.
        return embedding
    try:
        return np.frombuffer(base64.b64decode(embedding, validate=True), dtype="<f4")
    except (binascii.Error, ValueError):
        raise EmbeddingInvalid("an embedding is no base64 of 32-bit floats", reason="malformed") from None


def _usage_of(answer: Mapping[str, Any]) -> Usage:
    usage = answer.get("usage")
    return token_usage(input_tokens=usage.get("prompt_tokens")) if isinstance(usage, dict) else Usage()

"""Which embedder a process uses, and search by meaning over it: what the producer's and the workers' roots both build."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from memory_pipeline.index.limits import SemanticQueryLimits
from memory_pipeline.index.port import SemanticIndex
from memory_pipeline.index.profile import LINES, SemanticProfile
from memory_pipeline.index.query import semantic_candidates
from memory_pipeline.recall.sources import SearchByMeaning
from memory_pipeline.store.documents import NamespaceAddress, Passage
from shared.domain.errors import ConfigError, IndexUnavailable
from shared.models.embeddings import Embedder, EmbedderProfile
from shared.models.wordllama_embeddings import WordLlamaEmbedder
from shared.settings import DEFAULT_OPENAI_BASE_URL, Settings

if TYPE_CHECKING:
    from shared.models.openai_embeddings import OpenAIEmbedder

_log: Final = logging.getLogger(__name__)

ENDPOINT: Final = "openai"


def open_embedder(settings: Settings, stack: AsyncExitStack) -> Embedder | None:
    """Return the configured endpoint's embedder, else the local one, else None where that is not installed.

    No model is loaded here: the first texts load the local one, in a thread of its own.
    """
    embedder: OpenAIEmbedder | WordLlamaEmbedder
    if settings.embedding_model:
        embedder = _endpoint_embedder(settings)
    else:
        try:
            embedder = WordLlamaEmbedder()
        except ConfigError as error:
            _log.info("no search by meaning: %s", error.message)
            return None
    stack.push_async_callback(embedder.aclose)
    return embedder


def _endpoint_embedder(settings: Settings) -> OpenAIEmbedder:
    # Its client takes half a second to import, and most processes embed with the local model or not at all.
    from shared.models.openai_embeddings import OpenAIEmbedder  # noqa: PLC0415 - loaded late, see above

    return OpenAIEmbedder(
        base_url=settings.openai_base_url or DEFAULT_OPENAI_BASE_URL,
        api_key=settings.openai_api_key,
        profile=EmbedderProfile(
            ENDPOINT, settings.embedding_model, settings.embedding_revision, settings.embedding_dimensions
        ),
    )


def profile_of(embedder: Embedder) -> SemanticProfile:
    """Return the profile under which documents are indexed: one fact a line, so one chunk a fact."""
    return SemanticProfile.of(embedder.profile, chunker=LINES)


def search_by_meaning(index: SemanticIndex, embedder: Embedder, *, timeout_s: float) -> SearchByMeaning:
    """Return the search that recall asks; it raises members of the ``Unavailable`` family only."""
    profile = profile_of(embedder)
    limits = SemanticQueryLimits(timeout_s=timeout_s)

    async def search(namespace: NamespaceAddress, query: str) -> Sequence[Passage]:
        try:
            return await semantic_candidates(index, profile, embedder, namespace, query, limits)
        except ConfigError as error:
            raise IndexUnavailable("the embedder cannot be used", reason=error.code) from error

    return search

"""The adapter for WordLlama: small static embeddings whose weights are in the package; no network, no GPU."""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from shared.domain.errors import ConfigError
from shared.models.embeddings import EmbedderProfile, Embeddings, check_texts, unit_vectors

PACKAGE: Final = "wordllama"
MODEL: Final = "l2_supercat_256"
DIMENSIONS: Final = 256


class WordLlamaEmbedder:
    """An ``Embedder`` in this process. Raises ``ConfigError`` when the package is not installed.

    The model is loaded with the first texts, or by :meth:`load`: about a second and 100 MB. All of it runs on one
    thread of its own, call after call, about 0.1 ms for a short text; a cancelled call ends there in the background.
    """

    def __init__(self) -> None:
        try:
            version = importlib.metadata.version(PACKAGE)
        except importlib.metadata.PackageNotFoundError:
            raise ConfigError(
                f"local embeddings need the package {PACKAGE}: install the extra 'embedded'",
                field="embeddings",
            ) from None
        # The package's version pins the weights that it carries and the preprocessing alike.
        self._profile = EmbedderProfile(PACKAGE, MODEL, version, DIMENSIONS)
        self._runner = ThreadPoolExecutor(max_workers=1, thread_name_prefix=PACKAGE)
        self._model: Any = None

    @property
    def profile(self) -> EmbedderProfile:
        """The identity of the vectors."""
        return self._profile

    async def load(self) -> None:
        """Load the model now, so that the first texts do not wait for it."""
        await asyncio.get_running_loop().run_in_executor(self._runner, self._loaded)

    async def aclose(self) -> None:
        """Let go of the thread once what it does is done. No call may follow."""
        self._runner.shutdown(wait=False, cancel_futures=True)

    async def embed(self, texts: Sequence[str]) -> Embeddings:
        """Return the vectors of ``texts``; the port's contract holds."""
        check_texts(texts)
        if not texts:
            return Embeddings([])
        vectors = await asyncio.get_running_loop().run_in_executor(self._runner, self._embed, list(texts))
        return Embeddings(vectors)

    def _embed(self, texts: list[str]) -> list[list[float]]:
        # One at a time: a batch is padded to its longest text, which a long one beside many short would pay in memory.
        rows = self._loaded().embed(texts, batch_size=1)
        return unit_vectors(list(rows), count=len(texts), profile=self._profile)

    def _loaded(self) -> Any:
        if self._model is None:
            try:
                package = _import_quietly(PACKAGE)
                folder = Path(package.__file__).parent
                self._model = package.WordLlama.load(cache_dir=folder, dim=DIMENSIONS, disable_download=True)
            except (ImportError, OSError) as error:
                raise ConfigError(
                    f"the package {PACKAGE} is installed but cannot be used", field="embeddings"
                ) from error
        return self._model


def _import_quietly(name: str) -> Any:
    """Import a package that configures the root logger as it is imported, without letting it.

    It is imported here and not above, because that takes a second and the package is an optional one.
    """
    root = logging.getLogger()
    # A root logger with a handler is left alone by `logging.basicConfig`.
    placeholder = logging.NullHandler()
    root.addHandler(placeholder)
    try:
        return importlib.import_module(name)
    finally:
        root.removeHandler(placeholder)

"""Embedders as they are: over HTTP against a hostile and the offline server, and WordLlama in a process without a network."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import subprocess
import sys
import textwrap
import traceback
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from pydantic import SecretStr

from shared.domain.errors import (
    EmbeddingInvalid,
    InvalidInput,
    ModelAuthFailed,
    ModelRefused,
    ModelStreamBroken,
    ModelUnavailable,
    TurnkeeperError,
)
from shared.models.embeddings import Embedder, EmbedderProfile
from shared.models.openai_embeddings import OpenAIEmbedder
from shared.models.types import Usage
from shared.models.wordllama_embeddings import WordLlamaEmbedder
from tests.support.hostile_server import Answering, Exchange, HostileServer, hostile_server
from tests.support.offline_model import OfflineModel, offline_model

KEY = "sk-secret-0123456789"
PROFILE = EmbedderProfile("openai", "small", "1", 2)


def packed(*components: float) -> str:
    return base64.b64encode(struct.pack(f"<{len(components)}f", *components)).decode()


def listed(*embeddings: object, indexes: Sequence[object] | None = None) -> bytes:
    numbered = indexes if indexes is not None else range(len(embeddings))
    data = [{"index": index, "embedding": item} for index, item in zip(numbered, embeddings, strict=True)]
    return json.dumps({"data": data, "usage": {"prompt_tokens": 3, "total_tokens": 3}}).encode()


def sends(body: bytes, status: str = "200 OK", *headers: str) -> Answering:
    async def answer(exchange: Exchange) -> None:
        await exchange.send_whole(status, body, *headers)

    return answer


async def count_up(exchange: Exchange) -> None:
    """Give text n of the whole call, which reads "n", the vector (n, 1), as base64 and as numbers in turn."""
    texts = json.loads(exchange.body)["input"]
    rows = [packed(int(text), 1) if int(text) % 2 else [int(text), 1] for text in texts]
    body = json.loads(listed(*rows))
    body["data"].reverse()
    await exchange.send_whole("200 OK", json.dumps(body).encode())


@asynccontextmanager
async def served(answering: Answering, **options: Any) -> AsyncIterator[tuple[OpenAIEmbedder, HostileServer]]:
    async with hostile_server(answering) as server, asyncio.timeout(30):
        options = {"retries": 0, "profile": PROFILE, **options}
        embedder = OpenAIEmbedder(base_url=server.base_url, api_key=SecretStr(KEY), **options)
        try:
            yield embedder, server
        finally:
            await embedder.aclose()


async def test_vectors_come_in_the_order_of_the_texts_whatever_order_the_provider_sends() -> None:
    async with served(count_up, batch_texts=2) as (embedder, server):
        answer = await embedder.embed(["0", "1", "2", "3", "4"])
    expected = [[n / np.hypot(n, 1), 1 / np.hypot(n, 1)] for n in range(5)]
    assert np.allclose(answer.vectors, expected, atol=1e-6)
    assert answer.usage == Usage(input_tokens=9)
    assert [json.loads(exchange.body) for exchange in server.exchanges] == [
        {"model": "small", "encoding_format": "base64", "input": texts}
        for texts in (["0", "1"], ["2", "3"], ["4"])
    ]


async def test_dimensions_are_asked_for_when_the_host_says_so() -> None:
    async with served(count_up, send_dimensions=True) as (embedder, server):
        await embedder.embed(["0"])
    assert json.loads(server.exchanges[0].body)["dimensions"] == 2


async def test_nothing_is_sent_for_no_texts_or_for_one_out_of_bounds() -> None:
    async with served(count_up) as (embedder, server):
        assert (await embedder.embed([])).vectors == []
        with pytest.raises(InvalidInput):
            await embedder.embed(["1", ""])
    assert server.exchanges == []


@pytest.mark.behaviour("SEM-32")
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (listed(), "count"),
        (listed(packed(1, 0), packed(0, 1)), "count"),
        (listed(packed(1, 0), indexes=[1]), "count"),
        (listed(packed(1, 0), packed(1, 0), indexes=[0, 0]), "count"),
        (listed(packed(1, 0), indexes=[None]), "malformed"),
        (listed(packed(1, 0), indexes=["0"]), "malformed"),
        (listed(packed(1)), "dimensions"),
        (listed(packed(1, 0, 0)), "dimensions"),
        (listed(packed(float("nan"), 0)), "not-finite"),
        (listed(packed(float("inf"), 0)), "not-finite"),
        (listed([float("nan"), 0]), "not-finite"),
        (listed(packed(0, 0)), "zero-norm"),
        (listed("not base64!"), "malformed"),
        (listed(base64.b64encode(b"odd").decode()), "malformed"),
        (listed(None), "malformed"),
        (b'{"data": {}}', "malformed"),
        (b'{"data": [7]}', "malformed"),
        (b"{}", "malformed"),
    ],
)
async def test_vectors_that_do_not_fit_are_refused_and_not_asked_again(body: bytes, reason: str) -> None:
    async with served(sends(body), retries=2) as (embedder, server):
        with pytest.raises(EmbeddingInvalid) as caught:
            await embedder.embed(["a secret text"])
    assert caught.value.fields["reason"] == reason
    assert len(server.exchanges) == 1
    assert "secret" not in f"{caught.value} {caught.value.fields} {caught.value.__cause__}"


ERROR = json.dumps({"error": {"message": f"no good, {KEY}", "type": "t", "code": "c"}}).encode()


@pytest.mark.parametrize(
    ("answering", "error"),
    [
        (sends(ERROR, "400 Bad Request"), ModelRefused),
        (sends(ERROR, "401 Unauthorized"), ModelAuthFailed),
        (sends(ERROR, "429 Too Many Requests"), ModelUnavailable),
        (sends(ERROR, "500 Internal Server Error"), ModelUnavailable),
        (sends(b"<html>"), ModelStreamBroken),
    ],
)
async def test_every_failure_of_the_endpoint_has_its_error(
    answering: Answering, error: type[TurnkeeperError]
) -> None:
    async with served(answering) as (embedder, _):
        with pytest.raises(error) as caught:
            await embedder.embed(["x"])
    assert KEY not in "".join(traceback.format_exception(caught.value))


# --- with the offline model ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def offline() -> Iterator[OfflineModel]:
    with offline_model("--delay-ms", "0") as running:
        yield running


QUESTION = "What is my favourite colour?"
TEXTS = ["The user lives in Oslo.", "The user's favourite colour is teal.", "The user hates coffee."]


async def nearest(embedder: Embedder) -> int:
    question, *texts = (await embedder.embed([QUESTION, *TEXTS])).vectors
    return int(np.argmax([np.dot(question, text) for text in texts]))


async def test_the_offline_model_embeds_for_our_adapter(offline: OfflineModel) -> None:
    profile = EmbedderProfile("offline", "words", "1", 128)
    embedder = OpenAIEmbedder(
        base_url=offline.base_url, api_key="k", profile=profile, send_dimensions=True, retries=0
    )
    assert await nearest(embedder) == 1
    assert (await embedder.embed(["four words are here"])).usage == Usage(input_tokens=5)
    with pytest.raises(ModelUnavailable):
        await embedder.embed(['x [[offline: {"on": "embeddings", "fail": 500}]]'])
    assert len((await embedder.embed(['x [[offline: {"hang": true}]]'])).vectors) == 1
    await embedder.aclose()


# --- WordLlama -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def embedder() -> WordLlamaEmbedder:
    return WordLlamaEmbedder()


async def test_wordllama_finds_the_text_that_answers(embedder: WordLlamaEmbedder) -> None:
    await embedder.load()
    assert await nearest(embedder) == 1
    assert (embedder.profile.model, embedder.profile.dimensions) == ("l2_supercat_256", 256)
    assert (await embedder.embed([])).vectors == []


async def test_wordllama_gives_a_text_the_same_vector_in_any_company(embedder: WordLlamaEmbedder) -> None:
    alone, crowd = await asyncio.gather(embedder.embed(TEXTS[:1]), embedder.embed([*TEXTS, "long " * 500]))
    assert alone.vectors[0] == crowd.vectors[0]


async def test_wordllama_refuses_an_empty_text(embedder: WordLlamaEmbedder) -> None:
    with pytest.raises(InvalidInput):
        await embedder.embed([""])


def test_wordllama_needs_no_network_and_leaves_logging_alone() -> None:
    script = """
        import asyncio, logging, socket, sys

        def refuse(*args):
            raise AssertionError("a connection was tried")

        # In a process of its own: no other test's sockets are touched.
        socket.socket.connect = socket.getaddrinfo = refuse
        from shared.models.wordllama_embeddings import WordLlamaEmbedder

        embedder = WordLlamaEmbedder()
        assert "wordllama" not in sys.modules and "tokenizers" not in sys.modules
        answer = asyncio.run(embedder.embed(["a", "b"]))
        root = logging.getLogger()
        assert (root.handlers, root.level) == ([], logging.WARNING)
        print(len(answer.vectors))
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("2\n", "")

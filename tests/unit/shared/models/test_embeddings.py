"""Embeddings: which vectors are comparable, which texts are taken, which vectors are refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from shared.domain.errors import EmbeddingInvalid, InvalidInput, ModelUnavailable
from shared.models.embeddings import (
    DIMENSIONS_MAX,
    TEXT_MAX_BYTES,
    TEXTS_MAX,
    Embedder,
    EmbedderProfile,
    batches,
    check_texts,
    unit_vectors,
)
from shared.models.scripted import ScriptedEmbedder

PROFILE = EmbedderProfile("openai", "small", "1", 2)


@pytest.mark.behaviour("SEM-04", "SEM-06")
def test_a_profile_is_another_as_soon_as_one_part_differs() -> None:
    others = [
        EmbedderProfile("other", "small", "1", 2),
        EmbedderProfile("openai", "large", "1", 2),
        EmbedderProfile("openai", "small", "2", 2),
        EmbedderProfile("openai", "small", "1", 3),
        EmbedderProfile("openai", "small1", "1", 2),
    ]
    assert len({PROFILE.digest, *(profile.digest for profile in others)}) == 6
    # Stored with every chunk: it must never move.
    assert PROFILE.digest == "b3af779727e9b671bc5974eebe410be2aff6a01950b970d97106d4411f930796"


@pytest.mark.parametrize(
    "parts",
    [("", "m", "1", 2), ("p", "m\n", "1", 2), ("p", "m", "", 2), ("p", "m", "1", 0), ("p", "m", "1", 4097)],
)
def test_a_profile_that_names_nothing_is_refused(parts: Any) -> None:
    with pytest.raises(InvalidInput):
        EmbedderProfile(*parts)
    assert EmbedderProfile("p", "m", "1", DIMENSIONS_MAX).dimensions == 4096


@pytest.mark.parametrize(
    "row",
    [[3, 4], (3.0, 4.0), np.array([3, 4], dtype="<f4"), [3e30, 4e30], [3e-30, 4e-30]],
)
def test_a_vector_is_brought_to_length_one(row: Any) -> None:
    (vector,) = unit_vectors([row], count=1, profile=PROFILE)
    assert vector == pytest.approx([0.6, 0.8], rel=1e-6)
    assert all(type(component) is float for component in vector)


@pytest.mark.behaviour("SEM-32")
@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([], "count"),
        ([[1, 0], [0, 1]], "count"),
        ([[1]], "dimensions"),
        ([[1, 0, 0]], "dimensions"),
        ([[]], "dimensions"),
        ([[math.nan, 1]], "not-finite"),
        ([[math.inf, 1]], "not-finite"),
        ([[1e300, 1e300]], "not-finite"),
        ([[10**400, 1]], "not-finite"),
        ([[0, 0.0]], "zero-norm"),
        ([[1e-300, 1e-300]], "zero-norm"),
        ([["1", "0"]], "malformed"),
        ([[True, False]], "malformed"),
        ([[None, 1]], "malformed"),
        ([None], "malformed"),
        ([{"0": 1, "1": 2}], "malformed"),
        ([np.ones((2, 2))], "malformed"),
        ([np.array(["1", "0"])], "malformed"),
    ],
)
def test_a_vector_that_cannot_be_compared_is_refused(rows: Any, reason: str) -> None:
    with pytest.raises(EmbeddingInvalid) as caught:
        unit_vectors(rows, count=1, profile=PROFILE)
    assert caught.value.fields["reason"] == reason


def test_texts_are_taken_up_to_their_bounds() -> None:
    check_texts(["é" * (TEXT_MAX_BYTES // 2)] * 2)
    check_texts(["x"] * TEXTS_MAX)


@pytest.mark.parametrize(
    "texts", [["x"] * (TEXTS_MAX + 1), ["x", ""], ["x" * (TEXT_MAX_BYTES + 1)], ["\ud800"], ["a\x00"]]
)
def test_a_text_beyond_a_bound_is_refused(texts: list[str]) -> None:
    with pytest.raises(InvalidInput):
        check_texts(texts)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], []),
        (["aa", "b", "c", "d"], [["aa", "b"], ["c", "d"]]),
        (["aaa", "b"], [["aaa"], ["b"]]),
        (["é", "é", "x"], [["é"], ["é", "x"]]),
        (["a", "long one", "b"], [["a"], ["long one"], ["b"]]),
    ],
)
def test_batches_keep_the_order_and_both_bounds(texts: list[str], expected: list[list[str]]) -> None:
    assert [list(batch) for batch in batches(texts, texts_max=2, bytes_max=3)] == expected


async def test_the_scripted_embedder_puts_like_texts_near_and_fails_on_command() -> None:
    scripted = ScriptedEmbedder(failures=[ModelUnavailable("away")])
    embedder: Embedder = scripted
    with pytest.raises(ModelUnavailable):
        await embedder.embed(["x"])
    same, near, far = (await embedder.embed(["blue sky", "sky of Blue", "green"])).vectors
    assert np.dot(same, near) > 0.7 > 0.3 > np.dot(same, far)
    assert scripted.requests == [("x",), ("blue sky", "sky of Blue", "green")]
    with pytest.raises(EmbeddingInvalid):
        await ScriptedEmbedder(dimensions=2, vector_of=lambda text: [0.0, 0.0]).embed(["x"])

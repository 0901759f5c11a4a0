"""The command of an owner's correction: what it keeps of the revision before, and what a repeated request finds."""

from __future__ import annotations

from typing import Any

import pytest

from memory_pipeline.store.documents import Attribution, Content, Document, MemoryKey, NamespaceAddress, Put
from memory_pipeline.store.inproc import InprocMemoryStore
from producer.memory.correcting import GENERATIONS_LOOKED_AT, correct_document
from producer.memory.wire import CorrectionRequest
from shared.domain.errors import MemoryConflict
from shared.domain.ids import OwnerId

ANN = OwnerId("ann")
KEY = MemoryKey(namespace=NamespaceAddress('[1,"profile",1,{"owner":"ann"}]'), id="profile-1")


class Writing:
    """One owner's document in memory, and a clock that the test sets."""

    def __init__(self) -> None:
        self.store = InprocMemoryStore()
        self.now = 1_000

    async def correct(self, text: str, expected: str | None, operation: str = "op") -> Document:
        body: dict[str, Any] = {"text": text, "expected_revision": expected, "operation_id": operation}
        request = CorrectionRequest.model_validate(body)
        return await correct_document(
            self.store, KEY, request, owner=ANN, scope="private", now_ms=lambda: self.now
        )

    async def write(self, text: str, *subjects: Any, attributions: int, **metadata: Any) -> Document:
        """Write a first revision as somebody else does."""
        said = [
            Attribution(origin_id=f"s:{n}", speaker="user", locator="l", interpretation="said")
            for n in range(attributions)
        ]
        if subjects:
            metadata["subjects"] = list(subjects)
        content = Content(text=text, attributions=tuple(said), metadata=metadata, recorded_at=500)
        put = Put(
            key=KEY,
            operation_id="first",
            expected_revision=None,
            locator="elsewhere",
            content=content,
            scopes=("team",),
        )
        return await self.store.write(put, owner=ANN)


def said_in(document: Document) -> list[str]:
    assert document.content is not None
    return [one.origin_id for one in document.content.attributions]


def subjects_of(document: Document) -> list[str]:
    assert document.content is not None
    subjects: list[str] = document.content.metadata["subjects"]
    return subjects


@pytest.mark.behaviour("REM-26", "REM-41")
async def test_lines_that_stay_keep_their_source_and_subject_and_new_ones_have_none() -> None:
    writing = Writing()
    await writing.write("a\nb\nc", "x", "y", "z", attributions=3, kept="as it was")
    corrected = await writing.correct("c\nB\na", "1")
    assert said_in(corrected) == ["s:2", "api:op", "s:0"]
    assert subjects_of(corrected) == ["z", "", "x"]
    assert corrected.content is not None
    assert corrected.content.metadata["kept"] == "as it was"
    assert (corrected.scopes, corrected.source.locator) == (("team",), "elsewhere")


@pytest.mark.parametrize(
    ("subjects", "attributions"), [((), 1), (("x",), 2), (("x", "y", "z"), 2), (("x", "y"), 1)]
)
async def test_a_document_that_has_not_one_source_a_line_becomes_the_owners(
    subjects: tuple[str, ...], attributions: int
) -> None:
    writing = Writing()
    await writing.write("a\nb", *subjects, attributions=attributions)
    corrected = await writing.correct("a\nb", "1")
    assert said_in(corrected) == ["api:op"] * 2
    assert subjects_of(corrected) == ["", ""]


@pytest.mark.behaviour("MEM-32", "MEM-33")
async def test_a_repeated_request_is_the_same_command_at_any_time() -> None:
    writing = Writing()
    made = [await writing.correct("a", None, "op-0"), await writing.correct("a\nb", "1", "op-1")]
    await writing.correct("other", "2", "op-2")
    writing.now += 5_000
    assert await writing.correct("a", None, "op-0") == made[0]
    assert await writing.correct("a\nb", "1", "op-1") == made[1]


async def test_a_request_that_is_repeated_too_late_is_refused_and_changes_nothing() -> None:
    writing = Writing()
    document = await writing.correct("0", None, "op-0")
    for n in range(1, GENERATIONS_LOOKED_AT + 2):
        document = await writing.correct(str(n), str(n), f"op-{n}")
    with pytest.raises(MemoryConflict):
        await writing.correct("1", "1", "op-1")
    assert await writing.store.read(KEY) == document


async def test_the_time_of_recording_never_goes_back() -> None:
    writing = Writing()
    await writing.write("a", attributions=1)
    writing.now = 7
    corrected = await writing.correct("b", "1")
    assert corrected.content is not None
    assert corrected.content.recorded_at == 500

"""Revalidation: what is shown is what the store says now, whatever a search or a cache proposed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from memory_pipeline.namespaces.owners import owner_namespace
from memory_pipeline.recall.revalidate import INPUT_MAX_BYTES, lines_of, revalidate
from memory_pipeline.recall.values import Found, NoMatch
from memory_pipeline.store.documents import (
    Content,
    Document,
    MemoryKey,
    Passage,
    Put,
    SourceReference,
    Withdraw,
    encode,
)
from memory_pipeline.store.inproc import InprocMemoryStore
from shared.agents.memory import MemoryPolicy
from shared.domain.errors import MemoryCorrupt, RecallFailed, StoreUnavailable
from shared.domain.ids import OwnerId
from tests.unit.memory_pipeline.recall.passages import attribution, content, passage

ANN, BOB = OwnerId("ann"), OwnerId("bob")
SPACE = owner_namespace(MemoryPolicy(), ANN).address
SCOPE = "private"

ANNS = attribution("ann", interpretation="Ann likes tea.")
BOBS = attribution("bob", interpretation="Bob likes rum.")
CARLS = attribution("carl", interpretation="Carl likes milk.")
THREE = content(
    "Ann likes tea.\nBob likes rum.\nCarl likes milk.",
    ANNS,
    BOBS,
    CARLS,
    metadata={"subjects": ["a", "b", "c"], "app": "kit", "pair": [1, 2]},
)


class Place:
    """A store, and writes to it."""

    def __init__(self) -> None:
        self.store = InprocMemoryStore()
        self.operations = 0

    async def put(
        self, text: str | Content, source: str = "profile", *, scopes: Sequence[str] = (SCOPE,)
    ) -> Document:
        key = MemoryKey(namespace=SPACE, id=source)
        current = await self.store.read(key)
        self.operations += 1
        command = Put(
            key=key,
            operation_id=f"put-{self.operations}",
            expected_revision=None if current is None else current.source.revision,
            locator=f"memory/{source}",
            content=content(text) if isinstance(text, str) else text,
            scopes=tuple(scopes),
        )
        return await self.store.write(command, owner=ANN)

    async def withdraw(self, document: Document) -> None:
        self.operations += 1
        command = Withdraw(
            key=document.key,
            operation_id=f"withdraw-{self.operations}",
            expected_revision=document.source.revision,
            reason="wrong",
        )
        await self.store.write(command, owner=ANN)

    async def passages(self, *candidates: Passage) -> tuple[Passage, ...]:
        """What of the candidates stands."""
        lookup = await revalidate(candidates, self.store, SPACE, SCOPE)
        return lookup.passages if isinstance(lookup, Found) else ()


class Answers:
    """A reader that answers what it was given, and notes what it was asked."""

    def __init__(self, *documents: Document | None, error: Exception | None = None) -> None:
        self.documents = documents
        self.error = error
        self.asked: list[list[str]] = []

    async def read(self, key: MemoryKey) -> Document | None:
        raise AssertionError("revalidation reads its sources together")

    async def read_many(self, keys: Sequence[MemoryKey]) -> Sequence[Document | None]:
        self.asked.append([key.id for key in keys])
        if self.error is not None:
            raise self.error
        return self.documents


def whole(document: Document) -> Passage:
    """The passage that an active document is."""
    assert document.content is not None
    return Passage(authority=SPACE, source=document.source, passage_id="document", content=document.content)


@pytest.mark.behaviour("MEM-18", "MEM-40", "MEM-41", "MEM-T07")
async def test_missing_withdrawn_and_revoked_sources_are_dropped_though_they_were_found_before() -> None:
    place = Place()
    kept, withdrawn, revoked = [await place.put(name, name) for name in ("kept", "withdrawn", "revoked")]
    candidates = [passage("never", source="missing"), *(whole(d) for d in (withdrawn, revoked, kept))]
    assert len(await place.passages(*candidates)) == 3
    await place.withdraw(withdrawn)
    await place.put("revoked", "revoked", scopes=["other"])
    assert await place.passages(*candidates) == (whole(kept),)


@pytest.mark.behaviour("MEM-07")
@pytest.mark.parametrize("scopes", [(), ("public",), ("PRIVATE",), ("privat",)])
async def test_a_document_is_shown_to_the_scopes_that_it_lists_and_to_no_other(
    scopes: tuple[str, ...],
) -> None:
    place = Place()
    document = await place.put("text", scopes=scopes)
    assert await place.passages(whole(document)) == ()


@pytest.mark.behaviour("MEM-18")
async def test_nothing_left_is_no_match() -> None:
    place = Place()
    assert await revalidate([], place.store, SPACE, SCOPE) == NoMatch()
    assert await revalidate([passage()], place.store, SPACE, SCOPE) == NoMatch()


@pytest.mark.behaviour("MEM-19")
async def test_stale_text_is_replaced_by_the_whole_current_document() -> None:
    place = Place()
    old = await place.put("Ann likes tea.\nBob likes rum.")
    excerpt = whole(old).model_copy(update={"passage_id": "lines:1-1", "content": content("Ann likes tea.")})
    new = await place.put("Ann likes tea.\nBob likes milk.")
    assert await place.passages(whole(old), excerpt) == (whole(new), whole(new))


@pytest.mark.behaviour("MEM-19", "MEM-21")
@pytest.mark.parametrize("revision", [None, "0", "2"])
async def test_an_excerpt_of_an_unknown_or_another_revision_does_not_survive(revision: str | None) -> None:
    place = Place()
    document = await place.put("Ann likes tea.\nBob likes rum.")
    candidate = passage("Ann likes tea.", passage_id="lines:1-1", revision=revision)
    assert await place.passages(candidate) == (whole(document),)


@pytest.mark.behaviour("MEM-20", "MEM-21", "MEM-T13")
@pytest.mark.parametrize(
    ("excerpt", "stands"),
    [
        ("Ann likes", True),
        ("likes rum.", True),
        ("Ann likes tea.\nBob likes rum.", True),
        ("ann likes", False),
        ("Ann  likes", False),
        ("Ann likes tea. Bob likes rum.", False),
        ("rum. ", False),
    ],
)
async def test_an_excerpt_survives_only_if_its_very_text_stands_in_the_current_source(
    excerpt: str, stands: bool
) -> None:
    place = Place()
    document = await place.put("Ann likes tea.\nBob likes rum.")
    [shown] = await place.passages(passage(excerpt, passage_id="chunk:1"))
    if stands:
        assert (shown.passage_id, shown.content.text) == ("chunk:1", excerpt)
    else:
        assert shown == whole(document)


@pytest.mark.behaviour("MEM-21", "MEM-T13")
async def test_an_excerpt_that_is_equal_only_after_normalization_does_not_survive() -> None:
    place = Place()
    document = await place.put("caf\u00e9 on Monday")
    assert await place.passages(passage("cafe\u0301", passage_id="chunk:1")) == (whole(document),)


@pytest.mark.behaviour("MEM-16", "MEM-20", "MEM-T12")
async def test_what_a_candidate_claims_of_itself_is_overwritten_by_what_the_store_says() -> None:
    place = Place()
    document = await place.put("Ann likes tea.\nBob likes rum.")
    assert document.content is not None
    forged = passage(
        "Ann likes tea.",
        attribution("mallory", activity_at=None),
        authority="of bob",
        passage_id="chunk:1",
        metadata={"trusted": True},
        recorded_at=9,
        extracted_at=9,
    ).model_copy(update={"source": SourceReference(id="profile", locator="evil", revision="1")})
    [shown] = await place.passages(forged)
    assert shown == Passage(
        authority=SPACE,
        source=document.source,
        passage_id="chunk:1",
        content=document.content.model_copy(update={"text": "Ann likes tea."}),
    )
    claims_to_be_whole = forged.model_copy(update={"passage_id": "document"})
    assert await place.passages(claims_to_be_whole) == (whole(document),)


@pytest.mark.behaviour("MEM-17", "MEM-T12")
async def test_a_candidate_of_another_owner_is_looked_up_in_the_hosts_namespace_only() -> None:
    place = Place()
    mine = await place.put("mine")
    reader = owner_namespace(MemoryPolicy(), BOB).address
    assert await revalidate([whole(mine)], place.store, reader, SCOPE) == NoMatch()


@pytest.mark.behaviour("MEM-56")
async def test_all_sources_are_read_at_once_each_of_them_one_time_and_the_order_stays() -> None:
    place = Place()
    a, b = await place.put("a\nb", "a"), await place.put("c", "b")
    reader = Answers(b, a)
    first, second = passage("a", source="a", passage_id="1"), passage("b", source="a", passage_id="2")
    lookup = await revalidate([whole(b), second, whole(b), first], reader, SPACE, SCOPE)
    assert reader.asked == [["b", "a"]]
    assert isinstance(lookup, Found)
    assert [(p.source.id, p.content.text) for p in lookup.passages] == [
        ("b", "c"),
        ("a", "b"),
        ("b", "c"),
        ("a", "a"),
    ]


@pytest.mark.behaviour("MEM-13", "MEM-14")
async def test_a_byte_over_the_bound_fails_and_duplicates_count() -> None:
    place = Place()
    document = await place.put("größer")
    candidates = [whole(document), whole(document)]
    exact = 2 * len(encode(whole(document)).encode())
    lookup = await revalidate(candidates, place.store, SPACE, SCOPE, max_input_bytes=exact)
    assert lookup == Found(tuple(candidates))
    with pytest.raises(RecallFailed) as failed:
        await revalidate(candidates, place.store, SPACE, SCOPE, max_input_bytes=exact - 1)
    assert failed.value.fields["reason"] == "budget"
    assert INPUT_MAX_BYTES == 16 * 1024 * 1024


@pytest.mark.behaviour("MEM-23")
async def test_a_failure_of_the_source_stays_what_it_is() -> None:
    error = StoreUnavailable("away")
    with pytest.raises(StoreUnavailable) as raised:
        await revalidate([passage()], Answers(error=error), SPACE, SCOPE)
    assert raised.value is error


@pytest.mark.behaviour("MEM-38")
@pytest.mark.parametrize("state", ["active", "withdrawn"])
@pytest.mark.parametrize("other", ["namespace", "id", "source"])
async def test_another_document_than_was_asked_for_is_corrupt_and_never_shown(other: str, state: str) -> None:
    place = Place()
    document = await place.put("text")
    if state == "withdrawn":
        document = document.model_copy(update={"content": None, "reason": "wrong"})
    wrongs: dict[str, dict[str, Any]] = {
        "namespace": {"key": MemoryKey(namespace=owner_namespace(MemoryPolicy(), BOB).address, id="profile")},
        "id": {"key": MemoryKey(namespace=SPACE, id="other")},
        "source": {"source": document.source.model_copy(update={"id": "other"})},
    }
    with pytest.raises(MemoryCorrupt):
        await revalidate([passage()], Answers(document.model_copy(update=wrongs[other])), SPACE, SCOPE)


# --- excerpts of documents with one witness a line -----------------------------------------------------------------


@pytest.mark.behaviour("MEM-20")
@pytest.mark.parametrize(
    ("excerpt", "speakers", "subjects"),
    [
        ("Ann likes tea.", ["ann"], ["a"]),
        ("Carl likes milk.", ["carl"], ["c"]),
        ("Bob likes rum.\nCarl likes milk.", ["bob", "carl"], ["b", "c"]),
        ("Bob likes rum.\n", ["bob"], ["b"]),
        ("\nBob likes rum.\n", ["bob"], ["b"]),
        # A line that is cut keeps every witness: which one is its own is not told apart.
        ("likes tea.\nBob likes rum.", ["ann", "bob", "carl"], ["a", "b", "c"]),
        ("Bob likes", ["ann", "bob", "carl"], ["a", "b", "c"]),
        (THREE.text, ["ann", "bob", "carl"], ["a", "b", "c"]),
    ],
)
async def test_an_excerpt_of_whole_lines_has_the_witnesses_of_those_lines(
    excerpt: str, speakers: list[str], subjects: list[str]
) -> None:
    place = Place()
    await place.put(THREE)
    [shown] = await place.passages(passage(excerpt, passage_id="chunk:1"))
    assert shown.content.text == excerpt
    assert [a.speaker for a in shown.content.attributions] == speakers
    assert shown.content.metadata == {"subjects": subjects, "app": "kit", "pair": [1, 2]}
    assert shown.content.recorded_at == THREE.recorded_at


@pytest.mark.behaviour("MEM-20")
async def test_a_line_that_stands_twice_has_both_its_witnesses() -> None:
    place = Place()
    await place.put(content("likes tea\nlikes rum\nlikes tea", ANNS, BOBS, CARLS))
    [shown] = await place.passages(passage("likes tea", passage_id="chunk:1"))
    assert [a.speaker for a in shown.content.attributions] == ["ann", "carl"]


@pytest.mark.behaviour("MEM-20")
async def test_where_lines_and_witnesses_do_not_match_an_excerpt_keeps_them_all() -> None:
    place = Place()
    await place.put(content("one\ntwo\nthree", ANNS, BOBS))
    [shown] = await place.passages(passage("two", passage_id="chunk:1"))
    assert [a.speaker for a in shown.content.attributions] == ["ann", "bob"]


def test_the_lines_of_a_passage_are_passages_with_their_own_witness_and_id() -> None:
    split = lines_of(passage("tea\n\nmilk", ANNS, BOBS, CARLS, passage_id="lines:4-6"))
    assert [(p.passage_id, p.content.text, [a.speaker for a in p.content.attributions]) for p in split] == [
        ("lines:4-6:line:1", "tea", ["ann"]),
        ("lines:4-6:line:3", "milk", ["carl"]),
    ]

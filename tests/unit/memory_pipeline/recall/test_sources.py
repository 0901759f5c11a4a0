"""The shipped sources over the store in memory: whose memory they read, what of it, and what trouble does to a recall."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence

import pytest

from memory_pipeline.index.chunks import chunks_of
from memory_pipeline.index.embedding import profile_of, search_by_meaning
from memory_pipeline.index.inproc import InprocSemanticIndex
from memory_pipeline.namespaces.owners import owner_namespace
from memory_pipeline.recall.compose import recall
from memory_pipeline.recall.sources import CANDIDATES, OwnerMemory, SearchByMeaning, limits_of, sources_of
from memory_pipeline.recall.values import Recalled
from memory_pipeline.remembering.target import PROFILES_MAX, profile_key
from memory_pipeline.store.documents import (
    Content,
    Document,
    MemoryKey,
    NamespaceAddress,
    Passage,
    Put,
    Withdraw,
)
from memory_pipeline.store.inproc import InprocMemoryStore
from shared.agents.memory import MemoryPolicy
from shared.domain.errors import (
    ConfigError,
    IndexUnavailable,
    InvalidInput,
    MemoryCorrupt,
    ProcessingRefused,
    StoreUnavailable,
    TurnkeeperError,
)
from shared.domain.ids import OwnerId
from shared.models.scripted import ScriptedEmbedder
from tests.unit.memory_pipeline.recall.passages import attribution, content

ANN, BOB = OwnerId("tenant-7/ann"), OwnerId("tenant-8/bob")
POLICY = MemoryPolicy()


def space_of(owner: OwnerId) -> NamespaceAddress:
    return owner_namespace(POLICY, owner).address


class Place:
    """A store with owners' documents."""

    def __init__(self) -> None:
        self.store = InprocMemoryStore()
        self.operations = 0

    async def put(
        self, text: str | Content, *, owner: OwnerId = ANN, name: str = "profile-1", scope: str = "private"
    ) -> Document:
        key = MemoryKey(namespace=space_of(owner), id=name)
        current = await self.store.read(key)
        self.operations += 1
        command = Put(
            key=key,
            operation_id=str(self.operations),
            expected_revision=None if current is None else current.source.revision,
            locator=f"memory/{name}",
            content=content(text) if isinstance(text, str) else text,
            scopes=(scope,),
        )
        return await self.store.write(command, owner=owner)

    async def withdraw(self, document: Document, owner: OwnerId = ANN) -> None:
        self.operations += 1
        command = Withdraw(
            key=document.key,
            operation_id=str(self.operations),
            expected_revision=document.source.revision,
            reason="wrong",
        )
        await self.store.write(command, owner=owner)

    async def recall(
        self,
        query: str = "tea",
        *,
        owner: OwnerId = ANN,
        by_meaning: SearchByMeaning | None = None,
        policy: MemoryPolicy = POLICY,
    ) -> Recalled:
        memory = OwnerMemory(policy, self.store, self.store, by_meaning)
        return await recall(sources_of(memory, owner, query), limits_of(policy))


def texts(recalled: Recalled) -> list[str]:
    return [p.content.text for p in recalled.passages]


def counts(recalled: Recalled) -> dict[str, tuple[str, int, int]]:
    return {o.id: (o.status, o.selected, o.deduplicated) for o in recalled.outcomes}


def facts(count: int) -> Content:
    """A profile of facts about all sorts of fruit, one witness a line."""
    lines = [f"Ann's fruit number {n} is {'a pear' if n == 7 else 'an apple'}." for n in range(count)]
    witnesses = [
        attribution(interpretation=line, origin_id=f"ses_{n}:1", locator=f"session/ses_{n}/records/1")
        for n, line in enumerate(lines)
    ]
    return content("\n".join(lines), *witnesses, metadata={"subjects": [f"fruit-{n}" for n in range(count)]})


def meaning(*passages: Passage, asked: list[tuple[str, str]] | None = None) -> SearchByMeaning:
    async def search(namespace: NamespaceAddress, query: str) -> Sequence[Passage]:
        if asked is not None:
            asked.append((namespace, query))
        return passages

    return search


def failing(error: Exception) -> SearchByMeaning:
    async def search(namespace: NamespaceAddress, query: str) -> Sequence[Passage]:
        raise error

    return search


@pytest.mark.behaviour("RCL-51", "RCL-52")
async def test_an_owner_without_memory_recalls_nothing() -> None:
    recalled = await Place().recall()
    assert recalled.text == ""
    assert counts(recalled) == {
        "direct": ("no-match", 0, 0),
        "keyword": ("no-match", 0, 0),
        "semantic": ("unavailable", 0, 0),
    }


async def test_the_profile_is_recalled_whole_whatever_is_asked_and_cited_once() -> None:
    place = Place()
    await place.put("Ann likes tea.\nAnn lives in Rome.")
    assert texts(await place.recall("unrelated")) == ["Ann likes tea.\nAnn lives in Rome."]
    recalled = await place.recall("tea")
    assert len(recalled.passages) == 1
    assert counts(recalled)["keyword"] == ("found", 0, 1)


async def test_other_documents_of_the_owner_are_found_by_word() -> None:
    place = Place()
    await place.put("Ann lives in Rome.")
    await place.put("Tea with Bob on Monday.", name="note")
    assert texts(await place.recall("when is tea?")) == ["Ann lives in Rome.", "Tea with Bob on Monday."]
    assert texts(await place.recall("where?")) == ["Ann lives in Rome."]


@pytest.mark.behaviour("MEM-06", "MEM-17", "MEM-T12", "RCL-T08")
async def test_nothing_of_another_owner_is_recalled_and_no_owner_is_named() -> None:
    place = Place()
    await place.put("Ann likes tea.")
    bobs = await place.put("Bob likes tea.", owner=BOB)
    asked: list[tuple[str, str]] = []
    stolen = Passage(
        authority=space_of(BOB), source=bobs.source, passage_id="document", content=content("Bob likes tea.")
    )
    recalled = await place.recall("tea", by_meaning=meaning(stolen, asked=asked))
    assert texts(recalled) == ["Ann likes tea."]
    assert asked == [(space_of(ANN), "tea")]
    for private in ("tenant-7", "tenant-8", "Bob", "private", space_of(ANN), json.dumps(space_of(ANN))):
        assert private not in recalled.text
    assert {p.authority for p in recalled.passages} == {space_of(ANN)}


@pytest.mark.behaviour("MEM-07", "MEM-18", "MEM-40")
async def test_withdrawn_and_out_of_scope_documents_are_recalled_by_no_source() -> None:
    place = Place()
    profile = await place.put("Ann likes tea.")
    note = await place.put("Tea on Monday.", name="note")
    found = meaning(
        *(
            Passage(source=d.source, passage_id="document", content=d.content)
            for d in (profile, note)
            if d.content is not None
        )
    )
    assert len((await place.recall(by_meaning=found)).passages) == 2
    await place.withdraw(profile)
    await place.put("Tea on Monday.", name="note", scope="other")
    recalled = await place.recall(by_meaning=found)
    assert (recalled.text, {o.status for o in recalled.outcomes}) == ("", {"no-match"})


@pytest.mark.behaviour("MEM-07", "MEM-41")
async def test_a_profile_that_the_scope_may_not_recall_is_recalled_by_no_source() -> None:
    place = Place()
    await place.put("Ann likes tea.", scope="other")
    recalled = await place.recall("tea")
    assert (recalled.text, counts(recalled)["direct"]) == ("", ("no-match", 0, 0))


@pytest.mark.behaviour("MEM-39")
async def test_after_a_withdrawal_the_next_profile_is_the_one_that_is_recalled() -> None:
    place = Place()
    await place.withdraw(await place.put("Ann likes tea."))
    await place.put("Ann likes rum.", name="profile-2")
    assert texts(await place.recall("anything")) == ["Ann likes rum."]


@pytest.mark.behaviour("MEM-20", "MEM-21")
async def test_an_excerpt_found_by_meaning_is_shown_with_the_stores_attribution() -> None:
    place = Place()
    await place.put("Ann lives in Rome.")
    note = await place.put(
        content("Tea on Monday.\nRum on Friday.", attribution("ann"), attribution("bob")), name="note"
    )
    placeholder = Passage(
        source=note.source,
        passage_id="chunk:1",
        content=content("Rum on Friday.", attribution("placeholder"), recorded_at=0),
    )
    recalled = await place.recall("unrelated", by_meaning=meaning(placeholder))
    assert texts(recalled) == ["Ann lives in Rome.", "Rum on Friday."]
    assert [a.speaker for a in recalled.passages[1].content.attributions] == ["bob"]
    assert recalled.passages[1].content.recorded_at == 2_000


# --- trouble -------------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("RCL-13", "RCL-14", "RCL-T08")
@pytest.mark.parametrize(
    "error", [StoreUnavailable("away"), IndexUnavailable("away", reason="timeout")], ids=lambda e: e.code
)
async def test_a_part_that_is_away_is_an_outcome_with_its_code_and_the_others_are_recalled(
    error: TurnkeeperError, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place()
    await place.put("Ann likes tea.")
    with caplog.at_level(logging.DEBUG):
        recalled = await place.recall(by_meaning=failing(error))
    assert texts(recalled) == ["Ann likes tea."]
    assert [(o.status, o.reason) for o in recalled.outcomes if o.id == "semantic"] == [
        ("unavailable", error.code)
    ]
    [record] = [r for r in caplog.records if r.name.startswith("memory_pipeline")]
    assert (record.levelname, record.__dict__["code"]) == ("WARNING", error.code)
    for private in ("tenant-7", "Ann likes", "tea"):
        assert private not in str(record.__dict__)


@pytest.mark.behaviour("RCL-12", "RCL-14")
@pytest.mark.parametrize(
    "error", [MemoryCorrupt("corrupt"), InvalidInput("no", field="f", bound="b"), ZeroDivisionError()]
)
async def test_defects_and_refusals_pass_through_the_sources(error: Exception) -> None:
    with pytest.raises(type(error)):
        await Place().recall(by_meaning=failing(error))


async def test_a_direct_read_that_cannot_be_made_leaves_the_other_sources() -> None:
    class AwayForProfiles(InprocMemoryStore):
        async def read_many(self, keys: Sequence[MemoryKey]) -> Sequence[Document | None]:
            if profile_key(space_of(ANN), 1) in keys:
                raise StoreUnavailable("away")
            return await super().read_many(keys)

    place = Place()
    place.store = AwayForProfiles()
    await place.put("Tea on Monday.", name="note")
    recalled = await place.recall("tea")
    assert counts(recalled)["direct"] == ("unavailable", 0, 0)
    assert texts(recalled) == ["Tea on Monday."]


async def test_an_owner_whose_profiles_are_all_spent_is_refused() -> None:
    class AllWithdrawn(InprocMemoryStore):
        async def read_many(self, keys: Sequence[MemoryKey]) -> Sequence[Document | None]:
            [document] = await super().read_many([profile_key(space_of(ANN), 1)])
            return [document for _ in keys]

    place = Place()
    await place.withdraw(await place.put("old"))
    spent = AllWithdrawn()
    spent.documents = place.store.documents
    place.store = spent
    with pytest.raises(ProcessingRefused):
        await place.recall()
    assert PROFILES_MAX == 1_024


# --- bounds --------------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("RCL-22", "RCL-60")
def test_a_policys_numbers_are_the_bounds_of_the_recall() -> None:
    policy = MemoryPolicy(recall_items=3, recall_bytes=5_000, recall_tokens=4_000, recall_timeout_s=0.5)
    bounds = limits_of(policy)
    assert (bounds.max_items, bounds.max_bytes, bounds.max_tokens, bounds.timeout_s) == (3, 5_000, 4_000, 0.5)


@pytest.mark.behaviour("RCL-60")
@pytest.mark.parametrize("count", [11, 40, 128])
async def test_a_profile_that_is_too_large_whole_is_recalled_by_its_lines_that_answer(count: int) -> None:
    place = Place()
    await place.put(facts(count))
    recalled = await place.recall("Who has the pear?")
    if count == 11:
        assert counts(recalled)["direct"] == ("found", 1, 0)
        return
    assert counts(recalled)["direct"] == ("found", 0, 0)
    assert texts(recalled) == ["Ann's fruit number 7 is a pear."]
    assert [a.origin_id for a in recalled.passages[0].content.attributions] == ["ses_7:1"]
    assert recalled.passages[0].content.metadata == {"subjects": ["fruit-7"]}


@pytest.mark.behaviour("RCL-60")
async def test_lines_that_hold_more_words_of_the_query_come_first_and_the_bounds_hold() -> None:
    place = Place()
    await place.put(facts(60))
    recalled = await place.recall("Is a fruit number 7 the pear?")
    assert texts(recalled)[0] == "Ann's fruit number 7 is a pear."
    assert 1 < len(recalled.passages) <= POLICY.recall_items
    assert recalled.bytes <= POLICY.recall_tokens
    assert CANDIDATES <= 128


# --- by meaning ----------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("RCL-14")
async def test_an_embedder_that_cannot_be_used_is_an_index_that_is_away() -> None:
    refusals = [ConfigError("no such model", field="model") for _ in range(2)]
    search = search_by_meaning(InprocSemanticIndex(), ScriptedEmbedder(failures=refusals), timeout_s=1.0)
    with pytest.raises(IndexUnavailable) as raised:
        await search(space_of(ANN), "tea")
    assert raised.value.fields["reason"] == ConfigError.code
    place = Place()
    await place.put("Ann likes tea.")
    recalled = await place.recall(by_meaning=search)
    assert (texts(recalled), counts(recalled)["semantic"]) == (["Ann likes tea."], ("unavailable", 0, 0))


def test_documents_are_indexed_one_fact_a_line() -> None:
    profile = profile_of(ScriptedEmbedder())
    chunks = chunks_of("Ann likes tea.\nBob likes rum.", profile, max_source_bytes=1_024, max_chunks=8)
    assert [c.text for c in chunks] == ["Ann likes tea.\n", "Bob likes rum."]

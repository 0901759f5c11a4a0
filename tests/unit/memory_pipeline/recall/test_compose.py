"""Composition: what each source's outcome does to a recall, what fits, and what counts as the same passage."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from memory_pipeline.recall.compose import recall
from memory_pipeline.recall.render import render
from memory_pipeline.recall.values import (
    Found,
    InsufficientFreshness,
    Lookup,
    NoMatch,
    Recalled,
    RecallLimits,
    RecallSource,
    SourceOutcome,
    Unavailable,
)
from memory_pipeline.store.documents import Passage, encode
from shared.domain.errors import ConfigError, MemoryCorrupt, RecallFailed, StoreBusy
from tests.support.virtual_time import virtual_time
from tests.unit.memory_pipeline.recall.passages import HangingReader, attribution, passage, source_of

WIDE = RecallLimits(max_bytes=65_536, max_tokens=65_536)


def limits(**given: Any) -> RecallLimits:
    """Bounds that nothing small meets, except those given."""
    standard: dict[str, Any] = {"max_bytes": 65_536, "max_tokens": 65_536}
    return RecallLimits(**standard | given)


def size_of(*passages: Passage, authority: str = "reader:one") -> int:
    """The bytes of an envelope."""
    return len(render([(authority, p) for p in passages]).encode())


def weight_of(one: Passage) -> int:
    """What a passage counts against the input bound."""
    return len(encode(one.model_copy(update={"authority": None})).encode())


def shown(recalled: Recalled) -> list[dict[str, Any]]:
    """The items of an envelope."""
    items: list[dict[str, Any]] = json.loads(recalled.text.partition("\n")[2])
    return items


# --- outcomes ----------------------------------------------------------------------------------------------------

OUTCOMES = [
    (Unavailable("store.busy"), "unavailable", "store.busy"),
    (InsufficientFreshness(), "insufficient-freshness", None),
    (NoMatch(), "no-match", None),
    (Found(()), "found", None),
]


@pytest.mark.behaviour("RCL-05", "RCL-08", "RCL-13", "RCL-40", "RCL-41", "RCL-T01")
@pytest.mark.parametrize(("lookup", "status", "reason"), OUTCOMES, ids=[o[1] for o in OUTCOMES])
async def test_an_optional_sources_outcome_is_reported_and_the_others_are_recalled(
    lookup: Lookup, status: str, reason: str | None
) -> None:
    recalled = await recall([source_of(lookup, name="first"), source_of([passage()], name="second")], WIDE)
    assert recalled.outcomes == (
        SourceOutcome("first", status, reason),  # type: ignore[arg-type]  # the table's statuses are the literals
        SourceOutcome("second", "found", selected=1),
    )
    assert recalled.passages == (passage(),)


@pytest.mark.behaviour("RCL-09", "RCL-T01")
@pytest.mark.parametrize(
    ("lookup", "reason"),
    [(Unavailable("store.busy"), "store.busy"), (InsufficientFreshness(), "insufficient-freshness")],
    ids=["unavailable", "stale"],
)
async def test_an_essential_source_that_is_away_or_stale_fails_the_recall_and_later_ones_are_not_asked(
    lookup: Lookup, reason: str
) -> None:
    asked = []

    async def later() -> Lookup:
        asked.append("later")
        return NoMatch()

    with pytest.raises(RecallFailed) as failed:
        await recall([source_of(lookup, essential=True), RecallSource("later", False, later)], WIDE)
    assert failed.value.fields == {"source": "one", "reason": reason}
    assert asked == []


@pytest.mark.behaviour("RCL-07", "RCL-11", "RCL-52", "RCL-T01")
@pytest.mark.parametrize("lookup", [NoMatch(), Found(())], ids=["no-match", "found-nothing"])
async def test_nothing_found_is_success_for_an_essential_source_and_gives_no_text(lookup: Lookup) -> None:
    recalled = await recall([source_of(lookup, essential=True)], WIDE)
    assert (recalled.text, recalled.bytes, recalled.estimated_tokens, recalled.passages) == ("", 0, 0, ())


@pytest.mark.behaviour("RCL-10", "RCL-T01")
async def test_an_essential_source_of_which_nothing_fits_fails_and_an_optional_one_is_counted() -> None:
    big = passage("x" * 5_000)
    with pytest.raises(RecallFailed) as failed:
        await recall([source_of([big], essential=True)], limits(max_bytes=4_000))
    assert failed.value.fields["reason"] == "budget"
    recalled = await recall([source_of([big])], limits(max_bytes=4_000))
    assert (recalled.text, recalled.outcomes) == ("", (SourceOutcome("one", "found", omitted=1),))


@pytest.mark.behaviour("RCL-10", "RCL-37")
async def test_an_essential_source_whose_passages_stand_there_already_does_not_fail() -> None:
    shared = passage(authority="corpus")
    sources = [source_of([shared], name="first"), source_of([shared], name="second", essential=True)]
    recalled = await recall(sources, limits(max_items=1))
    assert recalled.outcomes[1] == SourceOutcome("second", "found", deduplicated=1)


@virtual_time
@pytest.mark.behaviour("RCL-09", "RCL-T01", "RCL-T09")
async def test_a_hanging_reader_is_cancelled_at_the_deadline_and_what_was_read_stands() -> None:
    hanging = HangingReader()
    sources = [
        source_of([passage()], name="before"),
        RecallSource("hanging", False, hanging),
        source_of([passage(source="notes")], name="after"),
    ]
    recalled = await recall(sources, limits(timeout_s=1.0))
    assert asyncio.get_running_loop().time() == pytest.approx(1.0)
    assert hanging.finished
    assert [(o.id, o.status, o.reason, o.selected) for o in recalled.outcomes] == [
        ("before", "found", None, 1),
        ("hanging", "unavailable", "timeout", 0),
        ("after", "found", None, 1),  # it answered without a wait
    ]


@virtual_time
@pytest.mark.behaviour("RCL-09", "RCL-T01", "RCL-T09")
async def test_an_essential_reader_that_hangs_fails_the_recall_after_its_finalizer_ran() -> None:
    hanging = HangingReader()
    with pytest.raises(RecallFailed) as failed:
        await recall([RecallSource("hanging", True, hanging)], limits(timeout_s=0.5))
    assert (failed.value.fields["reason"], hanging.finished) == ("timeout", True)
    assert asyncio.get_running_loop().time() == pytest.approx(0.5)


@virtual_time
async def test_the_sources_share_one_deadline() -> None:
    async def slow() -> Lookup:
        await asyncio.sleep(0.6)
        return Found((passage(),))

    sources = [RecallSource(name, False, slow) for name in ("a", "b", "c")]
    recalled = await recall(sources, limits(timeout_s=1.0))
    assert [o.status for o in recalled.outcomes] == ["found", "unavailable", "unavailable"]
    assert asyncio.get_running_loop().time() == pytest.approx(1.0)


@virtual_time
async def test_a_caller_that_is_cancelled_is_not_told_of_a_timeout() -> None:
    hanging = HangingReader()
    task = asyncio.create_task(recall([RecallSource("hanging", False, hanging)], WIDE))
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.wait({task})
    assert (task.cancelled(), hanging.finished) == (True, True)


@pytest.mark.behaviour("RCL-12", "RCL-13", "RCL-14")
@pytest.mark.parametrize(
    "error", [StoreBusy("busy"), MemoryCorrupt("corrupt"), TimeoutError("its own"), ZeroDivisionError()]
)
async def test_an_exception_of_a_reader_passes_even_where_the_source_is_optional(error: Exception) -> None:
    async def fail() -> Lookup:
        raise error

    with pytest.raises(type(error)) as raised:
        await recall([RecallSource("one", False, fail)], WIDE)
    assert raised.value is error


# --- the sources given ---------------------------------------------------------------------------------------------


@pytest.mark.behaviour("RCL-22")
async def test_more_sources_than_allowed_are_refused_before_one_is_asked() -> None:
    asked = []

    async def read() -> Lookup:
        asked.append(1)
        return NoMatch()

    sources = [RecallSource(str(n), False, read) for n in range(3)]
    with pytest.raises(RecallFailed) as failed:
        await recall(sources, limits(max_sources=2))
    assert (failed.value.fields["reason"], asked) == ("budget", [])
    await recall(sources, limits(max_sources=3))
    assert len(asked) == 3


@pytest.mark.parametrize("names", [("a", "a"), ("a", "")])
async def test_source_ids_are_distinct_and_say_something(names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError):
        await recall([source_of(NoMatch(), name=name) for name in names], WIDE)


@pytest.mark.parametrize("count", [128, 129])
async def test_a_lookup_carries_at_most_128_passages(count: int) -> None:
    found = source_of([passage(passage_id=str(n)) for n in range(count)])
    if count == 128:
        assert (await recall([found], limits(max_items=1))).outcomes[0].omitted == 127
        return
    with pytest.raises(RecallFailed) as failed:
        await recall([found], limits(max_items=1))
    assert failed.value.fields == {"source": "one", "reason": "budget"}


@pytest.mark.behaviour("RCL-22", "RCL-26")
@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("max_sources", 1, 16),
        ("max_items", 1, 128),
        ("max_bytes", 1, 4_194_304),
        ("max_tokens", 1, 1_048_576),
        ("timeout_s", 0.001, 60.0),
        ("max_input_bytes", 1, 67_108_864),
    ],
)
def test_every_limit_is_held_to_its_bounds(name: str, low: float, high: float) -> None:
    for value in (low, high):
        assert getattr(RecallLimits(**{name: value}), name) == value  # type: ignore[arg-type]  # one of the fields
    for value in (0, high + 1, -1, float("nan"), True):
        with pytest.raises(ConfigError) as refused:
            RecallLimits(**{name: value})  # type: ignore[arg-type]  # one of the fields
        assert refused.value.fields["field"] == f"recall.{name}"


@pytest.mark.behaviour("RCL-26")
def test_the_input_bound_is_16_mebibytes_unless_given() -> None:
    assert RecallLimits().max_input_bytes == 16 * 1024 * 1024


# --- what fits -------------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("RCL-23", "RCL-T02")
@pytest.mark.parametrize("text", ["plain", "größer 🐋 " * 40], ids=["ascii", "multi-byte"])
async def test_the_whole_envelope_may_have_just_as_many_bytes_as_allowed(text: str) -> None:
    one = passage(text)
    exact = size_of(one)
    recalled = await recall([source_of([one])], limits(max_bytes=exact))
    assert (recalled.bytes, len(recalled.text.encode()), recalled.passages) == (exact, exact, (one,))
    assert (await recall([source_of([one])], limits(max_bytes=exact - 1))).text == ""


@pytest.mark.behaviour("RCL-23", "RCL-T02")
async def test_a_byte_more_of_attribution_alone_leaves_a_passage_out() -> None:
    short = passage("same", attribution(interpretation="x"))
    longer = passage("same", attribution(interpretation="xx"))
    bound = limits(max_bytes=size_of(short))
    assert (await recall([source_of([short])], bound)).passages == (short,)
    assert (await recall([source_of([longer])], bound)).passages == ()


@pytest.mark.behaviour("RCL-23")
async def test_tokens_are_estimated_over_the_whole_envelope_one_a_byte_unless_told_otherwise() -> None:
    one = passage("größer")
    exact = size_of(one)
    recalled = await recall([source_of([one])], limits(max_tokens=exact))
    assert (recalled.estimated_tokens, recalled.bytes) == (exact, exact)
    assert (await recall([source_of([one])], limits(max_tokens=exact - 1))).text == ""
    counted: list[str] = []

    def estimate(text: str) -> int:
        counted.append(text)
        return 7

    recalled = await recall([source_of([one])], limits(max_tokens=7), estimate_tokens=estimate)
    assert (recalled.estimated_tokens, set(counted)) == (7, {recalled.text})
    assert (await recall([source_of([one])], limits(max_tokens=6), estimate_tokens=estimate)).text == ""


@pytest.mark.behaviour("RCL-06", "RCL-T02")
async def test_passages_are_taken_in_rank_order_whole_and_a_later_smaller_one_may_still_fit() -> None:
    first, big, small = (
        passage("first", source="a"),
        passage("b" * 2_000, source="b"),
        passage("small", source="c"),
    )
    recalled = await recall([source_of([first, big, small])], limits(max_bytes=size_of(first, small)))
    assert recalled.passages == (first, small)
    assert recalled.outcomes == (SourceOutcome("one", "found", selected=2, omitted=1),)
    assert [item["content"]["text"] for item in shown(recalled)] == ["first", "small"]


async def test_at_most_max_items_are_taken() -> None:
    found = [passage(str(n), source=str(n)) for n in range(4)]
    recalled = await recall(
        [source_of(found[:2], name="a"), source_of(found[2:], name="b")], limits(max_items=3)
    )
    assert [o.selected for o in recalled.outcomes] == [2, 1]
    assert len(shown(recalled)) == 3


@pytest.mark.behaviour("RCL-35")
async def test_the_bound_on_sources_counts_them_with_their_authority() -> None:
    two_places = [passage(passage_id=str(n)) for n in range(2)]
    recalled = await recall([source_of(two_places)], limits(max_sources=1))
    assert recalled.outcomes[0].selected == 2
    two_authorities = [passage(authority="x"), passage(authority="y")]
    recalled = await recall([source_of(two_authorities)], limits(max_sources=1))
    assert (recalled.outcomes[0].selected, recalled.outcomes[0].omitted) == (1, 1)


# --- the input bound -------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("RCL-25", "RCL-27", "RCL-29", "RCL-T03")
@pytest.mark.parametrize("essential", [False, True])
@pytest.mark.parametrize("case", ["duplicate", "omitted", "other-source"])
async def test_a_byte_over_the_input_bound_fails_the_recall_whatever_that_byte_belongs_to(
    case: str, essential: bool
) -> None:
    one, other = passage("one"), passage("x" * 5_000, source="other")
    second = one if case == "duplicate" else other
    total = weight_of(one) + weight_of(second)
    sources = (
        [source_of([one], name="a"), source_of([second], name="b", essential=essential)]
        if case == "other-source"
        else [source_of([one, second], essential=essential)]
    )
    room = {"max_bytes": 4_000} if case == "omitted" else {}
    assert (await recall(sources, limits(max_input_bytes=total, **room))).text
    with pytest.raises(RecallFailed) as failed:
        await recall(sources, limits(max_input_bytes=total - 1, **room))
    assert failed.value.fields["reason"] == "budget"


@pytest.mark.behaviour("RCL-25")
async def test_the_input_bound_counts_bytes_of_utf8_not_characters() -> None:
    one = passage("🐋" * 100)
    assert weight_of(one) >= 400
    assert (await recall([source_of([one])], limits(max_input_bytes=weight_of(one)))).text
    with pytest.raises(RecallFailed):
        await recall([source_of([one])], limits(max_input_bytes=weight_of(one) - 1))


# --- identity --------------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("RCL-30", "RCL-34", "RCL-T04")
async def test_two_contents_of_one_revision_are_a_conflict_within_one_authority() -> None:
    for sources in (
        [source_of([passage("one"), passage("two")])],
        [
            source_of([passage("one", authority="corpus")], name="a"),
            source_of([passage("two", authority="corpus")], name="b"),
        ],
    ):
        with pytest.raises(RecallFailed) as failed:
            await recall(sources, WIDE)
        assert failed.value.fields["reason"] == "conflict"


@pytest.mark.behaviour("RCL-30", "RCL-T04")
async def test_a_conflict_is_found_although_the_first_passage_did_not_fit() -> None:
    sources = [source_of([passage("x" * 5_000), passage("small")])]
    with pytest.raises(RecallFailed) as failed:
        await recall(sources, limits(max_bytes=4_000))
    assert failed.value.fields["reason"] == "conflict"


@pytest.mark.behaviour("RCL-33", "RCL-34", "RCL-36", "RCL-T04")
async def test_two_authorities_may_both_hold_a_source_of_the_same_id_and_revision() -> None:
    sources = [source_of([passage("one")], name="a"), source_of([passage("two")], name="b")]
    recalled = await recall(sources, WIDE)
    assert [(item["content"]["text"], item["authority"]) for item in shown(recalled)] == [
        ("one", "memory-authority:1"),
        ("two", "memory-authority:2"),
    ]


@pytest.mark.behaviour("RCL-34")
async def test_an_authority_that_is_given_is_never_taken_for_a_readers_id() -> None:
    sources = [
        source_of([passage("one")], name="a"),
        source_of([passage("two", authority="a"), passage("three", authority="reader:a")], name="b"),
    ]
    assert len((await recall(sources, WIDE)).passages) == 3


@pytest.mark.behaviour("RCL-31", "RCL-T05")
async def test_the_order_of_metadata_members_is_nothing_and_that_of_array_elements_is() -> None:
    first = passage(metadata={"a": {"x": 1, "y": [1, 2]}, "b": 2})
    reordered = passage(metadata={"b": 2, "a": {"y": [1, 2], "x": 1}})
    recalled = await recall([source_of([first, reordered])], WIDE)
    assert recalled.outcomes == (SourceOutcome("one", "found", selected=1, deduplicated=1),)
    with pytest.raises(RecallFailed) as failed:
        await recall([source_of([first, passage(metadata={"a": {"x": 1, "y": [2, 1]}, "b": 2})])], WIDE)
    assert failed.value.fields["reason"] == "conflict"


@pytest.mark.behaviour("RCL-32", "RCL-T06")
async def test_equal_passages_of_unknown_revision_share_a_citation_within_one_authority_only() -> None:
    unknown = passage(revision=None)
    recalled = await recall([source_of([unknown, unknown])], WIDE)
    assert [item["citation"] for item in shown(recalled)] == ["memory:1"]
    recalled = await recall([source_of([unknown], name="a"), source_of([unknown], name="b")], WIDE)
    assert [item["citation"] for item in shown(recalled)] == ["memory:1", "memory:2"]


@pytest.mark.behaviour("RCL-32")
async def test_different_passages_of_unknown_revision_are_no_conflict() -> None:
    recalled = await recall([source_of([passage("a", revision=None), passage("b", revision=None)])], WIDE)
    assert len(recalled.passages) == 2


async def test_a_passage_that_was_left_out_is_considered_again() -> None:
    one = passage()
    recalled = await recall([source_of([one, one])], limits(max_bytes=size_of(one) - 1))
    assert recalled.outcomes == (SourceOutcome("one", "found", omitted=2),)


@pytest.mark.behaviour("RCL-48")
async def test_the_passages_of_the_result_keep_their_authority() -> None:
    one = passage(authority="namespace of ann")
    recalled = await recall([source_of([one])], WIDE)
    assert [p.authority for p in recalled.passages] == ["namespace of ann"]


@pytest.mark.behaviour("RCL-32", "RCL-35")
async def test_an_excerpt_is_not_shown_beside_its_whole_document_at_the_same_revision() -> None:
    whole = passage("Ann likes tea.\nAnn lives in Lyon.", authority="corpus")
    same = passage("Ann likes tea.", passage_id="lines:1-1", authority="corpus")
    other_revision = passage("Ann likes tea.", passage_id="lines:1-1", authority="corpus", revision="2")
    elsewhere = passage("Ann likes tea.", passage_id="lines:1-1", authority="another")
    recalled = await recall(
        [source_of([whole], name="direct"), source_of([same, other_revision, elsewhere], name="keyword")],
        limits(),
    )
    assert recalled.passages == (whole, other_revision, elsewhere)
    assert recalled.outcomes[1] == SourceOutcome("keyword", "found", selected=2, deduplicated=1)

"""Rules of a write that need no store: revisions, verdicts, and what errors say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_pipeline.store.conformance_stage import put, said, withdraw
from memory_pipeline.store.documents import (
    Command,
    MemoryKey,
    NamespaceAddress,
    decode_command,
    decode_document,
    encode,
)
from memory_pipeline.store.transition import Result, Verdict, answer, generation_of, next_document, prepare
from shared.domain.errors import MemoryCorrupt, StoreDefect, TurnkeeperError

KEY = MemoryKey(namespace=NamespaceAddress('[1,"profile",1,{"owner":"secret-owner"}]'), id="d")
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("revision", "generation"),
    [
        (None, None),
        ("1", 1),
        ("12", 12),
        ("9223372036854775806", 2**63 - 2),
        ("9223372036854775807", 0),
        ("0", 0),
        ("01", 0),
        ("+1", 0),
        (" 1", 0),
        ("1.0", 0),
        ("\u0661", 0),
        ("\u00b2", 0),
        ("9" * 400, 0),
    ],
)
def test_a_revision_names_a_generation_in_one_way_only(revision: str | None, generation: int | None) -> None:
    assert generation_of(revision) == generation


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8), JSON, max_size=4
    )
)
def test_what_is_stored_reads_back_as_it_was(metadata: dict[str, object]) -> None:
    command = put(KEY, content=said("text", metadata=metadata))
    document = next_document(command, None, 1)
    prepare(command)
    assert encode(decode_command(encode(command))) == encode(command)
    assert encode(decode_document(encode(document))) == encode(document)
    assert answer(command, Verdict("replayed", encode(document))) == decode_document(encode(document))


def test_the_same_command_has_the_same_digest_and_any_other_another() -> None:
    one = put(KEY, operation_id="op")
    others: list[Command] = [
        put(KEY, operation_id="op2"),
        put(KEY, "other", operation_id="op"),
        put(KEY, expected="1", operation_id="op"),
        put(KEY, operation_id="op", scopes=()),
        put(KEY, operation_id="op", locator="x"),
        put(KEY.model_copy(update={"id": "e"}), operation_id="op"),
        withdraw(KEY, None, operation_id="op"),
    ]
    assert prepare(one).digest == prepare(put(KEY, operation_id="op")).digest
    assert len({prepare(one).digest, *(prepare(other).digest for other in others)}) == len(others) + 1


@pytest.mark.behaviour("NSP-43")
@pytest.mark.parametrize(
    "result", ["operation-conflict", "withdrawn", "conflict", "missing", "too-large", "written"]
)
def test_no_error_of_a_write_tells_namespace_or_content(result: Result) -> None:
    with pytest.raises(TurnkeeperError) as refusal:
        answer(
            put(KEY, "secret words"),
            Verdict(result, '{"secret":"words"}' if result == "written" else None, 3),
        )
    told = f"{refusal.value} {refusal.value.fields} {refusal.value.__cause__}"
    assert "secret" not in told


def test_an_unknown_verdict_and_a_missing_version_are_ours_to_report() -> None:
    with pytest.raises(MemoryCorrupt):
        answer(put(KEY), Verdict("replayed"))
    with pytest.raises(StoreDefect):
        answer(put(KEY), Verdict("unheard-of"))  # type: ignore[arg-type]  # what the type rules out

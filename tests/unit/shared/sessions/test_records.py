"""Records, drafts, and the check of a whole log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from shared.domain.bounds import COMMIT_MAX_BYTES, RECORD_MAX_BYTES
from shared.domain.canonical import chain_tail, first_tail
from shared.domain.errors import CorruptRecord, InputTooLarge, InvalidInput
from shared.domain.ids import SessionId
from shared.sessions.records import Draft, Record, check_commit_size, draft, verify_log

SESSION = SessionId("ses_1")
AT = datetime(2030, 1, 1, tzinfo=UTC)


def stored(drafts: Sequence[Draft], turn: int | None = 1) -> list[Record]:
    return [Record(SESSION, n, turn, d.kind, AT, d.text, d.digest) for n, d in enumerate(drafts, 1)]


def tail_of(records: Sequence[Record]) -> bytes:
    tail = first_tail(SESSION)
    for record in records:
        tail = chain_tail(tail, record.seq, record.turn, record.digest)
    return tail


def test_a_draft_holds_canonical_text_and_its_digest() -> None:
    made = draft("note", {"b": 1, "a": "é"})
    assert made.text == '{"a":"é","b":1}'
    assert made.digest != draft("other", {"b": 1, "a": "é"}).digest
    assert made == draft("note", {"a": "é", "b": 1})


@pytest.mark.parametrize("character", ["a", "é"])
def test_a_record_is_bounded_in_bytes_and_the_bound_itself_fits(character: str) -> None:
    room = RECORD_MAX_BYTES - len('{"t":""}')
    size = len(character.encode())
    draft("note", {"t": character * (room // size)})
    with pytest.raises(InputTooLarge, match="note"):
        draft("note", {"t": character * (room // size + 1)})


@pytest.mark.parametrize("text", ["a\x00b", "\ud800"])
def test_a_record_with_a_nul_or_a_lone_surrogate_is_never_made(text: str) -> None:
    for data in ({"t": text}, {text: 1}, {"t": [{"u": text}]}):
        with pytest.raises(InvalidInput):
            draft("note", data)
    assert draft("note", {"t": "\\u0000"}).text == '{"t":"\\\\u0000"}'


def test_a_commit_is_bounded_in_bytes() -> None:
    part = draft("note", {"t": "x" * (RECORD_MAX_BYTES - 100)})
    check_commit_size([part] * (COMMIT_MAX_BYTES // RECORD_MAX_BYTES))
    with pytest.raises(InputTooLarge):
        check_commit_size([part] * (COMMIT_MAX_BYTES // RECORD_MAX_BYTES + 1))


@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"', "null"])
@pytest.mark.behaviour("SES-33")
def test_a_row_that_is_no_json_object_is_named_by_session_and_seq(text: str) -> None:
    (record,) = stored([draft("note", {})])
    with pytest.raises(CorruptRecord) as corrupt:
        _ = replace(record, text=text).data
    assert (corrupt.value.fields["session"], corrupt.value.fields["seq"]) == (SESSION, 1)


def test_a_whole_log_verifies_against_its_head() -> None:
    records = stored([draft("note", {"n": n}) for n in range(3)])
    verify_log(SESSION, records, seq=3, tail=tail_of(records))
    verify_log(SESSION, [], seq=0, tail=first_tail(SESSION))


def test_any_change_of_a_log_is_found() -> None:
    records = stored([draft("note", {"n": n}) for n in range(3)])
    tail = tail_of(records)
    other = draft("note", {"n": 7})
    damaged = [
        [records[0], records[2], records[1]],
        records[:2],
        records[1:],
        [*records[:2], replace(records[2], text=other.text)],
        [*records[:2], replace(records[2], text=other.text, digest=other.digest)],
        [*records[:2], replace(records[2], kind="other")],
        [*records[:2], replace(records[2], turn=2)],
        [*records, replace(records[2], seq=4)],
    ]
    for log in damaged:
        with pytest.raises(CorruptRecord):
            verify_log(SESSION, log, seq=3, tail=tail)
    with pytest.raises(CorruptRecord):
        verify_log("ses_2", records, seq=3, tail=tail)

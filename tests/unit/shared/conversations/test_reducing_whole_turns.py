"""Records of whole turns folded into what was kept: pure, versioned, and strict about what stands where."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest

from shared.conformance.conversations.whole_turns import turn_of
from shared.conversations import ConversationMessage
from shared.conversations.persistent import WholeTurn
from shared.conversations.persistent.reducing import RetainedHistory, fold_records, reduce_record
from shared.conversations.persistent.whole_turn import drafts_of
from shared.domain.errors import CorruptRecord
from shared.domain.ids import SessionId
from shared.sessions.records import Draft, Record, draft
from shared.sessions.vocabulary import RESERVED_KINDS
from shared.sessions.vocabulary_whole import SCHEMAS_WHOLE, WHOLE_TURN_KINDS

S = SessionId("s")
AT = datetime(2026, 11, 30, tzinfo=UTC)


def records_of(*groups: Sequence[Draft]) -> list[Record]:
    numbers = count(1)
    return [
        Record(S, next(numbers), None, one.kind, AT, one.text, one.digest)
        for group in groups
        for one in group
    ]


def drafts(turn: WholeTurn, context: Sequence[ConversationMessage] | None = None) -> Sequence[Draft]:
    return drafts_of(turn, context or (), is_snapshot=context is not None)


@pytest.mark.behaviour("THR-93")
def test_any_cut_of_the_records_folds_to_the_same_state_and_changes_no_earlier_one() -> None:
    one, two = turn_of("one", "1"), turn_of("two", "2")
    records = records_of(drafts(one), [draft("note.added", {"n": 1})], drafts(two))
    whole = fold_records(records)
    assert whole.context == (one.message, *one.messages, two.message, *two.messages)
    assert [turn.seq for turn in whole.turns] == [3, 7]
    empty = RetainedHistory()
    for cut in range(len(records) + 1):
        early = fold_records(records[:cut], empty)
        again = fold_records(records[:cut], empty)
        assert fold_records(records[cut:], early) == whole
        assert early == again
    assert empty == RetainedHistory()


@pytest.mark.behaviour("THR-93", "THR-98", "THR-64")
def test_a_snapshot_needs_no_older_record() -> None:
    summary = [ConversationMessage.user("so far")]
    one, two, three = turn_of("one"), turn_of("two"), turn_of("three")
    records = records_of(drafts(one), drafts(two, summary), drafts(three))
    assert fold_records(records).context == fold_records(records[3:]).context
    assert fold_records(records).context == (*summary, three.message, *three.messages)
    assert fold_records(records).since_snapshot == 1


@pytest.mark.behaviour("THR-93")
@pytest.mark.parametrize("kind", WHOLE_TURN_KINDS)
def test_every_payload_has_a_version_and_another_one_is_not_guessed(kind: str) -> None:
    [found] = [one for one in records_of(drafts(turn_of())) if one.kind == kind]
    assert found.data["v"] == 1
    newer = draft(kind, {**found.data, "v": 2})
    before = [r for r in records_of(drafts(turn_of())) if r.seq < found.seq]
    with pytest.raises(CorruptRecord):
        reduce_record(fold_records(before), Record(S, 9, None, kind, AT, newer.text, newer.digest))
    assert kind in RESERVED_KINDS
    assert "v" in SCHEMAS_WHOLE[kind].model_fields


@pytest.mark.parametrize("kept", [(0, 2), (1, 2), (0, 0), (0, 1, 1), (2,)], ids=str)
def test_records_that_do_not_make_a_whole_turn_are_named(kept: tuple[int, ...]) -> None:
    whole = drafts(turn_of())
    with pytest.raises(CorruptRecord) as raised:
        fold_records(records_of([whole[n] for n in kept]))
    assert (raised.value.fields["session"], raised.value.fields["seq"]) == (
        S,
        len(kept) if kept != (1, 2) else 1,
    )


def test_records_of_two_turns_do_not_make_one() -> None:
    one, two = drafts(turn_of()), drafts(turn_of())
    with pytest.raises(CorruptRecord):
        fold_records(records_of([one[0], two[1]]))
    with pytest.raises(CorruptRecord):
        fold_records(records_of([one[0], one[1], two[2]]))


def test_a_message_that_does_not_decode_is_named() -> None:
    bad: dict[str, Any] = {
        "v": 1,
        "turn_id": str(turn_of().turn_id),
        "model": "m",
        "tools": [],
        "messages": [{}],
    }
    whole = list(drafts(turn_of()))
    data = records_of(whole)[1].data
    whole[1] = draft("history.model-completed", {**bad, "turn_id": data["turn_id"]})
    with pytest.raises(CorruptRecord) as raised:
        fold_records(records_of(whole))
    assert raised.value.fields["seq"] == 3

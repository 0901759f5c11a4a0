"""The kinds of the framework: what they hold, and that they come back as they were written."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.domain.bounds import clean_json
from shared.domain.errors import CorruptRecord, ReservedKind
from shared.domain.ids import SessionId
from shared.sessions.records import Draft, Record, draft
from shared.sessions.vocabulary import (
    CLIENT_KINDS,
    JOURNAL_KINDS,
    MEMORY_KINDS,
    RESERVED_KINDS,
    SCHEMAS,
    Payload,
    RequestPrepared,
    StepUsage,
    ToolDeclared,
    TurnEnded,
    TurnStarted,
    UserMessage,
    draft_of,
    read_stored,
    refuse_reserved,
)

OBJECT = st.dictionaries(st.text(max_size=3), st.none() | st.integers() | st.text(max_size=3), max_size=2)
#: Values of the fields that hold free JSON.
FREE = {
    "user_message": st.builds(UserMessage, attachments=st.none() | st.lists(OBJECT, max_size=2)),
    "command": st.none() | OBJECT,
    "meta": st.none() | OBJECT,
    "tools": st.lists(st.builds(ToolDeclared, parameters=OBJECT), max_size=2),
    "message": OBJECT,
    "messages": st.lists(OBJECT, max_size=2),
    "context": st.none() | st.lists(OBJECT, max_size=2),
    "model": OBJECT,
    "call_policy": OBJECT,
    "recipe": OBJECT,
}


def payloads_of(schema: type[Payload]) -> st.SearchStrategy[Payload]:
    """Payloads with any storable values that their fields take."""
    free = {
        name: st.lists(OBJECT, max_size=2) if field.annotation == list[dict[str, Any]] else FREE[name]
        for name, field in schema.model_fields.items()
        if name in FREE and field.annotation is not str
    }
    return st.builds(schema, **free).map(lambda p: schema.model_validate(clean_json(p.model_dump())))


def stored(made: Draft, seq: int = 7) -> Record:
    return Record(
        SessionId("ses_1"), seq, 1, made.kind, datetime(2030, 1, 1, tzinfo=UTC), made.text, made.digest
    )


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=list(SCHEMAS))
@pytest.mark.behaviour("SES-08", "SES-155")
def test_every_payload_comes_back_as_it_was_written(schema: type[Payload]) -> None:
    @settings(max_examples=15)
    @given(payloads_of(schema))
    def check(payload: Payload) -> None:
        made = draft_of(payload)
        assert SCHEMAS[made.kind] is schema
        assert read_stored(schema, stored(made)) == payload
        assert json.loads(made.text)["v"] == 1

    check()


@pytest.mark.behaviour("SES-08", "TRN-37")
def test_fields_that_were_not_given_are_not_stored_but_a_hosts_own_null_is() -> None:
    started = TurnStarted(
        turn_id="t", run_id="r", entry="r:0", origin="user", user_message=UserMessage(text="hi")
    )
    assert set(json.loads(draft_of(started).text)) == {
        "claimed",
        "entry",
        "origin",
        "run_id",
        "turn_id",
        "user_message",
        "v",
    }
    noted = started.model_copy(update={"meta": {"a": None, "b": [{"c": None}]}})
    assert json.loads(draft_of(noted).text)["meta"] == {"a": None, "b": [{"c": None}]}


@pytest.mark.parametrize(
    "data",
    [
        {"reason": "completed"},
        {"v": 2, "reason": "completed"},
        {"v": 1},
        {"v": 1, "reason": "other"},
        {"v": 1, "reason": "completed", "more": 1},
        {"v": 1, "reason": "failed", "code": 5},
    ],
)
@pytest.mark.behaviour("SES-160")
def test_a_row_that_does_not_decode_fails_naming_session_seq_and_kind(data: dict[str, Any]) -> None:
    if "v" not in data:  # written before versions were: read as the first
        assert read_stored(TurnEnded, stored(draft("turn.ended", data))).v == 1
        return
    with pytest.raises(CorruptRecord) as corrupt:
        read_stored(TurnEnded, stored(draft("turn.ended", data)))
    assert corrupt.value.fields == {"session": "ses_1", "seq": 7, "kind": "turn.ended"}


def test_a_row_is_never_read_as_another_kind() -> None:
    made = draft_of(StepUsage(run=0, step=0, model="m", usage={}))
    with pytest.raises(CorruptRecord):
        read_stored(TurnEnded, stored(made))


@pytest.mark.behaviour("REQ-51")
def test_a_request_header_that_does_not_decode_fails() -> None:
    with pytest.raises(CorruptRecord):
        read_stored(RequestPrepared, stored(draft("request.prepared", {"v": 1})))


@pytest.mark.behaviour("SES-143", "SES-63")
def test_no_kind_of_the_framework_is_a_hosts() -> None:
    for kind in sorted(RESERVED_KINDS):
        with pytest.raises(ReservedKind) as refusal:
            refuse_reserved(["note", kind])
        assert refusal.value.fields["kind"] == kind
    refuse_reserved(["note", "turn.started.by-me", "TURN.STARTED"])


@pytest.mark.behaviour("SES-141", "SES-142")
def test_the_reserved_kinds_are_the_journals_and_the_names_of_events_that_are_not_stored() -> None:
    unstored = {"assistant.message", "assistant.delta", "tool.progress", "skills.activated", "host"}
    assert unstored == RESERVED_KINDS - JOURNAL_KINDS
    assert set(SCHEMAS) <= JOURNAL_KINDS
    assert set(MEMORY_KINDS) <= set(SCHEMAS)


@pytest.mark.behaviour("FOL-09", "FOL-10", "FOL-11")
def test_a_client_stream_shows_no_prompt_no_tool_input_or_result_and_no_ledger() -> None:
    assert CLIENT_KINDS < JOURNAL_KINDS
    hidden = {"request.prepared", "step.response", "memory.message", "memory.tool-result", "memory.system"}
    assert not CLIENT_KINDS & hidden

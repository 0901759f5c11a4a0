"""Reading stored records: whole by their kind, by keys alone, and what a store gives back of an object."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, ValidationError

from shared.domain.errors import (
    Broken,
    Conflict,
    CorruptRecord,
    Defect,
    InvalidInput,
    ReservedKind,
    SessionContended,
    SessionLogError,
    StoreBusy,
    StoreDefect,
    StoreUnavailable,
    TurnClosed,
    code_of,
    is_store_busy,
)
from shared.domain.ids import SessionId, new_run_id
from shared.host.endings import defects_as_failures, is_turn_error
from shared.sessions.records import Record, draft
from shared.sessions.vocabulary import (
    RequestPreparedKeys,
    StepUsage,
    ToolCompleted,
    ToolStarted,
    TurnEnded,
    TurnStartedKeys,
    draft_of,
    read_stored_data,
    read_stored_keys,
    stored_json,
)


def record(kind: str, data: dict[str, Any], seq: int = 1) -> Record:
    made = draft(kind, data)
    return Record(SessionId("ses_1"), seq, 1, kind, datetime.now(UTC), made.text, made.digest)


@pytest.mark.behaviour("SES-156", "SES-157", "SES-160")
def test_the_records_of_a_kind_are_decoded_and_the_first_that_does_not_fails() -> None:
    usage = draft_of(StepUsage(run=0, step=1, model="m", usage={"input_tokens": 3}))
    good = replace(record("step.usage", {}), text=usage.text)
    ended = replace(record("turn.ended", {}, 2), text=draft_of(TurnEnded(reason="completed")).text)
    assert read_stored_data("step.usage", [good, ended]) == [
        StepUsage(run=0, step=1, model="m", usage={"input_tokens": 3})
    ]
    assert read_stored_data("turn.ended", [good, ended]) == [TurnEnded(reason="completed")]
    with pytest.raises(CorruptRecord) as caught:
        read_stored_data("step.usage", [good, record("step.usage", {"v": 1}, 7), record("step.usage", {}, 8)])
    assert (caught.value.fields["session"], caught.value.fields["seq"]) == ("ses_1", 7)
    assert isinstance(caught.value.__cause__, ValidationError)
    with pytest.raises(InvalidInput):
        read_stored_data("memory.message", [])


@pytest.mark.behaviour("SES-158", "SES-159")
def test_a_look_up_reads_keys_and_nothing_else_of_a_record() -> None:
    broken = {"user_message": {"text": 7, "attachments": "?"}, "command": 5}
    started = record("turn.started", {"v": 1, "run_id": "r", "key": "k", "entry": "r:0", **broken})
    prepared = record("request.prepared", {"run_id": "r", "run": 0, "step": 2, "system": None, "tools": 0})
    assert read_stored_keys(TurnStartedKeys, [prepared, started]) == [
        TurnStartedKeys(run_id="r", key="k", entry="r:0")
    ]
    assert read_stored_keys(RequestPreparedKeys, [prepared, started]) == [
        RequestPreparedKeys(run_id="r", run=0, step=2)
    ]
    with pytest.raises(CorruptRecord):
        read_stored_keys(TurnStartedKeys, [record("turn.started", {"key": "k"})])


class Note(BaseModel):
    text: str
    author: str | None = None
    tags: list[str] = []


@pytest.mark.behaviour("SES-07", "SES-08", "SES-18", "KIT-31")
def test_a_stored_object_is_what_a_store_gives_back() -> None:
    assert stored_json(Note(text="hello")) == {"text": "hello"}
    assert stored_json(Note(text="hello", author=None, tags=["a"])) == {"text": "hello", "tags": ["a"]}
    assert stored_json({"b": (1, 2), "a": 10**30, "n": None}) == {"b": [1, 2], "a": 10**30, "n": None}
    given = stored_json(Note(text="hello"))
    assert record("note.added", given).data == given
    for bad in ({"x": float("nan")}, {"x": object()}, {"x": "\x00"}, {1: "x"}):
        with pytest.raises(InvalidInput):
            stored_json(bad)  # type: ignore[arg-type] # a key that is no string is the point


@pytest.mark.behaviour("SES-66", "SES-67", "SES-79")
def test_the_stores_own_failures_are_one_class_and_a_broken_contract_is_none_of_them() -> None:
    busy, away, corrupt = StoreBusy("busy"), StoreUnavailable("away"), CorruptRecord("corrupt")
    for error in (busy, away, corrupt):
        assert isinstance(error, SessionLogError)
    assert [is_store_busy(error) for error in (busy, away, corrupt)] == [True, False, False]
    for other in (StoreDefect("x"), TurnClosed("x"), SessionContended("x"), ReservedKind("x"), Conflict("x")):
        assert not isinstance(other, SessionLogError)
    assert issubclass(StoreDefect, Broken)


@pytest.mark.behaviour("SES-80", "SES-81")
def test_a_turn_that_fails_with_an_error_of_its_writer_stores_that_ones_code() -> None:
    codes = [
        code_of(kind("x")) for kind in (TurnClosed, ReservedKind, SessionContended, StoreBusy, CorruptRecord)
    ]
    assert codes == ["turn.closed", "events.reserved", "session.contended", "store.busy", "session.decode"]
    carried = Defect("a subscriber died of it")
    carried.__cause__ = TurnClosed("closed", reason="cancelled")
    assert defects_as_failures(carried) is carried.__cause__
    assert is_turn_error(carried.__cause__) and not is_turn_error(LookupError())


@pytest.mark.behaviour("SES-43", "SES-44")
def test_each_run_has_a_random_id_of_its_own() -> None:
    first, second = UUID(new_run_id()), UUID(new_run_id())
    assert first != second and first.version == 4


@pytest.mark.behaviour("EVT-52")
def test_what_is_stored_of_a_call_holds_neither_its_input_nor_its_result() -> None:
    told = {"v", "run", "step", "invocation_id", "name"}
    assert set(ToolStarted.model_fields) == told
    assert set(ToolCompleted.model_fields) == told | {"status"}

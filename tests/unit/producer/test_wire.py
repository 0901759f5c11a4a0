"""The models of the wire: what they take, what they refuse, and what a client never sees."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from pydantic import ValidationError

from producer.wire import (
    META_MAX_BYTES,
    SessionRequest,
    TurnRequest,
    read_cursor,
    read_key,
    read_session_id,
    read_turn_id,
    session_answer,
    write_cursor,
)
from shared.domain.bounds import TEXT_MAX_BYTES
from shared.domain.errors import InputTooLarge, InvalidInput, SessionMissing, TurnMissing
from shared.domain.ids import OwnerId, SessionId
from shared.sessions.records import Head, OpenTurn

A_UUID = "018f2c6e-7d1a-7c3b-9e21-5a4b3c2d1e0f"


def turn(**fields: Any) -> TurnRequest:
    return TurnRequest.model_validate({"message": "hi"} | fields)


def head(**changes: Any) -> Head:
    now = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
    fields: dict[str, Any] = {
        "id": SessionId("ses_1"),
        "owner": OwnerId("o"),
        "parent": None,
        "inherited": None,
        "title": None,
        "meta": {},
        "state": {},
        "seq": 3,
        "revision": 1,
        "tail": b"",
        "turns": 1,
        "open": None,
        "inbox_waiting": 0,
        "created_at": now,
        "updated_at": now,
        "now": now,
    }
    return Head(**fields | changes)


@pytest.mark.parametrize("message", ["hello", {"text": "hello"}])
def test_a_message_is_text_or_an_object_with_text(message: Any) -> None:
    assert turn(message=message).message.text == "hello"


@pytest.mark.behaviour("API-13")
@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"resumes": "x"}, ("resumes",)),
        ({"resumes": 1}, ("resumes",)),
        ({"resumes": ""}, ("resumes",)),
        ({"resumes": ["x"]}, ("resumes",)),
        ({"resumes": "{5b1ba4ae-0000-4000-8000-000000000000}"}, ("resumes",)),
        ({"images": []}, ("images",)),
        ({"message": {"text": "x", "images": []}}, ("message", "images")),
        ({"message": ""}, ("message", "text")),
        ({"message": 1}, ("message",)),
        ({"message": {"text": 1}}, ("message", "text")),
        ({"message": ["hi"]}, ("message",)),
        ({"on_busy": "replace"}, ("on_busy",)),
        ({"priority": 1}, ("priority",)),
        ({"key": ""}, ("key",)),
        ({"key": " "}, ("key",)),
        ({"key": "x" * 257}, ("key",)),
        ({"key": "a\n"}, ("key",)),
        ({"key": "é"}, ("key",)),
        ({"agent": ""}, ("agent",)),
        ({"meta": []}, ("meta",)),
        ({"command": "x"}, ("command",)),
        ({"deadline": "2026-01-01T00:00:00"}, ("deadline",)),
        ({"deadline": 1}, ("deadline",)),
        ({"max_duration_s": 0}, ("max_duration_s",)),
        ({"max_duration_s": "5"}, ("max_duration_s",)),
        ({"max_duration_s": True}, ("max_duration_s",)),
        ({"Message": "x"}, ("Message",)),
    ],
)
def test_what_is_not_taken_is_refused_by_its_name(fields: dict[str, Any], place: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError) as refused:
        turn(**fields)
    assert [error["loc"][: len(place)] for error in refused.value.errors()] == [place]


def test_a_deadline_is_a_time_with_its_zone() -> None:
    assert turn(deadline="2026-01-01T00:00:00+02:00").deadline == datetime(2025, 12, 31, 22, tzinfo=UTC)


@pytest.mark.behaviour("API-13")
def test_text_meta_and_command_are_bounded_so_that_every_admitted_turn_can_be_recorded() -> None:
    turn(message="é" * (TEXT_MAX_BYTES // 2), meta={"a": "x" * (META_MAX_BYTES - 8)})
    for fields in (
        {"message": "é" * (TEXT_MAX_BYTES // 2) + "a"},
        {"meta": {"a": "x" * (META_MAX_BYTES - 7)}},
        {"command": {"a": "x" * META_MAX_BYTES}},
    ):
        with pytest.raises(InputTooLarge):
            turn(**fields)


@pytest.mark.parametrize("title", ["", "x" * 201, 1])
def test_a_title_has_bounds(title: Any) -> None:
    with pytest.raises(ValidationError):
        SessionRequest.model_validate({"title": title})


def test_one_key_may_come_in_header_and_body_two_may_not() -> None:
    assert read_key([], None) is None
    assert read_key(["k"], None) == read_key([], "k") == read_key(["k"], "k") == "k"
    for headers, key in ((["k"], "other"), (["k", "other"], None)):
        with pytest.raises(InvalidInput) as refused:
            read_key(headers, key)
        assert refused.value.field == "Idempotency-Key"


@pytest.mark.parametrize("header", ["", " ", "x" * 257, "é"])
def test_a_key_header_has_bounds(header: str) -> None:
    with pytest.raises(InvalidInput):
        read_key([header], None)


def test_a_cursor_comes_back_as_it_was_to_the_microsecond() -> None:
    one = head()
    assert read_cursor(write_cursor(one)) == (one.updated_at, one.id)
    assert read_cursor(None) is None


@pytest.mark.parametrize(
    "text", ["x", "e30=", "WyJhIiwiYiJd", "WzEsMl0=", "WyIyMDI2LTAxLTAxIiwiYSJd", "%00", "é"]
)
def test_a_cursor_of_someone_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        read_cursor(text)


@pytest.mark.behaviour("API-16")
@pytest.mark.parametrize("text", ["", " ", "a\x00b", "x" * 257, "é"])
def test_what_can_be_no_session_id_reads_as_missing(text: str) -> None:
    with pytest.raises(SessionMissing):
        read_session_id(text)


@pytest.mark.behaviour("API-16")
@pytest.mark.parametrize("text", ["", "x", f"{{{A_UUID}}}", f"urn:uuid:{A_UUID}", A_UUID.replace("-", "")])
def test_what_can_be_no_turn_id_reads_as_missing(text: str) -> None:
    with pytest.raises(TurnMissing):
        read_turn_id(text)


def test_a_session_shows_its_open_turn_and_never_the_fence() -> None:
    token = uuid4()
    answer = session_answer(
        head(open=OpenTurn(uuid4(), 7, token), updated_at=datetime.now(UTC) + timedelta(1))
    )
    assert answer.open is not None
    assert str(token) not in answer.model_dump_json()

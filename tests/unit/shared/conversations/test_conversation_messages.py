"""Native messages as values: what they are encoded to, that they cannot be changed, and what is no whole message."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from shared.conversations import ConversationMessage, FilePart, TextPart, ToolCallPart
from shared.conversations.messages import check_whole, decode_message
from shared.domain.errors import HistoryEncoding

CALL = ToolCallPart(call_id="c", name="t", arguments="{}")


def with_options(options: dict[str, Any]) -> ConversationMessage:
    return ConversationMessage(role="user", parts=(TextPart(text="x"),), options=options)


@pytest.mark.behaviour("THR-T10")
def test_a_message_is_encoded_to_one_text_that_is_read_back() -> None:
    one, other = with_options({"a": 1, "b": {"c": [1]}}), with_options({"b": {"c": [1]}, "a": 1})
    assert one.encoded == other.encoded
    assert decode_message(one.encoded) == one
    assert with_options({"a": 1.0}).encoded != with_options({"a": 1}).encoded
    assert ConversationMessage.user("é").encoded == (
        '{"parts":[{"kind":"text","text":"é"}],"role":"user","v":1}'.encode()
    )


def test_what_a_caller_keeps_of_options_does_not_change_the_message() -> None:
    options: dict[str, Any] = {"a": [1]}
    message = with_options(options)
    before = message.encoded
    options["a"].append(2)
    assert with_options({"a": [1]}).encoded == before == message.encoded
    with pytest.raises(TypeError):
        message.options["b"] = 1  # type: ignore[index]  # a frozen mapping
    with pytest.raises(ValidationError):
        message.role = "tool"  # type: ignore[misc]  # a frozen value


def test_a_copy_is_encoded_anew() -> None:
    message = ConversationMessage.user("x")
    assert b'"user"' in message.encoded
    assert b'"system"' in message.model_copy(update={"role": "system"}).encoded


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ([ConversationMessage(role="user", parts=(CALL,))], 5),
        ([ConversationMessage(role="system", parts=(FilePart(media_type="a/b", data=""),))], 5),
        ([ConversationMessage.user("x"), ConversationMessage.assistant("", [CALL, CALL])], 6),
        ([ConversationMessage.user("x"), ConversationMessage.assistant("", [CALL])], 6),
    ],
    ids=["a call of a user", "a file of the system", "one id twice", "an open batch"],
)
def test_what_is_no_whole_message_is_named_by_its_place(
    messages: list[ConversationMessage], place: int
) -> None:
    with pytest.raises(HistoryEncoding) as refused:
        check_whole(messages, after=5)
    assert refused.value.fields["field"] == f"messages/{place}"


def test_a_number_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(HistoryEncoding) as refused:
        _ = with_options({"a": float("nan")}).encoded
    assert refused.value.fields["field"] == "message/options/a"

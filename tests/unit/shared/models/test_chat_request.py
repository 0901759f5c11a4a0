"""Requests as bodies of Chat Completions calls."""

from __future__ import annotations

import pytest

from shared.models.chat_request import OutputLimitField, chat_request
from shared.models.types import (
    AssistantMessage,
    ModelRequest,
    SystemMessage,
    ToolCall,
    ToolDeclaration,
    ToolMessage,
    UserMessage,
)

CLOCK = ToolDeclaration("clock", "Tells the time.", {"type": "object", "properties": {}})


def test_a_conversation_keeps_its_order_and_its_calls_stay_with_their_results() -> None:
    call = ToolCall("call_1", "clock", '{"tz": "UTC"}')
    messages = (
        SystemMessage("Be kind."),
        UserMessage("Time?"),
        AssistantMessage("", (call,)),
        ToolMessage("call_1", "clock", "12:00"),
        AssistantMessage("Noon."),
    )
    body = chat_request(ModelRequest("m", messages), output_limit_field="max_tokens")
    assert body == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Time?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "clock", "arguments": '{"tz": "UTC"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "12:00"},
            {"role": "assistant", "content": "Noon."},
        ],
    }


def test_a_call_without_arguments_goes_back_as_an_empty_object() -> None:
    message = AssistantMessage("Looking.", (ToolCall("c", "clock", ""),))
    body = chat_request(ModelRequest("m", (message,)), output_limit_field="max_tokens")
    assert body["messages"][0]["content"] == "Looking."
    assert body["messages"][0]["tool_calls"][0]["function"]["arguments"] == "{}"


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_limits_go_out_under_the_name_the_server_knows(field: OutputLimitField) -> None:
    request = ModelRequest("m", (), temperature=0.0, max_output_tokens=9, cache_key="ses_1")
    body = chat_request(request, output_limit_field=field)
    assert (body["temperature"], body[field], body["prompt_cache_key"]) == (0.0, 9, "ses_1")


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("none", "none"),
        ("required", "required"),
        ("clock", {"type": "function", "function": {"name": "clock"}}),
    ],
)
def test_a_choice_of_tools_is_a_word_or_a_tool(choice: str, sent: object) -> None:
    body = chat_request(
        ModelRequest("m", (), tools=(CLOCK,), tool_choice=choice), output_limit_field="max_tokens"
    )
    assert body["tool_choice"] == sent
    assert body["tools"][0]["function"] == {
        "name": "clock",
        "description": "Tells the time.",
        "parameters": {"type": "object", "properties": {}},
    }


def test_a_choice_without_tools_is_not_sent() -> None:
    body = chat_request(ModelRequest("m", (), tool_choice="required"), output_limit_field="max_tokens")
    assert not body.keys() & {"tools", "tool_choice"}

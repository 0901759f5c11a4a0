"""What the offline model answers, by conversation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from producer.dev.offline.directive import Directive
from producer.dev.offline.requests import parse_chat_request
from producer.dev.offline.rules import Answer, Tools, answer_request, answer_text

TEXT_ARGUMENT = {
    "type": "object",
    "properties": {"expression": {"type": "string"}},
    "required": ["expression"],
}
TOOLS: Tools = {
    "current_time": {"type": "object", "properties": {"zone": {"type": "string"}}},
    "calculate": TEXT_ARGUMENT,
}


def say(text: str, *earlier: str, tools: Tools | None = None) -> Answer:
    return answer_text(text, earlier, TOOLS if tools is None else tools)


def answer_after(results: list[tuple[str, Mapping[str, Any], str]], **more: Any) -> Answer:
    """Answer a turn whose one step made these calls (name, arguments, result)."""
    calls = [
        {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for n, (name, arguments, _) in enumerate(results)
    ]
    told = [
        {"role": "tool", "tool_call_id": f"c{n}", "content": text} for n, (*_, text) in enumerate(results)
    ]
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "tool_calls": calls}, *told]
    body = {"model": "m", "messages": messages, **more}
    return answer_request(parse_chat_request(json.dumps(body).encode()), "go", Directive())


def test_a_name_is_remembered_from_the_latest_message_that_told_it() -> None:
    assert say("My name is Zoë.").text.startswith("Nice to meet you, Zoë!")
    assert say("What's my name?", "my name is Ada", "hm", "No, call me Grace!").text == "Your name is Grace."
    assert say("what is my name").text == "You have not told me your name yet."
    assert say("hello", "my name is Ada").text.startswith("Hello, Ada!")


@pytest.mark.parametrize("text", ["What time is it?", "what's the time", "Tell me what the time is"])
def test_the_time_is_asked_of_a_clock(text: str) -> None:
    (call,) = say(text).calls
    assert (call.name, call.arguments) == ("current_time", "{}")
    assert (
        say(text, tools={"calculate": TEXT_ARGUMENT}).text
        == "I cannot tell the time: I was given no clock tool."
    )


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("what is 12*7?", "12*7"),
        ("What's (1 + 2) x 3", "(1+2)*3"),
        ("Please calculate -3.5 \u00f7 2.", "-3.5/2"),
        ("2 ** 10 =", "2**10"),
        ("how much is 6 \u00d7 7", "6*7"),
    ],
)
def test_a_sum_is_given_to_a_calculator(text: str, expression: str) -> None:
    (call,) = say(text).calls
    assert (call.name, json.loads(call.arguments)) == ("calculate", {"expression": expression})
    assert say(text, tools={}).text == f"I cannot work out {expression}: I was given no calculator tool."


@pytest.mark.parametrize(
    "text", ["I was born on 2001-02-03", "call 555-1234", "what is 7?", "1 1 1 1 " * 100_000]
)
def test_numbers_alone_are_no_sum(text: str) -> None:
    assert say(text).calls == ()


def test_a_calculator_gets_its_text_even_when_its_schema_requires_none() -> None:
    (call,) = say("what is 1+1", tools={"calculator": {"properties": {"sum": {"type": "string"}}}}).calls
    assert json.loads(call.arguments) == {"sum": "1+1"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Good morning", "Hello!"),
        ("help", "current_time, calculate"),
        ("what can you do?", "OPENAI_API_KEY"),
        ("thanks!", "welcome"),
        ("The sky is green.", "“The sky is green.”"),
        ("", "offline model"),
    ],
)
def test_everything_else_gets_a_friendly_answer(text: str, words: str) -> None:
    assert words in say(text).text


def test_what_was_said_before_is_repeated() -> None:
    assert say("What did I say?", "one", "two").text == "You said: “two”."


@pytest.mark.parametrize(
    ("name", "result", "told"),
    [
        ("current_time", "12:00", "It is 12:00."),
        ("current_time", '{"time": "12:00"}', "It is 12:00."),
        ("calculate", "84", "12*7 is 84."),
        ("calculate", '{"result": 84}', "12*7 is 84."),
        ("weather", '{"sky": "blue", "wind": 3}', 'The tool weather answered: {"sky": "blue", "wind": 3}'),
        ("weather", "true", "The tool weather answered: true"),
        ("weather", '{"error": "no net", "code": 1}', "The tool weather could not do it: no net"),
    ],
)
def test_the_answer_is_made_from_a_tools_result(name: str, result: str, told: str) -> None:
    arguments = {"expression": "12*7"} if name == "calculate" else {}
    assert answer_after([(name, arguments, result)]) == Answer(told)


def test_results_of_calls_side_by_side_are_told_in_order() -> None:
    answer = answer_after([("current_time", {}, "12:00"), ("look", {}, "ok")])
    assert answer.text == "It is 12:00. The tool look answered: ok"


@pytest.mark.parametrize(
    ("choice", "name"),
    [("required", "look"), ({"type": "function", "function": {"name": "listen"}}, "listen"), ("none", None)],
)
def test_a_forced_choice_calls_that_tool_with_arguments_of_the_right_types(
    choice: object, name: str | None
) -> None:
    kinds = {"a": "integer", "b": "boolean", "c": "string", "d": "array", "e": "object", "f": "number"}
    properties = {key: {"type": kind} for key, kind in kinds.items()}
    schema = {"type": "object", "properties": properties, "required": list(kinds)}
    tools = [{"type": "function", "function": {"name": n, "parameters": schema}} for n in ("look", "listen")]
    messages = [{"role": "user", "content": "what time is it"}]
    body = {"model": "m", "messages": messages, "tools": tools, "tool_choice": choice}
    answer = answer_request(parse_chat_request(json.dumps(body).encode()), "now", Directive())
    assert [call.name for call in answer.calls] == ([] if name is None else [name])
    for call in answer.calls:
        assert json.loads(call.arguments) == {"a": 1, "b": True, "c": "now", "d": [], "e": {}, "f": 1.0}

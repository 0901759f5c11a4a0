"""The rules by which the offline model answers: the conversation in, an answer out. Pure and deterministic."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from producer.dev.offline.directive import Directive
from producer.dev.offline.facts import find_facts
from producer.dev.offline.filling import fill_schema
from producer.dev.offline.recollection import (
    Remembered,
    is_about_oneself,
    is_question,
    last_question,
    recalled_lines,
    recollect,
    said_lines,
    tell,
)
from producer.dev.offline.requests import ChatRequest, WireMessage, WireToolChoice

CLOCKS: Final = ("current_time", "clock", "get_time", "time", "now")
CALCULATORS: Final = ("calculate", "calculator", "compute")
RESULT_MAX_CHARS = 400
QUOTE_MAX_CHARS = 300

#: Rules look at the beginning of a message only; whoever writes more than that is not asking for the time.
RULE_MAX_CHARS = 2_000

_NAME_TOLD = re.compile(r"(?i:\bmy name is|\bcall me)\s+([^\W\d_][\w'\u2019-]*)")
_NAME_ASKED = re.compile(r"\bwhat(?:['\u2019]s| is) my name\b|\bwho am i\b", re.IGNORECASE)
_TIME_ASKED = re.compile(r"\bwhat(?:['\u2019]s| is)? (?:the )?time\b|\bhow late\b", re.IGNORECASE)
_ECHO_ASKED = re.compile(r"\bwhat did i (?:just )?(?:say|write|ask)\b", re.IGNORECASE)
_HELP_ASKED = re.compile(r"^\W*help\W*$|\bwhat can you do\b|\bwho are you\b|\bwhat are you\b", re.IGNORECASE)
_GREETING = re.compile(r"^\W*(?:hi|hello|hey|good (?:morning|afternoon|evening)|greetings)\b", re.IGNORECASE)
_THANKS = re.compile(r"^\W*(?:thanks|thank you|cheers)\b", re.IGNORECASE)
_NUMBER = r"\(*-?\d+(?:\.\d+)?\)*"
_SUM = re.compile(
    r"(?:\b(?:what(?:['\u2019]s| is)|how much is|calculate|compute|work out)\s+|^\s*)"
    rf"({_NUMBER}(?:\s*(?:\*\*|[-+*/x\u00d7\u00f7])\s*{_NUMBER})+)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class AnswerCall:
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Answer:
    text: str = ""
    calls: tuple[AnswerCall, ...] = ()


Tools = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Heard:
    """What a rule may use besides the text: the user's earlier messages, the tools, the lines that were recalled."""

    earlier: Sequence[str]
    tools: Tools
    recalled: Sequence[Remembered] = ()


def answer_request(request: ChatRequest, text: str, directive: Directive) -> Answer:
    """Return the answer to a request whose last user message says ``text`` besides its directive."""
    if directive.tool is not None and request.step <= directive.steps:
        call = AnswerCall(directive.tool, json.dumps(directive.args))
        return Answer(calls=(call,) * directive.calls)
    if directive.reply is not None:
        return Answer(directive.reply)
    if directive.tokens is not None:
        return Answer(" ".join(f"token{n}" for n in range(1, directive.tokens + 1)))
    if (schema := request.wanted_schema) is not None:
        return Answer(json.dumps(fill_schema(schema, text), ensure_ascii=False))
    results = request.messages[request.last_user + 1 :]
    if any(message.role == "tool" for message in results):
        return Answer(_report_results(results))
    tools = {tool.function.name: tool.function.parameters for tool in request.tools}
    if request.tool_choice == "none":
        tools = {}
    elif forced := _forced_tool(request, tools):
        return Answer(calls=(_call(forced, tools[forced], text),))
    earlier, recalled = _hear(request)
    return answer_text(text, earlier, tools, recalled)


def _hear(request: ChatRequest) -> tuple[list[str], list[Remembered]]:
    """Return what the user said before the last message, and the lines that stand there as recalled."""
    earlier: list[str] = []
    recalled: list[Remembered] = []
    for message in request.messages[: max(request.last_user, 0)]:
        if message.role == "user":
            lines = recalled_lines(message.text)
            if lines is None:
                earlier.append(message.text)
            else:
                recalled += lines
    return earlier, recalled


def answer_text(
    text: str, earlier: Sequence[str], tools: Tools, recalled: Sequence[Remembered] = ()
) -> Answer:
    """Return the answer to ``text`` after the user's ``earlier`` messages, with these tools and recalled lines."""
    head = text[:RULE_MAX_CHARS]
    heard = Heard(earlier, tools, recalled)
    rules = (
        _answer_name,
        _answer_time,
        _answer_sum,
        _answer_echo,
        _answer_help,
        _answer_question,
        _answer_told,
        _answer_manners,
    )
    for rule in rules:
        if (answer := rule(head, heard)) is not None:
            return answer
    return Answer(
        f"You said: “{_quote(text)}”. I am the offline model: I answer by simple rules, without a network."
        " Ask me what I can do."
    )


def _answer_name(text: str, heard: Heard) -> Answer | None:
    if _NAME_ASKED.search(text):
        told = _names_told(heard)
        if told:
            return Answer(f"Your name is {told[-1]}.")
        found = recollect("name", heard.recalled)
        return Answer(tell(found) if found is not None else "You have not told me your name yet.")
    if is_question(text):
        return None
    if names := _NAME_TOLD.findall(text):
        return Answer(f"Nice to meet you, {names[-1]}! I will remember that while we talk.")
    return None


def _names_told(heard: Heard) -> list[str]:
    return [name for said in heard.earlier for name in _NAME_TOLD.findall(said)]


def _answer_question(text: str, heard: Heard) -> Answer | None:
    """Answer from what was said or recalled; say that it is unknown where only that could have answered."""
    question = last_question(text)
    if question is None:
        return None
    found = recollect(question, said_lines(heard.earlier)) or recollect(question, heard.recalled)
    if found is not None:
        return Answer(tell(found))
    if not (heard.recalled or is_about_oneself(question)):
        return None
    return Answer("I do not know: you have not told me here, and nothing that I recalled says it.")


def _answer_told(text: str, heard: Heard) -> Answer | None:
    facts = find_facts(text)
    if not facts:
        return None
    told = (tell(Remembered(fact.statement)).removesuffix(".") for fact in facts)
    return Answer(f"Noted: {'; '.join(line[:1].lower() + line[1:] for line in told)}.")


def _answer_time(text: str, heard: Heard) -> Answer | None:
    if not _TIME_ASKED.search(text):
        return None
    if tool := _first_declared(CLOCKS, heard.tools):
        return Answer(calls=(_call(tool, heard.tools[tool], "UTC"),))
    return Answer("I cannot tell the time: I was given no clock tool.")


def _answer_sum(text: str, heard: Heard) -> Answer | None:
    found = _SUM.search(text)
    if found is None:
        return None
    expression = _plain_sum(found.group(1))
    if tool := _first_declared(CALCULATORS, heard.tools):
        return Answer(calls=(_call(tool, heard.tools[tool], expression),))
    return Answer(f"I cannot work out {expression}: I was given no calculator tool.")


def _answer_echo(text: str, heard: Heard) -> Answer | None:
    if not _ECHO_ASKED.search(text):
        return None
    return Answer(
        f"You said: “{_quote(heard.earlier[-1])}”."
        if heard.earlier
        else "This is the first thing you say to me."
    )


def _answer_help(text: str, heard: Heard) -> Answer | None:
    if not _HELP_ASKED.search(text):
        return None
    using = (
        f" I was given these tools: {', '.join(heard.tools)}." if heard.tools else " I was given no tools."
    )
    return Answer(
        "I am the offline model, here so that you can try everything without a key. I greet, I remember what"
        " you tell me (“my name is Ada”, “my favourite colour is teal”, “what is my favourite colour?”), I repeat what you said (“what did I say?”), and I use tools:"
        f" “what time is it?”, “what is 12*7?”.{using} Set OPENAI_API_KEY or OPENAI_BASE_URL to talk to a real model."
    )


def _answer_manners(text: str, heard: Heard) -> Answer | None:
    if _GREETING.search(text):
        known = _names_told(heard)
        return Answer(
            f"Hello{f', {known[-1]}' if known else ''}! I am the offline model. Ask me what I can do."
        )
    return Answer("You are welcome!") if _THANKS.search(text) else None


def _forced_tool(request: ChatRequest, tools: Tools) -> str | None:
    if isinstance(request.tool_choice, WireToolChoice):
        return request.tool_choice.function.name
    return next(iter(tools), None) if request.tool_choice == "required" else None


def _report_results(messages: Sequence[WireMessage]) -> str:
    calls = {call.id: call.function for message in messages for call in message.calls}
    last_step = max(n for n, message in enumerate(messages) if message.role == "assistant")
    reports = []
    for message in messages[last_step + 1 :]:
        function = calls[message.tool_call_id or ""]
        reports.append(_report(function.name, function.arguments, message.text))
    return " ".join(reports)


def _report(name: str, arguments: str, result: str) -> str:
    value, failed = _read_result(result)
    if failed:
        return f"The tool {name} could not do it: {value}"
    if name in CLOCKS:
        return f"It is {value}."
    if name in CALCULATORS:
        asked = _decoded(arguments)
        expression = (
            next((v for v in asked.values() if isinstance(v, str)), "") if isinstance(asked, dict) else ""
        )
        return f"{expression or 'The result'} is {value}."
    return f"The tool {name} answered: {value}"


def _read_result(text: str) -> tuple[str, bool]:
    """Return the words of a tool's result, whatever envelope it wears, and whether it says that the tool failed."""
    value, failed = _decoded(text), False
    if isinstance(value, dict):
        failed = bool(value.get("error"))
        value = value["error"] if failed else next(iter(value.values())) if len(value) == 1 else None
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        value = text
    return str(value)[:RESULT_MAX_CHARS], failed


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _first_declared(names: Sequence[str], tools: Tools) -> str | None:
    return next((name for name in names if name in tools), None)


def _call(name: str, schema: Mapping[str, Any], value: str) -> AnswerCall:
    """Return a call whose required parameters are filled by type; the first that is a text gets ``value``.

    A calculator's text is filled even when its schema requires nothing: without it the call would say nothing.
    """
    properties = schema.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    required = [key for key in schema.get("required") or () if key in properties]
    if name in CALCULATORS and not required:
        required = list(properties)[:1]
    samples: dict[str, Callable[[], Any]] = {
        "integer": lambda: 1,
        "number": lambda: 1.0,
        "boolean": lambda: True,
        "array": list,
        "object": dict,
    }
    arguments = {}
    for key in required:
        kind = properties[key].get("type") if isinstance(properties[key], dict) else None
        arguments[key] = samples[kind]() if isinstance(kind, str) and kind in samples else value
    return AnswerCall(name, json.dumps(arguments))


def _plain_sum(text: str) -> str:
    return "".join(text.lower().replace("x", "*").replace("\u00d7", "*").replace("\u00f7", "/").split())


def _quote(text: str) -> str:
    return text if len(text) <= QUOTE_MAX_CHARS else f"{text[:QUOTE_MAX_CHARS]}…"

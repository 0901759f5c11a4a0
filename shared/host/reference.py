"""The reference page of the log's vocabulary, rendered from the code: kinds, payloads, who writes them, begin codes.

``docs/reference/records.md`` is this page; a test says when it is out of date, and how to write it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from shared.host.endings import TURN_BEGIN_CODES
from shared.sessions.vocabulary import (
    CLIENT_KINDS,
    JOURNAL_KINDS,
    MEMORY_KINDS,
    RESERVED_KINDS,
    journal_schema_of,
)
from shared.sessions.vocabulary_whole import WHOLE_TURN_KINDS

#: Who writes each kind of the framework's (SES-139, SES-145 to 153). A kind without a schema has no writer yet.
WRITERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "turn.started": "whoever opens the turn: a worker that opens an admitted one, `Sessions.begin`",
        "turn.reply": "memory, with the reply",
        "turn.ended": "the writer's end, its scope, a cancel or a reap",
        "request.prepared": "the turn, before each model call",
        "step.response": "the step loop, before the first handler of a step runs",
        "run.ended": "the step loop, when a run ends before its turn does",
        **dict.fromkeys(
            (
                "memory.system",
                "memory.section",
                "memory.step",
                "memory.message",
                "memory.tool-result",
                "memory.digest",
                "memory.skills",
                "memory.compaction",
            ),
            "memory",
        ),
        **dict.fromkeys(
            (
                "step.started",
                "step.ended",
                "step.usage",
                "tool.started",
                "tool.refused",
                "tool.completed",
                "completion.evaluated",
                "context.built",
                "decision.recorded",
                "stream.fallback",
            ),
            "the turn's events",
        ),
        **dict.fromkeys(WHOLE_TURN_KINDS, "a persistent history, all three at the end of a whole turn"),
        "inbox.queued": "a delivery",
        "inbox.dropped": "a claim of inbox items that failed too often",
        **dict.fromkeys(("task.started", "task.cancelled", "task.result"), "background tasks"),
    }
)

#: What of a payload may hold a user's, a model's or a tool's words: it never leaves by a stream unless that says so.
SENSITIVE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "turn.started": "`user_message`, `command`, `meta`",
        "turn.reply": "`text`",
        "turn.ended": "`failure`",
        "request.prepared": "`system`, `tools`",
        "step.response": "`text`, `calls`",
        "memory.message": "`text`, `calls`",
        "memory.section": "its text",
        "memory.tool-result": "`text`",
        "inbox.queued": "`content`",
        "task.started": "`instructions`",
        "task.result": "`text`",
        "history.user-input": "`instructions`, `message`",
        "history.model-completed": "`tools`, `messages`",
        "history.turn-completed": "`output`, `context`",
    }
)


def render_reference() -> str:
    """Return the page, as Markdown."""
    return "\n".join([*_head(), *_kinds(), *_payloads(), *_reserved(), *_begin_codes()]) + "\n"


def _head() -> Iterator[str]:
    yield "# Records of a session's log"
    yield ""
    yield "<!-- Rendered from the code by shared/host/reference.py: change that, then write this page again. -->"
    yield ""
    yield "A record is `{session, seq, turn, kind, at, data}`. Its kind says what `data` holds: a JSON object with its"
    yield "version in `v`. Fields that are not set are not stored. Kinds that are not listed here are the host's."
    yield ""


def _kinds() -> Iterator[str]:
    yield "## Kinds of the framework"
    yield ""
    yield "| kind | written by | sensitive | shown to clients | rebuilds memory |"
    yield "|---|---|---|---|---|"
    for kind in sorted(JOURNAL_KINDS):
        written = WRITERS[kind] if journal_schema_of(kind) is not None else f"{WRITERS[kind]} (not yet)"
        shown, remembered = (("yes" if kind in kinds else "") for kinds in (CLIENT_KINDS, MEMORY_KINDS))
        yield f"| `{kind}` | {written} | {SENSITIVE.get(kind, '')} | {shown} | {remembered} |"
    yield ""


def _payloads() -> Iterator[str]:
    yield "## Payloads"
    yield ""
    for kind in sorted(JOURNAL_KINDS):
        schema = journal_schema_of(kind)
        if schema is None:
            continue
        yield f"### `{kind}`"
        yield ""
        yield "| field | type | required |"
        yield "|---|---|---|"
        shape = schema.model_json_schema()
        required = set(shape.get("required", ()))
        for name, field in shape["properties"].items():
            yield f"| `{name}` | {_type_of(field)} | {'yes' if name in required else ''} |"
        yield ""


def _type_of(field: Mapping[str, Any]) -> str:
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "$ref" in field:
        return str(field["$ref"]).rsplit("/", 1)[-1]
    if "anyOf" in field:
        return " or ".join(_type_of(one) for one in field["anyOf"] if one.get("type") != "null")
    if field.get("type") == "array":
        return f"list of {_type_of(field['items'])}"
    return str(field.get("type", "any"))


def _reserved() -> Iterator[str]:
    yield "## Reserved kinds"
    yield ""
    yield "A host's record may take none of these (`events.reserved`); a call that tries stores nothing of its records."
    yield ""
    yield ", ".join(f"`{kind}`" for kind in sorted(RESERVED_KINDS)) + "."
    yield ""


def _begin_codes() -> Iterator[str]:
    yield "## Codes that refuse a begin"
    yield ""
    yield "| code | HTTP status that suits it |"
    yield "|---|---|"
    for code, status in sorted(TURN_BEGIN_CODES.items()):
        yield f"| `{code}` | {status} |"

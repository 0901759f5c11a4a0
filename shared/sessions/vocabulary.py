"""What each record kind of the framework holds (SES-139 to 160). Payloads are permanent: they are digested.

A payload carries its version in ``v``; a reader of a newer version still reads the older ones. Unset optional fields
are not stored. A host may write any kind that is not reserved.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shared.domain.bounds import check_json
from shared.domain.canonical import canonical_json
from shared.domain.errors import CorruptRecord, InvalidInput, ReservedKind
from shared.sessions.payloads import Payload as Payload
from shared.sessions.records import Draft, Record, draft
from shared.sessions.vocabulary_around import SCHEMAS_AROUND, InboxDropped, InboxQueued
from shared.sessions.vocabulary_whole import SCHEMAS_WHOLE

EndReason = Literal["completed", "partial", "failed", "cancelled", "interrupted"]
Origin = Literal["user", "inbox", "task"]


class UserMessage(BaseModel):
    """A user's message: text, attachments (media references), or both (TRN-18, 19)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    text: str
    attachments: list[dict[str, Any]] | None = None


class TurnStarted(Payload):
    """``turn.started``: written once, when the turn opens (SES-144). ``entry`` is the message's memory entry.

    ``history`` says that the turn is kept whole: without a ``turn.reply`` nothing of it is remembered (THR-58).
    """

    turn_id: str
    run_id: str
    entry: str
    origin: Origin
    key: str | None = None
    user_message: UserMessage
    command: dict[str, Any] | None = None
    claimed: list[str] = Field(default_factory=list)
    meta: dict[str, Any] | None = None
    resumes: int | None = None
    history: Literal["whole-turn"] | None = None


class TurnReply(Payload):
    """``turn.reply``: the outcome and the reply's text.

    ``step`` is the step whose message holds the text, if one does, ``run`` its run; a run that is not told is run 0.
    """

    outcome: Literal["completed", "partial", "failed"]
    text: str | None = None
    exhausted: Literal["tokens", "steps", "tool-calls"] | None = None
    reason: str | None = None
    run: int | None = None
    step: int | None = None


class TurnEnded(Payload):
    """``turn.ended``: the closing record, exactly one a turn (SES-146 to 148)."""

    reason: EndReason
    code: str | None = None
    failure: str | None = None


class ToolDeclared(BaseModel):
    """A tool as the model was shown it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    name: str
    description: str
    parameters: dict[str, Any]


class RequestPrepared(Payload):
    """``request.prepared``: the self-contained header, saved before the model is called (REQ-01 to 14).

    ``through`` is the last memory entry the prompt folded; ``recipe`` names how entries were rendered.
    """

    run_id: str
    run: int
    step: int
    system: str
    tools: list[ToolDeclared]
    tool_choice: str
    model: dict[str, Any]
    cache_key: str | None = None
    call_policy: dict[str, Any]
    recipe: dict[str, Any]
    through: str


class StoredCall(BaseModel):
    """One call of a stored response: the ledger's identity of it (BEY-01)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    invocation_id: str
    call_id: str
    name: str
    arguments: str
    argument_digest: str
    token: str


class StepResponse(Payload):
    """``step.response``: the whole model response with calls, saved before the first handler runs (core 7)."""

    run_id: str
    run: int
    step: int
    text: str
    calls: list[StoredCall]
    finish_reason: str
    model: str
    usage: dict[str, int]
    replaced_characters: bool | None = None


class StepStarted(Payload):
    """``step.started``: a step begins."""

    run: int
    step: int


class StepEnded(Payload):
    """``step.ended``: a step settled."""

    run: int
    step: int
    status: Literal["completed", "failed", "cancelled", "malformed"]


class StepUsage(Payload):
    """``step.usage``: what one model call used."""

    run: int
    step: int
    model: str
    usage: dict[str, int]


class RunEnded(Payload):
    """``run.ended``: a run of the step loop ended, before the turn's body goes on.

    ``reason`` says why a partial run stopped; of a failed one it is the error's code, beside its message. A run's text is
    its last step's message.
    """

    run_id: str
    run: int
    step: int
    outcome: Literal["completed", "partial", "failed"]
    reason: str
    failure: str | None = None


class ToolStarted(Payload):
    """``tool.started``: a handler is about to run. Holds no input (FOL-12)."""

    run: int
    step: int
    invocation_id: str
    name: str


class ToolCompleted(Payload):
    """``tool.completed``: a call settled. Holds neither input nor result (FOL-12)."""

    run: int
    step: int
    invocation_id: str
    name: str
    status: Literal["ok", "error", "unknown", "refused"]


class MemoryMessage(Payload):
    """``memory.message``: an assistant message, stored with its step's results (RSM-27)."""

    entry: str
    run_id: str
    run: int
    step: int
    text: str
    calls: list[StoredCall] = Field(default_factory=list)
    replaced_characters: bool | None = None


class MemoryToolResult(Payload):
    """``memory.tool-result``: the result the model reads for one call."""

    entry: str
    run_id: str
    run: int
    step: int
    call_id: str
    invocation_id: str
    name: str
    status: Literal["ok", "error", "unknown", "refused"]
    text: str
    replaced_characters: bool | None = None


class MemorySection(Payload):
    """``memory.section``: context that the host recorded for the model to read, at its place in the conversation."""

    entry: str
    run_id: str
    text: str


SCHEMAS: Final[dict[str, type[Payload]]] = {
    "turn.started": TurnStarted,
    "turn.reply": TurnReply,
    "turn.ended": TurnEnded,
    "request.prepared": RequestPrepared,
    "step.response": StepResponse,
    "step.started": StepStarted,
    "step.ended": StepEnded,
    "step.usage": StepUsage,
    "run.ended": RunEnded,
    "tool.started": ToolStarted,
    "tool.completed": ToolCompleted,
    "memory.section": MemorySection,
    "memory.message": MemoryMessage,
    "memory.tool-result": MemoryToolResult,
    **SCHEMAS_AROUND,
    **SCHEMAS_WHOLE,
}
_KIND_OF: Final = {schema: kind for kind, schema in SCHEMAS.items()}


class TurnStartedKeys(BaseModel):
    """What a look-up by key reads of a ``turn.started``: never its message or images (SES-158, 159)."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, hide_input_in_errors=True)

    run_id: str
    key: str | None = None
    entry: str


class RequestPreparedKeys(BaseModel):
    """What a look-up reads of a ``request.prepared``: never its text or tools (SES-158)."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, hide_input_in_errors=True)

    run_id: str
    run: int
    step: int


#: The kinds that readers outside memory decode whole, and the keys of those that are looked up (SES-156, 158).
STORED_DATA: Final[Mapping[str, type[Payload]]] = {
    "turn.started": TurnStarted,
    "turn.ended": TurnEnded,
    "inbox.queued": InboxQueued,
    "inbox.dropped": InboxDropped,
    "step.usage": StepUsage,
    "request.prepared": RequestPrepared,
}
_KEYS: Final[Mapping[type[BaseModel], str]] = {
    TurnStartedKeys: "turn.started",
    RequestPreparedKeys: "request.prepared",
}

#: Kinds that memory, and so a prompt, is rebuilt from.
MEMORY_KINDS: Final = (
    "turn.started",
    "memory.section",
    "memory.message",
    "memory.tool-result",
    "turn.reply",
)

JOURNAL_KINDS: Final = frozenset(SCHEMAS) | {
    "memory.system",
    "memory.step",
    "memory.digest",
    "memory.skills",
    "memory.compaction",
    "tool.refused",
    "completion.evaluated",
    "context.built",
    "decision.recorded",
    "stream.fallback",
    "inbox.queued",
    "inbox.dropped",
    "task.started",
    "task.cancelled",
    "task.result",
}
#: Kinds no host record may take: the journal's and every bus event's name (SES-142).
RESERVED_KINDS: Final = JOURNAL_KINDS | {
    "assistant.message",
    "assistant.delta",
    "tool.progress",
    "skills.activated",
    "host",
}

#: Kinds a client stream may show; prompts, tool input and output and ledger records stay on the server (FOL-09 to 12).
CLIENT_KINDS: Final = frozenset(
    {
        "turn.started",
        "step.started",
        "step.ended",
        "step.usage",
        "tool.started",
        "tool.completed",
        "tool.refused",
        "turn.reply",
        "turn.ended",
        "inbox.queued",
        "inbox.dropped",
        "task.started",
        "task.cancelled",
        "task.result",
    }
)


def draft_of(payload: Payload) -> Draft:
    """Return the draft of a framework payload; fields left unset or None by default are not stored (SES-08)."""
    return draft(
        _KIND_OF[type(payload)], payload.model_dump(mode="json", exclude_none=True) | {"v": payload.v}
    )


P = TypeVar("P", bound=Payload)


def read_stored(schema: type[P], record: Record) -> P:
    """Decode a record with its kind's schema. Raises ``CorruptRecord`` naming session and seq (SES-155 to 160)."""
    if _KIND_OF[schema] != record.kind:
        raise CorruptRecord(
            "a record is of another kind", session=record.session_id, seq=record.seq, kind=record.kind
        )
    return _decoded(schema, record)


def journal_schema_of(kind: str) -> type[Payload] | None:
    """Return the schema of a framework kind; None for one that nothing writes yet (SES-140).

    Raises ``InvalidInput`` for a kind that is a host's, or a bus event's that is never stored.
    """
    if kind not in JOURNAL_KINDS:
        raise InvalidInput(f"{kind} is no kind of the framework's", field="kind", bound="a journal kind")
    return SCHEMAS.get(kind)


def stored_json(value: Mapping[str, Any] | BaseModel) -> dict[str, Any]:
    """Return the JSON object that a store gives back for this one (SES-07, 08).

    A model's fields that are not set, or None, are left out. Raises ``InvalidInput`` for what JSON cannot hold.
    """
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    check_json(value, field="data")
    stored: dict[str, Any] = json.loads(canonical_json(value))
    return stored


def read_stored_data(kind: str, records: Iterable[Record]) -> list[Payload]:
    """Decode the records of one kind of ``STORED_DATA``, whatever lies between them; fails with the first that does not.

    Raises ``CorruptRecord`` naming session and seq, and ``InvalidInput`` for a kind that is not read so.
    """
    if kind not in STORED_DATA:
        raise InvalidInput(f"{kind} is not read whole", field="kind", bound=", ".join(sorted(STORED_DATA)))
    return [read_stored(STORED_DATA[kind], record) for record in records if record.kind == kind]


K = TypeVar("K", TurnStartedKeys, RequestPreparedKeys)


def read_stored_keys(schema: type[K], records: Iterable[Record]) -> list[K]:
    """Decode what a look-up needs of the records of its kind, and nothing else of them (SES-158, 159)."""
    return [_decoded(schema, record) for record in records if record.kind == _KEYS[schema]]


def refuse_reserved(kinds: list[str]) -> None:
    """Raise ``ReservedKind`` if any of ``kinds`` is the framework's (SES-59, SES-63)."""
    for kind in kinds:
        if kind in RESERVED_KINDS:
            raise ReservedKind(f"records of kind {kind} are written by the framework only", kind=kind)


D = TypeVar("D", bound=BaseModel)


def _decoded(schema: type[D], record: Record) -> D:
    try:
        return schema.model_validate(record.data)
    except ValidationError as error:
        raise CorruptRecord(
            "a record does not decode", session=record.session_id, seq=record.seq, kind=record.kind
        ) from error

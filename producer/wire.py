"""What goes over the wire: strict models of requests, and of answers. A field known nowhere is refused (law 8)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal
from uuid import UUID

import orjson
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
)
from pydantic_core import PydanticCustomError

from shared.domain.bounds import ID_MAX_CHARS, TEXT_MAX_BYTES, check_identity, check_text
from shared.domain.canonical import canonical_json
from shared.domain.errors import InputTooLarge, InvalidInput, SessionMissing, TurnMissing
from shared.domain.ids import SessionId, TurnId
from shared.sessions.log import LIST_MAX_SESSIONS
from shared.sessions.records import Head
from shared.sessions.vocabulary import CLIENT_KINDS
from shared.turns.queue import FINISHED, PRIORITIES, Cancelled, Receipt, TurnView

TITLE_MAX_CHARS: Final = 200
META_MAX_BYTES: Final = 64 * 1024
COMMAND_MAX_BYTES: Final = 64 * 1024
DURATION_MAX_S: Final = 86_400.0
WAIT_MAX_S: Final = 60.0
CURSOR_MAX_CHARS: Final = 1_024
SEQ_MAX: Final = 2**63 - 1

IDENTITY_PATTERN: Final = r"^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$"

_KIND: Final = "|".join(kind.replace(".", r"\.") for kind in sorted(CLIENT_KINDS))

Priority = Literal["interactive", "normal", "background"]
PRIORITY_NAMES: Final[Mapping[int, str]] = {number: name for name, number in PRIORITIES.items()}


def _text_or_object(value: Any) -> Any:
    return {"text": value} if isinstance(value, str) else value


def _whole_number(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _written_time(value: Any) -> Any:
    if not isinstance(value, str):
        raise PydanticCustomError("time_text", "must be a time as RFC 3339 text")
    return value


def _written_uuid(value: Any) -> Any:
    try:
        turn_id = UUID(value)
    except (ValueError, TypeError, AttributeError) as error:
        raise PydanticCustomError("turn_id", "must be a turn's id") from error
    if str(turn_id) != value.lower():
        raise PydanticCustomError("turn_id", "must be a turn's id")
    return turn_id


def _bounded_json(name: str, max_bytes: int) -> AfterValidator:
    def check(value: dict[str, Any]) -> dict[str, Any]:
        if len(canonical_json(value).encode()) > max_bytes:
            bound = f"<= {max_bytes} bytes"
            raise InputTooLarge(f"{name} is larger than {max_bytes} bytes", field=f"/{name}", bound=bound)
        return value

    return AfterValidator(check)


def _message_text(value: str) -> str:
    return check_text(value, field="/message/text", max_bytes=TEXT_MAX_BYTES)


Seq = Annotated[int, Field(ge=1, le=SEQ_MAX)]
#: As JSON Schema has integers: 3.0 is one.
WholeSeq = Annotated[Seq, BeforeValidator(_whole_number, json_schema_input_type=Seq)]
Identity = Annotated[str, StringConstraints(min_length=1, max_length=ID_MAX_CHARS, pattern=IDENTITY_PATTERN)]
Meta = Annotated[dict[str, Any], _bounded_json("meta", META_MAX_BYTES)]


class Request(BaseModel):
    """A request body: exact in names and types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Answer(BaseModel):
    """A response body."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NoBody(Request):
    """A body where none is needed: absent or ``{}``."""


class SessionRequest(Request):
    """A session to create."""

    title: Annotated[str, StringConstraints(min_length=1, max_length=TITLE_MAX_CHARS)] | None = None
    meta: Meta | None = None


NonEmpty = Annotated[str, StringConstraints(min_length=1)]


class MessageText(Request):
    """A message of text; images come with an issue of their own."""

    text: Annotated[NonEmpty, AfterValidator(_message_text)]


class TurnRequest(Request):
    """A turn to admit."""

    message: Annotated[
        MessageText, BeforeValidator(_text_or_object, json_schema_input_type=NonEmpty | MessageText)
    ]
    key: Identity | None = Field(None, description="As the Idempotency-Key header.")
    agent: Identity | None = Field(None, description="An agent of the app; the first one by default.")
    command: Annotated[dict[str, Any], _bounded_json("command", COMMAND_MAX_BYTES)] | None = None
    meta: Meta | None = None
    resumes: Annotated[UUID, BeforeValidator(_written_uuid)] | None = Field(
        None,
        description="The session's last turn of a user, cancelled or interrupted: this one continues it.",
    )
    on_busy: Literal["reject", "enqueue", "interrupt"] = Field(
        "enqueue",
        description="Beside an unfinished turn of the session: 409, wait behind it, or end it and all that wait.",
    )
    priority: Priority = "normal"
    deadline: Annotated[AwareDatetime, Field(strict=False), BeforeValidator(_written_time)] | None = Field(
        None, description="A turn that has not opened by then ends `expired`."
    )
    max_duration_s: Annotated[float, Field(gt=0, le=DURATION_MAX_S, allow_inf_nan=False)] | None = Field(
        None, description="Seconds from its first opening, over all attempts; at most the agent's own."
    )


class AdmitQuery(Request):
    """How an admission is answered."""

    stream: Annotated[bool, Field(strict=False)] = Field(False, description="Answer with the turn's events.")


class SessionsQuery(Request):
    """A page of sessions."""

    limit: Annotated[int, Field(strict=False, ge=1, le=LIST_MAX_SESSIONS)] = 50
    cursor: Annotated[str, StringConstraints(min_length=1, max_length=CURSOR_MAX_CHARS)] | None = Field(
        None, description="`next` of the page before."
    )


class WaitQuery(Request):
    """How long to wait."""

    timeout: Annotated[float, Field(strict=False, ge=0, le=WAIT_MAX_S, allow_inf_nan=False)] = Field(
        30.0, description="Seconds."
    )


class EventsQuery(Request):
    """From where to follow, and what."""

    after: Annotated[int, Field(strict=False, ge=0, le=SEQ_MAX)] | None = Field(
        None, description="Follow the records after this one; `Last-Event-ID` wins over it."
    )
    kinds: Annotated[str, StringConstraints(min_length=1, max_length=1_024)] | None = Field(
        None,
        description="Only these kinds, separated by commas.",
        json_schema_extra={"pattern": f"^ *({_KIND})( *, *({_KIND}))* *$"},
    )


class TurnLinks(Answer):
    """Where a turn can be looked at, followed and cancelled."""

    turn: str
    events: str
    cancel: str


class AdmissionAnswer(Answer):
    """The receipt of an admission. ``after`` is the cursor from which the turn's records can be followed."""

    turn_id: UUID
    run_id: str
    session_id: str
    position: int
    status: str
    finished: bool
    after: int
    duplicate: bool
    links: TurnLinks


class OpenTurnAnswer(Answer):
    """The turn that is open in the log."""

    turn_id: UUID


class SessionAnswer(Answer):
    """A session's head."""

    session_id: str
    title: str | None
    meta: dict[str, Any]
    parent: str | None
    turns: int = Field(description="Turns that opened so far.")
    seq: int = Field(description="The last record; the cursor to follow what comes next.")
    open: OpenTurnAnswer | None
    inbox_waiting: int
    created_at: datetime
    updated_at: datetime


class SessionCreatedAnswer(Answer):
    """The session that was created, or the one that its key had made before."""

    session_id: str
    duplicate: bool


class SessionsAnswer(Answer):
    """A page of sessions, last active first."""

    sessions: list[SessionAnswer]
    next: str | None = Field(description="`cursor` of the next page; null on the last.")


class TurnAnswer(Answer):
    """The state of a turn. ``attempt`` is how often a worker claimed it."""

    turn_id: UUID
    run_id: str
    session_id: str
    position: int
    number: int | None
    origin: str
    status: str
    finished: bool
    open: bool
    recovering: bool
    outcome: str | None
    code: str | None
    agent: str
    agent_revision: str
    priority: str
    attempt: int
    usage: dict[str, int]
    key: str | None
    resumes: UUID | None = Field(description="The turn that this one continues.")
    admitted_at: datetime
    opened_at: datetime | None
    ended_at: datetime | None
    deadline: datetime | None
    links: TurnLinks


class CancelAnswer(Answer):
    """Whether a cancel took effect, why not otherwise, and how the turn stands after it."""

    cancelled: bool
    reason: str
    status: str
    outcome: str | None
    code: str | None


def read_session_id(text: str) -> SessionId:
    """Return a session id of a path; what can be none raises ``SessionMissing`` like an unknown one."""
    try:
        return SessionId(check_identity(text, field="session_id"))
    except InvalidInput as error:
        raise SessionMissing("no such session") from error


def read_turn_id(text: str) -> TurnId:
    """Return a turn id of a path; what can be none raises ``TurnMissing`` like an unknown one."""
    try:
        turn_id = UUID(text)
    except ValueError as error:
        raise TurnMissing("no such turn") from error
    if str(turn_id) != text.lower():
        raise TurnMissing("no such turn")
    return TurnId(turn_id)


def read_key(headers: list[str], key: str | None) -> str | None:
    """Return the one idempotency key of a request; raise ``InvalidInput`` for two that differ or one out of bounds."""
    for header in headers:
        check_identity(header, field="Idempotency-Key")
    given = {*headers, *([] if key is None else [key])}
    if len(given) > 1:
        raise InvalidInput(
            "the Idempotency-Key header and the key of the body differ",
            field="Idempotency-Key",
            bound="one key",
        )
    return next(iter(given), None)


def write_cursor(head: Head) -> str:
    """Return the opaque cursor that stands behind this session of a page."""
    return base64.urlsafe_b64encode(orjson.dumps([head.updated_at.isoformat(), head.id])).decode()


def read_cursor(text: str | None) -> tuple[datetime, SessionId] | None:
    """Return what a cursor holds; raise ``InvalidInput`` for one that we did not write."""
    if text is None:
        return None
    try:
        at, last = orjson.loads(base64.b64decode(text, altchars=b"-_", validate=True))
        active_at = datetime.fromisoformat(at)
        if active_at.tzinfo is None:
            raise ValueError("no time zone")
        return active_at, SessionId(check_identity(last, field="cursor"))
    except (binascii.Error, ValueError, TypeError, InvalidInput) as error:
        raise InvalidInput("the cursor is none of ours", field="cursor", bound="`next` of a page") from error


def links_of(turn_id: UUID) -> TurnLinks:
    """Return a turn's links: paths on this server."""
    path = f"/v1/turns/{turn_id}"
    return TurnLinks(turn=path, events=f"{path}/events", cancel=f"{path}/cancel")


def admission_answer(receipt: Receipt) -> AdmissionAnswer:
    """Return a receipt as it goes over the wire."""
    return AdmissionAnswer(
        turn_id=receipt.turn_id,
        run_id=receipt.run_id,
        session_id=receipt.session_id,
        position=receipt.position,
        status=receipt.status,
        finished=receipt.status in FINISHED,
        after=receipt.after,
        duplicate=receipt.duplicate,
        links=links_of(receipt.turn_id),
    )


def session_answer(head: Head) -> SessionAnswer:
    """Return a head as it goes over the wire; the fence stays here."""
    return SessionAnswer(
        session_id=head.id,
        title=head.title,
        meta=dict(head.meta),
        parent=head.parent,
        turns=head.turns,
        seq=head.seq,
        open=None if head.open is None else OpenTurnAnswer(turn_id=head.open.turn_id),
        inbox_waiting=head.inbox_waiting,
        created_at=head.created_at,
        updated_at=head.updated_at,
    )


def turn_answer(view: TurnView) -> TurnAnswer:
    """Return a turn as it goes over the wire; the stored failure text stays here, its code goes."""
    return TurnAnswer(
        turn_id=view.turn_id,
        run_id=view.run_id,
        session_id=view.session_id,
        position=view.position,
        number=view.number,
        origin=view.origin,
        status=view.status,
        finished=view.status in FINISHED,
        open=view.is_open,
        recovering=view.recovering,
        outcome=view.outcome,
        code=view.code,
        agent=view.agent,
        agent_revision=view.agent_revision,
        priority=PRIORITY_NAMES[view.priority],
        attempt=view.epoch,
        usage=dict(view.usage),
        key=view.key,
        resumes=view.resumes,
        admitted_at=view.admitted_at,
        opened_at=view.opened_at,
        ended_at=view.ended_at,
        deadline=view.deadline,
        links=links_of(view.turn_id),
    )


def cancel_answer(done: Cancelled) -> CancelAnswer:
    """Return what a cancel did."""
    return CancelAnswer(
        cancelled=done.took_effect,
        reason=done.reason,
        status=done.status,
        outcome=done.outcome,
        code=done.code,
    )

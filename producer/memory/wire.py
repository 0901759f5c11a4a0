"""What goes over the wire about memory. No answer holds a namespace, an authority or an owner (NSP-42, 43).

Times of memory values are epoch milliseconds, as they are stored and as a model reads them.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import AfterValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError

from memory_pipeline.activity.port import ActivityView
from memory_pipeline.index.port import IndexProgress
from memory_pipeline.recall.values import OutcomeStatus, Recalled
from memory_pipeline.remembering.intents import Outcome, parse_record_id
from memory_pipeline.remembering.port import Admitted, IntentView, Status
from memory_pipeline.store.documents import Attribution, Document, Passage
from memory_pipeline.store.port import PAGE_MAX
from producer.wire import CURSOR_MAX_CHARS, Answer, Identity, Request, WholeSeq
from shared.domain.bounds import TEXT_MAX_BYTES, check_identity, check_text
from shared.domain.errors import IntentMissing, InvalidInput, MemoryMissing
from shared.sessions.records import Head

QUERY_MAX_BYTES: Final = 8_192
REASON_MAX_CHARS: Final = 4_096
SCOPES_MAX: Final = 128
WITHDRAWN_BY_OWNER: Final = "withdrawn by its owner"


def _query(value: str) -> str:
    return check_text(value, field="/query", max_bytes=QUERY_MAX_BYTES)


def _text(value: str) -> str:
    return check_text(value, field="/text", max_bytes=TEXT_MAX_BYTES)


def _distinct(value: list[str]) -> list[str]:
    if len(set(value)) != len(value):
        raise PydanticCustomError("distinct", "must not name one twice")
    return value


class RecallRequest(Request):
    """What to look for."""

    query: Annotated[str, StringConstraints(min_length=1), AfterValidator(_query)] = Field(
        description=f"At most {QUERY_MAX_BYTES} bytes of UTF-8."
    )


class DocumentsQuery(Request):
    """A page of documents."""

    limit: Annotated[int, Field(strict=False, ge=1, le=PAGE_MAX)] = 50
    cursor: Annotated[str, StringConstraints(min_length=1, max_length=CURSOR_MAX_CHARS)] | None = Field(
        None, description="`next` of the page before."
    )


class DocumentQuery(Request):
    """How much of a document is read."""

    history: Annotated[bool, Field(strict=False)] = Field(False, description="Answer its generations.")
    limit: Annotated[int, Field(strict=False, ge=1, le=PAGE_MAX)] = Field(50, description="Of generations.")


class CorrectionRequest(Request):
    """A document as its owner wants it to be: one statement a line."""

    text: Annotated[str, StringConstraints(min_length=1), AfterValidator(_text)]
    expected_revision: Identity | None = Field(description="The revision that is replaced; null creates.")
    operation_id: Identity = Field(description="Send the same again when no answer came.")
    scopes: Annotated[list[Identity], Field(max_length=SCOPES_MAX), AfterValidator(_distinct)] | None = Field(
        None, description="Who may recall it; by default as before, or as the app has it."
    )


class WithdrawalQuery(Request):
    """A withdrawal, which is final."""

    expected_revision: Identity = Field(description="The revision that is withdrawn.")
    operation_id: Identity = Field(description="Send the same again when no answer came.")
    reason: Annotated[str, StringConstraints(min_length=1, max_length=REASON_MAX_CHARS)] = WITHDRAWN_BY_OWNER


class IntentRequest(Request):
    """A statement of the caller's that is to be remembered: a `turn.started` record of a session."""

    session_id: Identity
    seq: WholeSeq


class ProgressQuery(Request):
    """Whose progress, beside that of the indexes."""

    session_id: Identity | None = Field(None, description="Show the processors of this session.")


class SourceAnswer(Answer):
    """The document that a passage is from."""

    id: str
    locator: str
    revision: str | None


class PassageAnswer(Answer):
    """A piece of a document. ``citation`` is what the recalled text calls it."""

    citation: str
    source: SourceAnswer
    passage_id: str
    text: str
    attributions: list[Attribution]
    metadata: dict[str, Any]
    recorded_at: int
    extracted_at: int | None


class OutcomeAnswer(Answer):
    """What happened at one source of the recall."""

    id: str
    status: OutcomeStatus
    reason: str | None
    selected: int
    deduplicated: int
    omitted: int


class RecallAnswer(Answer):
    """What a turn would be shown for this query; ``text`` is empty when nothing was found."""

    text: str
    passages: list[PassageAnswer]
    outcomes: list[OutcomeAnswer]


class DocumentAnswer(Answer):
    """A document at one revision; withdrawn, it has a reason and no text."""

    id: str
    revision: str
    generation: int
    text: str | None
    attributions: list[Attribution]
    scopes: list[str]
    withdrawn: bool
    reason: str | None
    modified_at: int = Field(description="Epoch milliseconds, by the store's clock.")


class DocumentsAnswer(Answer):
    """A page of documents, by id; withdrawn ones included."""

    documents: list[DocumentAnswer]
    next: str | None = Field(description="`cursor` of the next page; null on the last.")


class GenerationsAnswer(Answer):
    """The generations of a document, newest first."""

    generations: list[DocumentAnswer]


class AdmittedAnswer(Answer):
    """The receipt of an intent: accepted for processing, not saved yet."""

    intent_id: str
    status: Literal["queued", "duplicate"]


class IntentSourceAnswer(Answer):
    """The record that is to be remembered."""

    session_id: str
    seq: int


class IntentAnswer(Answer):
    """How far an intent is. ``why`` and ``last_failure`` are stable codes: why it stopped, why its last try failed."""

    intent_id: str
    status: Status
    outcome: Outcome | None
    why: str | None
    attempts: int
    last_failure: str | None
    source: IntentSourceAnswer | None
    document_id: str
    created_at: datetime
    updated_at: datetime
    completed_at: datetime | None


class ProcessorAnswer(Answer):
    """How far a processor is in the session. ``pending`` is the record whose saved output is not applied yet."""

    processor: str
    version: str
    through_seq: int
    pending: int | None
    advanced_at: datetime | None
    status: str
    attempts: int
    last_failure: str | None


class IndexAnswer(Answer):
    """How many of the caller's documents are found by meaning, and how many are still to be read (again)."""

    profile: str
    active: bool
    ready: int
    owed: int
    parked: int
    withdrawn: int


class ProgressAnswer(Answer):
    """How far the background is. ``seq`` is the session's last record, which ``through_seq`` moves towards."""

    session_id: str | None
    seq: int | None
    processors: list[ProcessorAnswer]
    indexes: list[IndexAnswer]


def read_document_id(text: str) -> str:
    """Return a document id of a path; what can be none raises ``MemoryMissing`` like an unknown one."""
    try:
        return check_identity(text, field="document_id")
    except InvalidInput as error:
        raise MemoryMissing("there is no such document") from error


def read_intent_id(text: str) -> str:
    """Return an intent id of a path; what can be none raises ``IntentMissing`` like an unknown one."""
    try:
        return check_identity(text, field="intent_id")
    except InvalidInput as error:
        raise IntentMissing("no such intent") from error


def write_documents_cursor(document: Document) -> str:
    """Return the opaque cursor that stands behind this document of a page."""
    return base64.urlsafe_b64encode(orjson.dumps([document.key.id])).decode()


def read_documents_cursor(text: str | None) -> str | None:
    """Return what a cursor holds; raise ``InvalidInput`` for one that we did not write."""
    if text is None:
        return None
    try:
        [last] = orjson.loads(base64.b64decode(text, altchars=b"-_", validate=True))
        if not isinstance(last, str):
            raise TypeError("no id")
        return check_text(last, field="cursor")
    except (binascii.Error, ValueError, TypeError, InvalidInput) as error:
        raise InvalidInput("the cursor is none of ours", field="cursor", bound="`next` of a page") from error


def recall_answer(recalled: Recalled) -> RecallAnswer:
    """Return a recall as it goes over the wire; private authorities stay here."""
    return RecallAnswer(
        text=recalled.text,
        passages=[_passage_answer(n, passage) for n, passage in enumerate(recalled.passages, start=1)],
        outcomes=[
            OutcomeAnswer(
                id=one.id,
                status=one.status,
                reason=one.reason,
                selected=one.selected,
                deduplicated=one.deduplicated,
                omitted=one.omitted,
            )
            for one in recalled.outcomes
        ],
    )


def _passage_answer(number: int, passage: Passage) -> PassageAnswer:
    content = passage.content
    source = passage.source
    return PassageAnswer(
        citation=f"memory:{number}",
        source=SourceAnswer(id=source.id, locator=source.locator, revision=source.revision),
        passage_id=passage.passage_id,
        text=content.text,
        attributions=list(content.attributions),
        metadata=content.metadata,
        recorded_at=content.recorded_at,
        extracted_at=content.extracted_at,
    )


def document_answer(document: Document) -> DocumentAnswer:
    """Return a document as it goes over the wire."""
    content = document.content
    return DocumentAnswer(
        id=document.key.id,
        revision=str(document.generation),
        generation=document.generation,
        text=None if content is None else content.text,
        attributions=[] if content is None else list(content.attributions),
        scopes=list(document.scopes),
        withdrawn=document.withdrawn,
        reason=document.reason,
        modified_at=document.modified_at,
    )


def documents_answer(documents: Sequence[Document], *, limit: int) -> DocumentsAnswer:
    """Return a page as it goes over the wire; a full one says where the next begins."""
    is_full = len(documents) == limit
    return DocumentsAnswer(
        documents=[document_answer(one) for one in documents],
        next=write_documents_cursor(documents[-1]) if is_full else None,
    )


def admitted_answer(admitted: Admitted) -> AdmittedAnswer:
    """Return the receipt of an intent; the job's id stays here."""
    return AdmittedAnswer(intent_id=admitted.intent_id, status=admitted.status)


def intent_answer(view: IntentView) -> IntentAnswer:
    """Return how far an intent is as it goes over the wire."""
    place = parse_record_id(view.intent.source.key.id)
    return IntentAnswer(
        intent_id=view.intent.id,
        status=view.status,
        outcome=view.outcome,
        why=view.why,
        attempts=view.attempts,
        last_failure=view.last_failure,
        source=None if place is None else IntentSourceAnswer(session_id=place[0], seq=place[1]),
        document_id=view.intent.target.id,
        created_at=view.created_at,
        updated_at=view.updated_at,
        completed_at=view.completed_at,
    )


def progress_answer(
    head: Head | None, processors: Sequence[ActivityView], indexes: Sequence[IndexProgress]
) -> ProgressAnswer:
    """Return how far the background is as it goes over the wire."""
    return ProgressAnswer(
        session_id=None if head is None else head.id,
        seq=None if head is None else head.seq,
        processors=[_processor_answer(view) for view in processors],
        indexes=[
            IndexAnswer(
                profile=one.profile,
                active=one.active,
                ready=one.ready,
                owed=one.owed,
                parked=one.parked,
                withdrawn=one.withdrawn,
            )
            for one in indexes
        ],
    )


def _processor_answer(view: ActivityView) -> ProcessorAnswer:
    return ProcessorAnswer(
        processor=view.key.processor,
        version=view.key.version,
        through_seq=view.through_seq,
        pending=view.pending_seq,
        advanced_at=view.advanced_at,
        status=view.status,
        attempts=view.attempts,
        last_failure=view.last_failure,
    )

"""Values of remembering: the source, the intent, the proposal with its evidence, the progress; one stored encoding each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeVar

from pydantic import Field, StringConstraints, ValidationError

from memory_pipeline.store.documents import (
    Document,
    Identity,
    Locator,
    MemoryKey,
    Milliseconds,
    Put,
    SourceReference,
    Value,
    encode,
)
from shared.domain.canonical import digest_of
from shared.domain.errors import MemoryCorrupt
from shared.domain.ids import OwnerId, SessionId

FACTS_MAX: Final = 16
SUBJECT_MAX_CHARS: Final = 64
STATEMENT_MAX_CHARS: Final = 1_024
QUOTE_MAX_CHARS: Final = 65_536
PROPOSAL_MAX_BYTES: Final = 1_048_576
SUBJECT_PATTERN: Final = r"^[a-z0-9]+(-[a-z0-9]+)*$"

_RECORD_ID: Final = re.compile(r"(?P<session>.+):(?P<seq>[1-9][0-9]{0,15})", re.DOTALL)

ShortIdentity = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Counter = Annotated[int, Field(ge=0, le=2**53 - 1)]
Subject = Annotated[str, StringConstraints(pattern=SUBJECT_PATTERN, max_length=SUBJECT_MAX_CHARS)]
Statement = Annotated[str, StringConstraints(min_length=1, max_length=STATEMENT_MAX_CHARS)]
Quote = Annotated[str, StringConstraints(min_length=1, max_length=QUOTE_MAX_CHARS)]

Outcome = Literal["applied", "no-change", "rejected", "suppressed"]


class Position(Value):
    """Where a source stands in the order of its authority. Two positions compare only inside one generation (REM-47, 48)."""

    authority_generation: ShortIdentity
    sequence: Counter


class Source(Value):
    """A canonical source at one revision; revisions are opaque and have no order (REM-49)."""

    key: MemoryKey
    locator: Locator
    revision: Identity
    position: Position

    def reference(self) -> SourceReference:
        """Return the source as evidence names it."""
        return SourceReference(id=self.key.id, locator=self.locator, revision=self.revision)


class Intent(Value):
    """That one source is to be remembered in one target. Settled by the host; the model chooses none of it (REM-35)."""

    version: Literal[1] = 1
    id: ShortIdentity
    invocation_id: ShortIdentity
    source: Source
    target: MemoryKey


class ProposedFact(Value):
    """One extracted statement and its evidence: a half-open UTF-8 byte range of the source, and the bytes' text."""

    subject: Subject
    statement: Statement
    start_byte: Counter
    end_byte: Counter
    quote: Quote


class Proposal(Value):
    """What was extracted from one source; saved before the target is read (REM-21). Times are epoch milliseconds."""

    version: Literal[1] = 1
    source: SourceReference
    facts: Annotated[tuple[ProposedFact, ...], Field(min_length=1, max_length=FACTS_MAX)]
    recorded_at: Milliseconds
    extracted_at: Milliseconds


@dataclass(frozen=True, slots=True)
class Pending:
    """Nothing is saved yet."""


@dataclass(frozen=True, slots=True)
class Proposed:
    """The proposal is saved. ``attempt`` counts the commands that were made of it so far."""

    proposal: Proposal
    attempt: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """The exact command is saved: from here on its outcome is unknown until the writer says it (REM-22, 23)."""

    proposal: Proposal
    attempt: int
    command: Put


@dataclass(frozen=True, slots=True)
class Completed:
    """Done. ``why`` is a code, never text of a source; ``applied`` is the document as this intent wrote or found it."""

    outcome: Outcome
    why: str | None = None
    proposal: Proposal | None = None
    attempt: int = 0
    applied: Document | None = None


Progress = Pending | Proposed | Prepared | Completed


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An intent and how far it is; ``version`` grows with every saved step and fences the next one."""

    job_id: str
    owner: OwnerId
    intent: Intent
    version: int
    progress: Progress


V = TypeVar("V", bound=Value)


def decode_value(kind: type[V], text: str) -> V:
    """Read a stored value; raise ``MemoryCorrupt`` for one that does not decode or is not canonical."""
    try:
        value = kind.model_validate_json(text)
    except ValidationError:
        # Raised without its cause, which repeats the text.
        value = None
    if value is None or encode(value) != text:
        raise MemoryCorrupt("a stored memory value does not decode or is not canonical", kind=kind.__name__)
    return value


def operation_id(intent: Intent, attempt: int) -> str:
    """Return the operation id of an intent's command; a new one appears only with a new attempt (REM-24)."""
    return f"remembering/{intent.id}/remember/{attempt}"


def record_id(session_id: str, seq: int) -> str:
    """Return the source id of a session's record."""
    return f"{session_id}:{seq}"


def parse_record_id(text: str) -> tuple[SessionId, int] | None:
    """Return session and seq of a record's source id, or None for another source."""
    found = _RECORD_ID.fullmatch(text)
    return (SessionId(found["session"]), int(found["seq"])) if found is not None else None


def statement_intent_id(source: Source, target: MemoryKey) -> str:
    """Return the id of an intent that an owner asks for: the same statement and target are one intent."""
    return digest_of(
        ["turnkeeper/remember@1", source.key.namespace, source.key.id, target.namespace, target.id]
    )


def check_checkpoint(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint whose parts belong together, else raise ``MemoryCorrupt``."""
    intent, progress = checkpoint.intent, checkpoint.progress
    proposal = None if isinstance(progress, Pending) else progress.proposal
    if proposal is not None and proposal.source != intent.source.reference():
        raise MemoryCorrupt("a saved proposal is of another source", intent=intent.id)
    if isinstance(progress, Prepared) and (
        progress.command.key != intent.target
        or progress.command.operation_id != operation_id(intent, progress.attempt)
    ):
        raise MemoryCorrupt("a saved command is not the intent's", intent=intent.id)
    if (
        isinstance(progress, Completed)
        and progress.applied is not None
        and progress.applied.key != intent.target
    ):
        raise MemoryCorrupt("a saved document is not the intent's target", intent=intent.id)
    return checkpoint

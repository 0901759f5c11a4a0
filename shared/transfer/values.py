"""What a transfer says of a session: the captured head, counts, obligations, and the facts beside the log."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Final, Literal
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from shared.domain.bounds import ID_MAX_CHARS
from shared.sessions.log import READ_MAX_RECORDS

#: The format that this code writes, and the only one that it reads (THR-107).
FORMAT: Final = 1
#: A page of an export or import ends at either; one record or fact larger than that is a page of its own (THR-103).
PAGE_MAX_RECORDS: Final = READ_MAX_RECORDS
PAGE_MAX_BYTES: Final = 4 * 1024 * 1024
#: A line holds one record or fact. The text of a record is at most 4 MiB and may double when it is quoted.
LINE_MAX_BYTES: Final = 40 * 1024 * 1024

Section = Literal["turns", "keys", "calls"]
SECTIONS: Final[tuple[Section, ...]] = ("turns", "keys", "calls")


def _aware(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError("must have a time zone")
    return value


Moment = Annotated[datetime, AfterValidator(_aware)]
Count = Annotated[int, Field(ge=0, le=2**62)]
Hex = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Id = Annotated[str, Field(min_length=1, max_length=ID_MAX_CHARS)]


class Fact(BaseModel):
    """Base of what a line holds: frozen and exact."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Counts(Fact):
    """How many of each there are at the captured moment."""

    records: Count
    turns: Count
    keys: Count
    calls: Count


class Obligations(Fact):
    """What the session owed, or was owed, at the captured moment. All zero: it may stand alone (THR-107).

    ``inherited`` counts the records that it reads from its parent's log.
    """

    unfinished_turns: Count = 0
    waiting_items: Count = 0
    unfinished_tasks: Count = 0
    owed_deliveries: Count = 0
    inherited: Count = 0

    @property
    def open(self) -> Mapping[str, int]:
        """Those that are not zero."""
        return {name: count for name, count in self.model_dump().items() if count}


class SessionFact(Fact):
    """A head as it was captured. ``meta`` and ``state`` are canonical JSON text; ``retained``: it keeps whole turns."""

    id: Id
    owner: Id
    parent: str | None
    create_key: str | None
    create_print: str | None
    title: str | None
    meta: str
    state: str
    revision: Count
    next_position: Count
    next_number: Count
    retained: bool = False
    created_at: Moment
    updated_at: Moment
    active_at: Moment


class Snapshot(Fact):
    """One session at one moment, of the store's clock: everything of an export is as of it."""

    session: SessionFact
    seq: Count
    tail: Hex
    at: Moment
    counts: Counts
    obligations: Obligations


class TurnFact(Fact):
    """A finished turn's row, without lease, fence and losses. JSON of the host is text, as stored."""

    id: UUID
    position: Count
    number: int | None
    pool: str
    origin: Literal["user", "inbox", "task"]
    status: Literal["ended", "cancelled", "refused", "expired"]
    outcome: str | None
    code: str | None
    key: str | None
    fingerprint: str
    message: str | None
    command: str | None
    meta: str | None
    resumes: UUID | None
    run_id: str
    agent: str
    agent_revision: str
    on_worker_loss: str
    history: str
    priority: int
    due_at: Moment
    deadline: Moment | None
    admitted_at: Moment
    opened_at: Moment | None
    admitted_seq: Count
    started_seq: int | None
    opened_seq: int | None
    result_seq: int | None
    ended_at: Moment
    max_duration_s: float | None
    last_failure: str | None
    usage: str | None


class KeyFact(Fact):
    """What a key answers: an admission's, a run's, a delivery's, a task's, a commit's."""

    space: str
    key: str
    fingerprint: str
    answer: str
    created_at: Moment


class CallFact(Fact):
    """A row of the tool ledger."""

    turn_id: UUID
    invocation_id: str
    step: Count
    ordinal: Count
    name: str
    argument_digest: str
    token: str
    state: Literal["planned", "started", "done", "failed", "unknown"]
    result: str | None
    result_seq: int | None
    started_at: Moment | None
    settled_at: Moment | None


AnyFact = TurnFact | KeyFact | CallFact
FACTS: Final[Mapping[Section, type[TurnFact] | type[KeyFact] | type[CallFact]]] = {
    "turns": TurnFact,
    "keys": KeyFact,
    "calls": CallFact,
}


def place_of(fact: AnyFact) -> tuple[str | int, ...]:
    """Return where a fact stands in its section; a section is strictly ascending."""
    match fact:
        case TurnFact():
            return (fact.position,)
        case KeyFact():
            return (fact.space, fact.key)
        case CallFact():
            return (str(fact.turn_id), fact.invocation_id)

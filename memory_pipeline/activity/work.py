"""Values of the activity pass: processors, the work that is pinned for one record, and the work's identity."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints

from memory_pipeline.remembering.sources import TurnOutcome
from memory_pipeline.store.documents import Value, encode
from shared.domain.bounds import check_json
from shared.domain.canonical import digest_of
from shared.domain.errors import InputTooLarge, InvalidInput
from shared.domain.ids import OwnerId
from shared.sessions.records import Record

#: Bytes of the canonical JSON of pinned work (ACT-47).
PENDING_MAX_BYTES: Final = 16_777_216

Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

#: ``take`` the record; ``skip`` it: nobody's input; ``wait``: not before more is committed, and nothing behind it either.
Verdict = Literal["take", "skip", "wait"]


@dataclass(frozen=True, slots=True)
class ProcessorKey:
    """A processor and its version; another version has its own progress (ACT-21)."""

    processor: str
    version: str


class PreparedActivity(Value):
    """What was extracted from one record. Pinned before it is applied; once pinned it wins over extracting again (ACT-19)."""

    version: Literal[1] = 1
    processor: str
    processor_version: str
    session_id: str
    seq: Annotated[int, Field(ge=1)]
    work_id: Digest
    record_digest: Digest
    output: Any


@dataclass(frozen=True, slots=True)
class CommittedActivity:
    """A record that a processor takes: whose it is, how its turn stands in the captured log (None: outside a turn)."""

    owner: OwnerId
    record: Record
    outcome: TurnOutcome | None
    work_id: str


@dataclass(frozen=True, slots=True)
class ActivityProcessor:
    """What the host does with committed records.

    A record that ``selects`` says no to is skipped; how its turn stands is looked up for the others only, which ``judge``
    then decides on. Both are pure; a record of a turn that has ended is judged the same for ever. ``extract`` returns JSON. ``apply`` may be called again with the same saved output, and has made the
    work id durable at its destination before it returns (ACT-23, 24).
    """

    key: ProcessorKey
    selects: Callable[[Record], bool]
    judge: Callable[[Record, TurnOutcome | None], Verdict]
    extract: Callable[[CommittedActivity], Awaitable[Any]]
    apply: Callable[[OwnerId, PreparedActivity], Awaitable[None]]


def work_id(key: ProcessorKey, session_id: str, seq: int) -> str:
    """Return the identity of one record's work: no worker and no clock enters it (ACT-16)."""
    return digest_of(["turnkeeper/activity@1", key.processor, key.version, session_id, seq])


def encode_pending(prepared: PreparedActivity) -> str:
    """Return pinned work as it is stored. Raises ``InvalidInput`` for what JSON cannot hold, ``InputTooLarge`` (ACT-47)."""
    check_json(prepared.output, field="output")
    text = encode(prepared)
    size = len(text.encode())
    if size > PENDING_MAX_BYTES:
        raise InputTooLarge(
            f"pinned work of {size} bytes is larger than {PENDING_MAX_BYTES}",
            field="output",
            bound=f"<= {PENDING_MAX_BYTES} bytes",
        )
    return text


@dataclass(frozen=True, slots=True)
class PassLimits:
    """Bounds of one pass: records the cursor may move over (1 to 4,096), records a page (1 to 128). Its time is the pool's.

    Raises ``InvalidInput`` that names the field.
    """

    max_records: int = 128
    page_size: int = 16

    def __post_init__(self) -> None:
        for name, high in (("max_records", 4_096), ("page_size", 128)):
            if not 1 <= getattr(self, name) <= high:
                raise InvalidInput(f"{name} must be 1..{high}", field=name, bound=f"1..{high}")


@dataclass(frozen=True, slots=True)
class PassResult:
    """Watermarks of one session after a pass (ACT-50, 51).

    ``processed`` counts the records the cursor moved over, ``applied`` those of them that were somebody's input;
    ``remaining`` is ``captured_tail`` - ``through_seq``. ``waiting`` says that the next record waits for its turn's end.
    """

    captured_tail: int
    through_seq: int
    processed: int
    applied: int
    remaining: int
    waiting: bool

"""The shipped processor: every user statement of a turn that ended well becomes a remembering intent. It asks no model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from memory_pipeline.activity.work import (
    ActivityProcessor,
    CommittedActivity,
    PreparedActivity,
    ProcessorKey,
    Verdict,
)
from memory_pipeline.remembering.intents import Intent, decode_value
from memory_pipeline.remembering.port import RememberingStore
from memory_pipeline.remembering.sources import (
    REMEMBERED_ENDS,
    TurnOutcome,
    read_statement,
    source_of,
)
from memory_pipeline.remembering.target import current_profile_key
from memory_pipeline.store.documents import NamespaceAddress
from memory_pipeline.store.port import MemoryReader
from shared.domain.canonical import canonical_json
from shared.domain.errors import MemoryCorrupt
from shared.domain.ids import OwnerId
from shared.sessions.records import Record

PROCESSOR_ID: Final = "user-statements"


def is_statement(record: Record) -> bool:
    """Whether a record holds a user's own words."""
    return read_statement(record) is not None


def judge_statement(record: Record, outcome: TurnOutcome | None) -> Verdict:
    """Take a statement whose turn completed, wholly or in part; wait for the end of an open turn; skip the rest."""
    if outcome == "open":
        return "wait"
    return "take" if outcome in REMEMBERED_ENDS else "skip"


def user_statements(
    *,
    key: ProcessorKey,
    store: RememberingStore,
    reader: MemoryReader,
    namespace_of: Callable[[OwnerId], NamespaceAddress],
) -> ActivityProcessor:
    """Return the processor that admits one intent a statement, whose id is the work id.

    The saved output is the whole intent, target included, so that an apply repeated after the target was withdrawn admits
    the very same one. Apply raises ``IntentsFull``: the session's cursor stays, and nothing is lost (REM-12).
    """

    async def extract(activity: CommittedActivity) -> Any:
        statement = read_statement(activity.record)
        if statement is None:  # judged to be one just now
            raise MemoryCorrupt("a taken record is no statement", seq=activity.record.seq)
        namespace = namespace_of(activity.owner)
        intent = Intent(
            id=activity.work_id,
            invocation_id=statement.turn_id,
            source=source_of(activity.record, namespace),
            target=await current_profile_key(reader, namespace),
        )
        return intent.model_dump(mode="json")

    async def apply(owner: OwnerId, prepared: PreparedActivity) -> None:
        intent = decode_value(Intent, canonical_json(prepared.output))
        namespace = namespace_of(owner)
        if (intent.id, intent.source.key.namespace, intent.target.namespace) != (
            prepared.work_id,
            namespace,
            namespace,
        ):
            raise MemoryCorrupt("pinned work is not an intent of this owner", seq=prepared.seq)
        await store.admit(intent, owner)

    return ActivityProcessor(key, is_statement, judge_statement, extract, apply)

"""The owner's own request that a statement be remembered: checked against the log, then admitted as an intent."""

from __future__ import annotations

from memory_pipeline.remembering.intents import Intent, statement_intent_id
from memory_pipeline.remembering.port import Admitted, RememberingStore
from memory_pipeline.remembering.sources import (
    REMEMBERED_ENDS,
    owned_record,
    read_statement,
    source_of,
    turn_outcome,
)
from memory_pipeline.remembering.target import current_profile_key
from memory_pipeline.store.documents import NamespaceAddress
from memory_pipeline.store.port import MemoryReader
from shared.domain.errors import ProcessingRefused
from shared.domain.ids import OwnerId, SessionId
from shared.sessions.log import SessionLog


async def remember_statement(
    *,
    store: RememberingStore,
    log: SessionLog,
    reader: MemoryReader,
    owner: OwnerId,
    namespace: NamespaceAddress,
    session_id: SessionId,
    seq: int,
) -> Admitted:
    """Admit an intent for one committed statement of the owner; asking again answers ``duplicate``.

    ``namespace`` is the owner's, settled by the host. Raises ``SessionMissing`` for a session that is not the owner's;
    ``ProcessingRefused`` with reason ``no-statement`` for a seq that holds no user statement, or ``turn-unended`` for one
    whose turn is open, failed, or was cancelled or interrupted; ``IntentsFull`` at capacity. Nothing is stored then, and no
    success is claimed (REM-14). No model is asked.
    """
    record = await owned_record(log, owner, session_id, seq) if seq >= 1 else None
    if record is None:
        # Says so itself for a session that is not the owner's.
        await log.head(session_id, owner)
    statement = read_statement(record) if record is not None else None
    if record is None or statement is None or record.turn is None:
        raise ProcessingRefused(
            "there is no user statement", reason="no-statement", session=session_id, seq=seq
        )
    outcome = await turn_outcome(log, session_id, record.turn, after=seq)
    if outcome not in REMEMBERED_ENDS:
        raise ProcessingRefused(
            "the statement's turn did not end with a reply",
            reason="turn-unended",
            session=session_id,
            seq=seq,
        )
    source = source_of(record, namespace)
    target = await current_profile_key(reader, namespace)
    intent = Intent(
        id=statement_intent_id(source, target),
        invocation_id=statement.turn_id,
        source=source,
        target=target,
    )
    return await store.admit(intent, owner)

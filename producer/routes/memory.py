"""Memory: recall, an owner's documents, statements to remember, and how far the background is (API-09 to 11)."""

from __future__ import annotations

import logging
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query, Response

from memory_pipeline.index.port import IndexProgress
from memory_pipeline.recall.compose import recall
from memory_pipeline.recall.sources import limits_of, sources_of
from memory_pipeline.remembering.admission import remember_statement
from memory_pipeline.store.documents import Withdraw
from producer.doors import SECURITY, OwnedRoute, Owner, Parts, problem_responses
from producer.memory.correcting import api_operation, correct_document
from producer.memory.parts import MemoryParts
from producer.memory.wire import (
    AdmittedAnswer,
    CorrectionRequest,
    DocumentAnswer,
    DocumentQuery,
    DocumentsAnswer,
    DocumentsQuery,
    GenerationsAnswer,
    IntentAnswer,
    IntentRequest,
    ProgressAnswer,
    ProgressQuery,
    RecallAnswer,
    RecallRequest,
    WithdrawalQuery,
    admitted_answer,
    document_answer,
    documents_answer,
    intent_answer,
    progress_answer,
    read_document_id,
    read_documents_cursor,
    read_intent_id,
    recall_answer,
)
from producer.wire import read_session_id
from shared.domain.errors import IndexUnavailable, MemoryMissing, MemoryOff
from shared.domain.ids import OwnerId
from shared.wakes.names import INDEX, REMEMBER

_log: Final = logging.getLogger(__name__)

# 404 `memory.off` wherever the app remembers nothing.
router: Final = APIRouter(
    prefix="/v1/memory",
    tags=["memory"],
    route_class=OwnedRoute,
    dependencies=list(SECURITY),
    responses=problem_responses(404),
)


async def memory_of(parts: Parts) -> MemoryParts:
    """Return the memory parts; raises ``MemoryOff`` where the app remembers nothing."""
    if parts.memory is None:
        raise MemoryOff("the app remembers nothing")
    return parts.memory


Memory = Annotated[MemoryParts, Depends(memory_of)]


@router.post("/recall")
async def recall_memory(memory: Memory, owner: Owner, body: RecallRequest) -> RecallAnswer:
    """Recall what a turn with this text would be shown: passages with provenance, and what happened at each source."""
    recalled = await recall(sources_of(memory.recalled, owner, body.query), limits_of(memory.policy))
    return recall_answer(recalled)


@router.get("/documents")
async def list_documents(
    memory: Memory, owner: Owner, query: Annotated[DocumentsQuery, Query()]
) -> DocumentsAnswer:
    """List the caller's documents by id, in pages, withdrawn ones included."""
    after = read_documents_cursor(query.cursor)
    documents = await memory.store.list(memory.namespace(owner), limit=query.limit, after=after)
    return documents_answer(documents, limit=query.limit)


@router.get("/documents/{document_id}", response_model=DocumentAnswer | GenerationsAnswer)
async def read_document(
    memory: Memory, owner: Owner, document_id: str, query: Annotated[DocumentQuery, Query()]
) -> DocumentAnswer | GenerationsAnswer:
    """Read a document as it stands, or with `?history=true` its generations, newest first."""
    key = memory.key(owner, read_document_id(document_id))
    if query.history:
        generations = await memory.store.history(key, limit=query.limit)
        if generations:
            return GenerationsAnswer(generations=[document_answer(one) for one in generations])
    elif (document := await memory.store.read(key)) is not None:
        return document_answer(document)
    raise MemoryMissing("there is no such document", id=key.id)


@router.put("/documents/{document_id}")
async def correct(
    parts: Parts, memory: Memory, owner: Owner, document_id: str, body: CorrectionRequest
) -> DocumentAnswer:
    """Write a document as its owner wants it, over the expected revision; the same operation answers the same again."""
    key = memory.key(owner, read_document_id(document_id))
    with parts.traffic.admitting():
        document = await correct_document(
            memory.store, key, body, owner=owner, scope=memory.policy.scope, now_ms=memory.now_ms
        )
    parts.wakes.ring(INDEX)
    _log.info("document corrected", extra={"document": key.id, "generation": document.generation})
    return document_answer(document)


@router.delete("/documents/{document_id}", responses=problem_responses(409))
async def withdraw(
    parts: Parts, memory: Memory, owner: Owner, document_id: str, query: Annotated[WithdrawalQuery, Query()]
) -> DocumentAnswer:
    """Withdraw a document for good: no recall that begins afterwards shows it."""
    key = memory.key(owner, read_document_id(document_id))
    command = Withdraw(
        key=key,
        operation_id=api_operation(query.operation_id),
        expected_revision=query.expected_revision,
        reason=query.reason,
    )
    with parts.traffic.admitting():
        document = await memory.store.write(command, owner=owner)
    parts.wakes.ring(INDEX)
    _log.info("document withdrawn", extra={"document": key.id, "generation": document.generation})
    return document_answer(document)


@router.post("/intents", status_code=202)
async def admit_intent(
    parts: Parts, memory: Memory, owner: Owner, response: Response, body: IntentRequest
) -> AdmittedAnswer:
    """Admit that a statement be remembered: accepted for processing, not saved. Again, it answers `duplicate`.

    404 `session.missing` for a session that is not the caller's; 422 `memory.processing` for a record that is no user
    statement (reason `no-statement`) or whose turn has not ended with a reply (`turn-unended`).
    """
    with parts.traffic.admitting():
        admitted = await remember_statement(
            store=memory.remembering,
            log=parts.log,
            reader=memory.store,
            owner=owner,
            namespace=memory.namespace(owner),
            session_id=read_session_id(body.session_id),
            seq=body.seq,
        )
    if admitted.status == "queued":
        parts.wakes.ring(REMEMBER, [admitted.job_id])
    response.headers["Location"] = f"/v1/memory/intents/{admitted.intent_id}"
    _log.info("intent admitted", extra={"intent": admitted.intent_id, "status": admitted.status})
    return admitted_answer(admitted)


@router.get("/intents/{intent_id}")
async def read_intent(memory: Memory, owner: Owner, intent_id: str) -> IntentAnswer:
    """Read how far an intent is, and why it stopped."""
    return intent_answer(await memory.remembering.get(owner, read_intent_id(intent_id)))


@router.get("/progress")
async def read_progress(
    parts: Parts, memory: Memory, owner: Owner, query: Annotated[ProgressQuery, Query()]
) -> ProgressAnswer:
    """Read how far each processor is in a session, and each index with the caller's documents."""
    if query.session_id is None:
        return progress_answer(None, [], await _index_progress(memory, owner))
    head = await parts.log.head(read_session_id(query.session_id), owner)
    processors = await memory.activity.inspect(owner, head.id)
    return progress_answer(head, processors, await _index_progress(memory, owner))


async def _index_progress(memory: MemoryParts, owner: OwnerId) -> list[IndexProgress]:
    """Return the progress of every profile; none where the database cannot hold an index."""
    try:
        return list(await memory.index.progress(owner))
    except IndexUnavailable:
        return []

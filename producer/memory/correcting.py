"""An owner's own correction of a document: the exact command of a request, the same one when it is sent again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from memory_pipeline.remembering.merge import NO_SUBJECT, PROFILE_FACTS_MAX, SPEAKER, SUBJECTS
from memory_pipeline.store.documents import Attribution, Content, Document, MemoryKey, Put
from memory_pipeline.store.port import MemoryStore
from producer.memory.wire import CorrectionRequest
from shared.domain.errors import (
    InvalidInput,
    MemoryConflict,
    MemoryOperationConflict,
    MemoryWithdrawn,
)
from shared.domain.ids import OwnerId

STATEMENT_MAX_CHARS: Final = 4_096
#: How many of the newest generations are looked through for what a repeated request once replaced.
GENERATIONS_LOOKED_AT: Final = 32
#: What the API writes is told from what the background writes, in operation ids as in origins.
API_PREFIX: Final = "api:"


def api_operation(operation_id: str) -> str:
    """Return a caller's operation id as the store has it."""
    return f"{API_PREFIX}{operation_id}"


async def correct_document(
    store: MemoryStore,
    key: MemoryKey,
    request: CorrectionRequest,
    *,
    owner: OwnerId,
    scope: str,
    now_ms: Callable[[], int],
) -> Document:
    """Write a document as its owner wants it, and return it; a repeated request answers what the first one wrote.

    Lines that stood in the replaced revision keep their attribution and subject; a new line is the owner's own, without a
    subject, so that nothing of the background replaces it (REM-41). Raises ``InvalidInput`` for a text that is not 1 to
    128 lines of 1 to 4,096 characters, and what :meth:`MemoryWriter.write` does.
    """
    statements = _statements(request.text)
    try:
        return await store.write(await _command(store, key, request, statements, scope, now_ms), owner=owner)
    except MemoryOperationConflict:
        # The same request may have been first, under way at the same time: then its revision stands by now.
        return await store.write(await _command(store, key, request, statements, scope, now_ms), owner=owner)


@dataclass(frozen=True, slots=True)
class _Line:
    subject: str
    attribution: Attribution


async def _command(
    store: MemoryStore,
    key: MemoryKey,
    request: CorrectionRequest,
    statements: list[str],
    scope: str,
    now_ms: Callable[[], int],
) -> Put:
    """Return the command of a request: made of it, of the revision it replaces, and of the first one's time."""
    replaced, following = await _revisions(store, key, request.expected_revision)
    before = None if replaced is None else replaced.content
    earlier = None if following is None else following.content
    recorded_at = max(now_ms(), before.recorded_at if before is not None else 0)
    kept = {} if before is None else _lines_of(before)
    operation = api_operation(request.operation_id)
    lines = [kept.get(statement) or _own_line(key, operation, statement) for statement in statements]
    metadata = {} if before is None else before.metadata
    return Put(
        key=key,
        operation_id=operation,
        expected_revision=request.expected_revision,
        locator=f"memory/{key.id}" if replaced is None else replaced.source.locator,
        content=Content(
            text=request.text,
            attributions=tuple(line.attribution for line in lines),
            metadata=metadata | {SUBJECTS: [line.subject for line in lines]},
            recorded_at=recorded_at if earlier is None else earlier.recorded_at,
        ),
        scopes=_scopes(request, replaced, scope),
    )


async def _revisions(
    store: MemoryStore, key: MemoryKey, expected: str | None
) -> tuple[Document | None, Document | None]:
    """Return the revision that is replaced, and the one that followed it if the document has gone on since."""
    head = await store.read(key)
    if (None if head is None else head.source.revision) == expected:
        return head, None
    generations = [] if head is None else await store.history(key, limit=GENERATIONS_LOOKED_AT)
    replaced = next((one for one in generations if one.source.revision == expected), None)
    if expected is not None and replaced is None:
        raise _refusal(key, expected, head)
    return replaced, next((one for one in generations if _revision_before(one) == expected), None)


def _revision_before(document: Document) -> str | None:
    return None if document.predecessor is None else document.predecessor.revision


def _refusal(key: MemoryKey, expected: str, head: Document | None) -> MemoryConflict | MemoryWithdrawn:
    actual = None if head is None else head.source.revision
    if head is not None and head.withdrawn:
        return MemoryWithdrawn("the document was withdrawn, which is final", id=key.id, revision=actual)
    return MemoryConflict("the document is at another revision", id=key.id, expected=expected, actual=actual)


def _statements(text: str) -> list[str]:
    lines = text.split("\n")
    fits = all(line.strip() and len(line) <= STATEMENT_MAX_CHARS for line in lines)
    if not fits or len(lines) > PROFILE_FACTS_MAX:
        bound = f"1..{PROFILE_FACTS_MAX} lines of 1..{STATEMENT_MAX_CHARS} characters"
        raise InvalidInput(f"a document is one statement a line: {bound}", field="/text", bound=bound)
    return lines


def _lines_of(content: Content) -> dict[str, _Line]:
    """Return the lines of a document by their text; none of a document that has no attribution for each."""
    texts = content.text.split("\n")
    subjects: Any = content.metadata.get(SUBJECTS, [NO_SUBJECT] * len(texts))
    if not isinstance(subjects, list) or not len(texts) == len(subjects) == len(content.attributions):
        return {}
    lines: Iterable[tuple[str, Any, Attribution]] = zip(texts, subjects, content.attributions, strict=True)
    return {text: _Line(str(subject), attribution) for text, subject, attribution in lines}


def _own_line(key: MemoryKey, operation: str, statement: str) -> _Line:
    attribution = Attribution(
        origin_id=operation, speaker=SPEAKER, locator=f"memory/{key.id}", interpretation=statement
    )
    return _Line(NO_SUBJECT, attribution)


def _scopes(request: CorrectionRequest, replaced: Document | None, scope: str) -> tuple[str, ...]:
    if request.scopes is not None:
        return tuple(request.scopes)
    return (scope,) if replaced is None else replaced.scopes

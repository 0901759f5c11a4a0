"""Errors of memory: documents, intents, recall, the semantic index."""

from __future__ import annotations

from shared.domain.errors.families import Broken, Conflict, Exhausted, Refused, Unavailable
from shared.domain.errors.requests import InvalidInput


class MemoryOff(Refused):
    """The app has no memory policy: nothing is remembered or recalled."""

    code = "memory.off"
    title = "Memory is off"


class MemoryConflict(Conflict):
    """The document is at another revision; ``expected`` and ``actual`` say which (MEM-27)."""

    code = "memory.conflict"
    title = "Memory document is at another revision"


class MemoryWithdrawn(Conflict):
    """The document was withdrawn, which is final (MEM-39)."""

    code = "memory.withdrawn"
    title = "Memory document was withdrawn"


class MemoryOperationConflict(Conflict):
    """The operation id was used with another command (MEM-34)."""

    code = "memory.operation-conflict"
    title = "Operation id was used with another command"


class MemoryMissing(Refused):
    """No such document for this owner (another owner's reads the same)."""

    code = "memory.missing"
    title = "Memory document not found"


class NamespaceInvalid(InvalidInput):
    """An identity, name, version or address breaks its bounds; ``reason`` says which (NSP-06 to 10)."""

    code = "memory.namespace"
    title = "Invalid memory namespace"


class IntentConflict(Conflict):
    """The intent's id was used with other content."""

    code = "memory.intent-conflict"
    title = "Intent id was used with other content"


class IntentMissing(Refused):
    """No such intent for this owner."""

    code = "memory.intent-missing"
    title = "Intent not found"


class IntentsFull(Exhausted):
    """Too many intents of the owner are pending; nothing was stored, nothing owed was evicted (REM-45)."""

    code = "memory.intents-full"
    title = "Too many pending intents"


class RebasesSpent(Exhausted):
    """Too many commands in a row met another revision of their target; trying again later may work (REM-24)."""

    code = "memory.rebases"
    title = "Memory document changes too often"


class ProcessingRefused(Refused):
    """A step of background processing cannot go on with this input; ``reason`` says why (REM, ACT)."""

    code = "memory.processing"
    title = "Processing refused"


class RecallFailed(Unavailable):
    """An essential source failed, or a bound was passed; ``reason`` says which (RCL-09, 27)."""

    code = "memory.recall"
    title = "Recall failed"


class IndexUnavailable(Unavailable):
    """The semantic index cannot be used here; ``reason`` says why."""

    code = "memory.index"
    title = "Semantic index unavailable"


class IndexBudget(Refused):
    """A source or query is larger than the semantic index takes; nothing partial is done (SEM-31, 36, 42, 68).

    ``reason`` says what: source-bytes, chunks, sources, identity-bytes, query-bytes, scanned-chunks or output-bytes.
    """

    code = "memory.index-budget"
    title = "Semantic index limit reached"


class SourceChanged(Unavailable):
    """The source changed while it was being indexed; the next try reads it as it is then (SEM-55)."""

    code = "memory.source-changed"
    title = "Source changed meanwhile"


class MemoryCorrupt(Broken):
    """A stored memory value does not decode or does not match its receipt (MEM-38)."""

    code = "memory.corrupt"
    title = "Stored memory is corrupt"

"""The error tree. A family says who must act; the code is stable and is what clients, logs and stored ends carry.

TurnkeeperError
├── Refused       the request is wrong: change it (4xx)
├── Conflict      another was first: look, then decide (409; a key reused with other content 422)
├── Unavailable   trouble outside: try again (503)
├── Exhausted     a budget, tries or time is spent (429, or an end)
└── Broken        an invariant of ours does not hold: stop and report (500)

Foreign errors are translated once, at the adapter that met them, and stay their ``__cause__``.
"""

from __future__ import annotations

from typing import Any, ClassVar


class TurnkeeperError(Exception):
    """Base of every typed error of ours.

    ``code`` is stable; ``fields`` names what the error is about and is safe to show to the caller (no secrets, no
    SQL, nothing of another owner).
    """

    code: ClassVar[str] = "internal"
    title: ClassVar[str] = "Internal error"

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields


class Refused(TurnkeeperError):
    """The request cannot be taken as it is."""

    code = "request.refused"
    title = "Request refused"


class Conflict(TurnkeeperError):
    """Something that was there first stands against the request."""

    code = "request.conflict"
    title = "Conflict"


class Unavailable(TurnkeeperError):
    """A part outside this process is in trouble; trying again may work. ``retry_after_s`` is a hint in seconds."""

    code = "unavailable"
    title = "Temporarily unavailable"

    def __init__(self, message: str, *, retry_after_s: float = 1.0, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.retry_after_s = retry_after_s


class Exhausted(TurnkeeperError):
    """A budget, a number of tries or a time is spent. ``retry_after_s`` is a hint in seconds."""

    code = "exhausted"
    title = "Limit reached"

    def __init__(self, message: str, *, retry_after_s: float = 1.0, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.retry_after_s = retry_after_s


class Broken(TurnkeeperError):
    """An invariant of ours does not hold. Never retried blindly."""

    code = "defect"
    title = "Defect"


# --- the request ---------------------------------------------------------------------------------------------


class InvalidInput(Refused):
    """A value breaks a bound. ``field`` names it (a JSON pointer at the wire), ``bound`` says the bound."""

    code = "input.invalid"
    title = "Invalid input"

    def __init__(self, message: str, *, field: str, bound: str, **fields: Any) -> None:
        super().__init__(message, field=field, bound=bound, **fields)
        self.field = field
        self.bound = bound


class InputTooLarge(InvalidInput):
    """A body or value is larger than its bound in bytes (HTTP 413)."""

    code = "input.too-large"
    title = "Too large"


class MalformedInput(Refused):
    """The bytes are not what the content type says: not JSON, not UTF-8, duplicate keys, too deep (HTTP 400)."""

    code = "input.malformed"
    title = "Malformed input"


class UnsupportedMedia(Refused):
    """The body is of a type or encoding that this door does not read (HTTP 415)."""

    code = "input.media-type"
    title = "Unsupported media type"


class ConfigError(Refused):
    """A setting or a definition cannot be used; the process does not start with it."""

    code = "config.options"
    title = "Invalid configuration"


class Unauthenticated(Refused):
    code = "auth.missing"
    title = "Authentication required"


class InvalidCredentials(Unauthenticated):
    """Credentials were given and are not valid; which part is wrong is not said."""

    code = "auth.invalid"
    title = "Credentials are not valid"


class SessionMissing(Refused):
    """No such session for this owner (another owner's id reads the same)."""

    code = "session.missing"
    title = "Session not found"


class TurnMissing(Refused):
    """No such turn for this owner (another owner's id reads the same)."""

    code = "turn.missing"
    title = "Turn not found"


class ReservedKind(Refused):
    """A record kind that only the framework writes (SES-59, SES-63)."""

    code = "events.reserved"
    title = "Reserved record kind"


class NotResumable(Refused):
    """The named turn cannot be resumed; ``reason`` is missing, inbox, superseded or finished (RSM-07)."""

    code = "turn.not-resumable"
    title = "Turn cannot be resumed"


# --- conflicts -----------------------------------------------------------------------------------------------


class SessionBusy(Conflict):
    """A turn of the session is unfinished and the caller asked not to queue (SES-38)."""

    code = "session.busy"
    title = "Session is busy"


class KeyConflict(Conflict):
    """The key was used with other content (SES-41). HTTP 422 (decision 12)."""

    code = "turn.key-conflict"
    title = "Idempotency key was used with other content"


class SessionExists(Conflict):
    """The creation key was used with other content."""

    code = "session.exists"
    title = "Session exists"


class RevisionConflict(Conflict):
    """A compare-and-swap commit found another revision; ``expected`` and ``actual`` say which (SES-13)."""

    code = "session.revision"
    title = "Revision conflict"


class CommitTooLate(Conflict):
    """The store's clock had passed the commit's ``not_after``; nothing was stored (SES-14)."""

    code = "session.late"
    title = "Commit came too late"


class RunIdReused(Conflict):
    code = "turn.run-reused"
    title = "Run id was used before"


class FenceLost(Conflict):
    """The writer's fence is no longer the row's: nothing of the write is stored (law 3)."""

    code = "turn.fence-lost"
    title = "Ownership was lost"


class TurnClosed(FenceLost):
    """Someone else closed the turn. ``reason``: cancelled, interrupted, removed or ended (SES-75)."""

    code = "turn.closed"
    title = "Turn is closed"


class HomeInUse(Conflict):
    """Another process runs on the same home folder; ``pid`` names it (OPS-01)."""

    code = "home.in-use"
    title = "Home folder is in use"


class LeaseHeld(Conflict):
    """The lease is another holder's; ``expires_in_s`` says for how long at most."""

    code = "lease.held"
    title = "Lease is held"


# --- trouble outside -----------------------------------------------------------------------------------------


class StoreUnavailable(Unavailable):
    """The database cannot be reached or dropped the connection; the outcome of the statement may be unknown."""

    code = "store.unavailable"
    title = "Store unavailable"


class ProcessFailed(Unavailable):
    """A program that we start ended or did not become ready in time; the end of its log is in the message (OPS-01)."""

    code = "process.failed"
    title = "A started program failed"


class StoreBusy(Unavailable):
    """A lock or a connection could not be had in time; nothing was stored (SES-29)."""

    code = "store.busy"
    title = "Store is busy"


class Draining(Unavailable):
    """This process is going away and admits nothing more (API-15)."""

    code = "turn.refused"
    title = "Draining"


class BrokerUnavailable(Unavailable):
    """The broker did not take a wake within the publisher's bound (DST-05)."""

    code = "broker.unavailable"
    title = "Broker unavailable"


class FeedUnavailable(Unavailable):
    code = "feed.unavailable"
    title = "Live feed unavailable"


class ModelUnavailable(Unavailable):
    """The model endpoint failed in a way that trying again may mend."""

    code = "model.unavailable"
    title = "Model unavailable"


class ModelRefused(Refused):
    """The model endpoint says that the request itself is wrong."""

    code = "model.refused"
    title = "Model refused the request"


class ModelAuthFailed(Refused):
    code = "model.auth"
    title = "Model credentials were refused"


class ModelStreamBroken(Unavailable):
    """The model's stream ended early or was not what the protocol says."""

    code = "model.stream"
    title = "Model stream broke"


class ModelOutputInvalid(Unavailable):
    """A structured answer cannot be used, nor could its repetitions; ``reason``: cut, empty, not-json or schema."""

    code = "model.output"
    title = "Model output cannot be used"


class EmbeddingInvalid(Refused):
    """A vector does not fit (SEM-32); ``reason``: count, dimensions, not-finite, zero-norm or malformed."""

    code = "model.embedding"
    title = "Embedding cannot be used"


# --- limits --------------------------------------------------------------------------------------------------


class QueueFull(Exhausted):
    """A bound on queued turns is reached; nothing was stored (DST-16)."""

    code = "turn.queue-full"
    title = "Too many queued turns"


class CallAbandoned(Exhausted):
    """A blocking call of the host did not return in time; what it did is unknown, its thread is lost (DST-31)."""

    code = "call.abandoned"
    title = "Blocking call took too long"


class TurnTimeout(Exhausted):
    """The turn used up its ``max_duration_s``."""

    code = "turn.timeout"
    title = "Turn took too long"


# --- our invariants ------------------------------------------------------------------------------------------


class SchemaOutOfRange(Broken):
    """The database's schema and this code do not fit; both versions are named (OPS-05)."""

    code = "schema.range"
    title = "Schema version out of range"


class CorruptRecord(Broken):
    """A stored row does not decode; session and seq are named, nothing is skipped (SES-160)."""

    code = "session.decode"
    title = "Stored record does not decode"


class StoreDefect(Broken):
    """The database answered something the contract rules out."""

    code = "store.defect"
    title = "Store defect"


# --- memory --------------------------------------------------------------------------------------------------


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


def code_of(error: BaseException) -> str:
    """Return the stable code a turn that fails with ``error`` stores (TRN-49 to TRN-54).

    A typed error keeps its own code; any other ``Exception`` is ``turn.failed``.
    """
    return error.code if isinstance(error, TurnkeeperError) else "turn.failed"


MESSAGE_MAX_CHARS = 500


def describe_error(error: BaseException) -> str:
    """Return the stored failure message, cut to ``MESSAGE_MAX_CHARS`` code points (TRN-51, 53, 59)."""
    text = str(error)
    if not isinstance(error, TurnkeeperError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text[:MESSAGE_MAX_CHARS]

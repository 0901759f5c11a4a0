"""The rules of a write that every adapter shares: bounds before anything is written, and what an answer must match."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, Literal

from memory_pipeline.store.documents import (
    METADATA_KEY_MAX_CHARS,
    METADATA_MAX_BYTES,
    STORED_MAX_BYTES,
    Command,
    Content,
    Document,
    MemoryKey,
    Put,
    SourceReference,
    Withdraw,
    decode_document,
    encode,
)
from shared.domain.bounds import check_json, check_text
from shared.domain.canonical import canonical_json
from shared.domain.errors import (
    InputTooLarge,
    InvalidInput,
    MemoryConflict,
    MemoryCorrupt,
    MemoryMissing,
    MemoryOperationConflict,
    MemoryWithdrawn,
    StoreDefect,
)

Result = Literal[
    "written",
    "replayed",
    "operation-conflict",
    "withdrawn",
    "conflict",
    "missing",
    "too-large",
]

#: What one entry of a database index surely holds beside a profile's digest; an address alone may have 4,096 bytes.
NAMES_MAX_BYTES: Final = 2_400
_GENERATION_MAX: Final = 2**63 - 2
_NO_GENERATION: Final = 0


@dataclass(frozen=True, slots=True)
class Prepared:
    """A command within its bounds, as a store needs it."""

    digest: bytes
    expected: int | None
    content: str | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a store's transaction answered: the document's text for written and replayed, else where the head stands."""

    result: Result
    document: str | None = None
    generation: int | None = None


def prepare(command: Command) -> Prepared:
    """Check a command before a store is asked; raise ``InvalidInput`` or ``InputTooLarge`` (MEM-53)."""
    content = None
    if isinstance(command, Put):
        _check_unique(command.scopes, "scopes")
        _check_content(command.content)
        content = encode(command.content)
    check_json(command.model_dump(mode="json"), field="command")
    check_names(command.key.namespace, command.key.id, field="id")
    check_names(command.key.namespace, command.operation_id, field="operation_id")
    text = encode(command).encode()
    if len(text) > STORED_MAX_BYTES:
        raise _too_large("command")
    return Prepared(hashlib.sha256(text).digest(), generation_of(command.expected_revision), content)


def check_key(key: MemoryKey) -> MemoryKey:
    """Return a key that a store can be asked for; raise ``InvalidInput`` for unstorable text."""
    check_texts(namespace=key.namespace, id=key.id)
    check_names(key.namespace, key.id, field="id")
    return key


def check_names(namespace: str, name: str, *, field: str) -> None:
    """Raise ``InvalidInput`` for names that are too long together for one entry of a database index."""
    if len(namespace.encode()) + len(name.encode()) > NAMES_MAX_BYTES:
        raise InvalidInput(
            f"namespace and {field} are larger than {NAMES_MAX_BYTES} bytes together",
            field=field,
            bound=f"<= {NAMES_MAX_BYTES} bytes with the namespace",
        )


def generation_of(revision: str | None) -> int | None:
    """Return the generation that a revision names: 0, which no document has, for a text that names none."""
    if revision is None:
        return None
    if not (revision.isascii() and revision.isdigit() and len(revision) < 20 and revision[0] != "0"):
        return _NO_GENERATION
    generation = int(revision)
    return generation if generation <= _GENERATION_MAX else _NO_GENERATION


def next_document(command: Command, head: Document | None, modified_at: int) -> Document:
    """Return the document that a command leads to, in epoch milliseconds; the SQL function makes the same text."""
    generation = 1 if head is None else head.generation + 1
    put = command if isinstance(command, Put) else None
    locator = put.locator if put else _locator_of(head)
    return Document(
        key=command.key,
        source=SourceReference(id=command.key.id, locator=locator, revision=str(generation)),
        generation=generation,
        predecessor=None if head is None else head.source,
        modified_at=modified_at,
        content=put.content if put else None,
        scopes=put.scopes if put else (),
        reason=command.reason if isinstance(command, Withdraw) else None,
    )


def answer(command: Command, verdict: Verdict) -> Document:
    """Return the document of a write, or raise what its verdict means. Errors name ids and revisions, no namespace."""
    match verdict.result:
        case "written" | "replayed":
            return _checked(command, verdict.document)
        case "operation-conflict":
            raise MemoryOperationConflict(
                "the operation id was used with another command", operation_id=command.operation_id
            )
        case "withdrawn":
            raise MemoryWithdrawn(
                "the document was withdrawn, which is final",
                id=command.key.id,
                revision=_revision(verdict.generation),
            )
        case "missing":
            raise MemoryMissing("there is no such document", id=command.key.id)
        case "conflict":
            raise MemoryConflict(
                "the document is at another revision",
                id=command.key.id,
                expected=command.expected_revision,
                actual=_revision(verdict.generation),
            )
        case "too-large":
            raise _too_large("document")
    raise StoreDefect(f"a write of memory was answered with {verdict.result!r}")


def check_head(document: Document, row: tuple[int, str, str, tuple[str, ...]]) -> Document:
    """Return the document if its row (generation, status, locator, scopes) says the same, else ``MemoryCorrupt``."""
    status = "withdrawn" if document.withdrawn else "active"
    if row != (document.generation, status, document.source.locator, document.scopes):
        raise MemoryCorrupt("a stored document does not match its row", id=document.key.id)
    return document


def check_count(count: int, most: int, *, field: str = "limit") -> int:
    """Return how many to read; raise ``InvalidInput`` unless it is 1 to ``most``."""
    if not 1 <= count <= most:
        raise InvalidInput(f"{field} must be 1..{most}", field=field, bound=f"1..{most}")
    return count


def check_texts(**texts: str) -> None:
    """Raise ``InvalidInput`` for a text that no store can be asked for: NUL, lone surrogates, too long."""
    for name, text in texts.items():
        check_text(text, field=name)


def _checked(command: Command, text: str | None) -> Document:
    """Compare a written or replayed document with its command, part by part (MEM-37, 38)."""
    if text is None:
        raise MemoryCorrupt("a receipt names a document that is not stored", part="document")
    document = decode_document(text)
    before = document.predecessor
    expected = {
        "key": (document.key, document.source.id) == (command.key, command.key.id),
        "predecessor": (None if before is None else before.revision) == command.expected_revision,
        "generation": document.source.revision == str(document.generation)
        and document.generation == (generation_of(command.expected_revision) or 0) + 1,
        "kind": document.withdrawn == isinstance(command, Withdraw),
        **_said(command, document),
    }
    if wrong := [part for part, holds in expected.items() if not holds]:
        raise MemoryCorrupt("a receipt does not match its command", part=wrong[0])
    return document


def _said(command: Command, document: Document) -> dict[str, bool]:
    if isinstance(command, Withdraw):
        before = document.predecessor
        return {
            "locator": before is not None and before.locator == document.source.locator,
            "scopes": document.scopes == (),
            "content": document.content is None,
            "reason": document.reason == command.reason,
        }
    return {
        "locator": document.source.locator == command.locator,
        "scopes": document.scopes == command.scopes,
        "content": document.content is not None and encode(document.content) == encode(command.content),
        "reason": document.reason is None,
    }


def _check_content(content: Content) -> None:
    for place, attribution in enumerate(content.attributions):
        _check_unique(attribution.observers, f"content/attributions/{place}/observers")
    where = "content/metadata"
    # Judged as it was given: dumping would turn what is no JSON value into something else.
    check_json(content.metadata, field=where)
    if any(len(key) > METADATA_KEY_MAX_CHARS for key in content.metadata):
        bound = f"keys of at most {METADATA_KEY_MAX_CHARS} characters"
        raise InvalidInput(f"{where} must have {bound}", field=where, bound=bound)
    if len(canonical_json(content.metadata).encode()) > METADATA_MAX_BYTES:
        raise InputTooLarge(
            f"{where} is larger than {METADATA_MAX_BYTES} bytes",
            field=where,
            bound=f"<= {METADATA_MAX_BYTES} bytes",
        )


def _check_unique(values: tuple[str, ...], field: str) -> None:
    if len(set(values)) != len(values):
        raise InvalidInput(f"{field} names one twice", field=field, bound="unique")


def _locator_of(head: Document | None) -> str:
    if head is None:
        raise StoreDefect("a document that is not there cannot be withdrawn")
    return head.source.locator


def _revision(generation: int | None) -> str | None:
    return None if generation is None else str(generation)


def _too_large(what: str) -> InputTooLarge:
    return InputTooLarge(
        f"the stored {what} would be larger than {STORED_MAX_BYTES} bytes",
        field=what,
        bound=f"<= {STORED_MAX_BYTES} bytes",
    )

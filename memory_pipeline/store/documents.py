"""Values of the document store and their one stored encoding (bounds: MEM, RCL-15 to 21)."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NewType, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from shared.domain.canonical import canonical_json
from shared.domain.errors import MemoryCorrupt

#: A canonical namespace address; made and checked by :mod:`memory_pipeline.namespaces` only.
NamespaceAddress = NewType("NamespaceAddress", str)

STORED_MAX_BYTES = 16_777_216
METADATA_MAX_KEYS = 64
METADATA_MAX_BYTES = 8_192
#: The passage id of a document shown whole.
WHOLE = "document"
METADATA_KEY_MAX_CHARS = 128

Identity = Annotated[str, StringConstraints(min_length=1, max_length=1_024)]
Locator = Annotated[str, StringConstraints(min_length=1, max_length=8_192)]
Milliseconds = Annotated[int, Field(ge=0, le=2**53 - 1)]
Scopes = Annotated[tuple[Identity, ...], Field(max_length=128)]


class Value(BaseModel):
    """Base of memory values: frozen, exact, without coercion beyond what JSON needs."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class MemoryKey(Value):
    """Addresses a source: a namespace and an id within it."""

    namespace: NamespaceAddress
    id: Identity


class SourceReference(Value):
    """An authoritative source at a revision; None when the revision is unknown."""

    id: Identity
    locator: Locator
    revision: Identity | None


class Attribution(Value):
    """Who said it, where, when (None: unknown; never filled from other times) and how the application reads it."""

    origin_id: Identity
    speaker: Identity
    observers: Annotated[tuple[Identity, ...], Field(max_length=128)] = ()
    locator: Locator
    activity_at: Milliseconds | None = None
    interpretation: Annotated[str, StringConstraints(min_length=1, max_length=4_096)]


class Content(Value):
    """What a document says. Times are epoch milliseconds: when it was recorded, and when it was extracted."""

    text: Annotated[str, StringConstraints(min_length=1, max_length=1_048_576)]
    attributions: Annotated[tuple[Attribution, ...], Field(min_length=1, max_length=128)]
    metadata: Annotated[dict[str, Any], Field(max_length=METADATA_MAX_KEYS)] = Field(default_factory=dict)
    recorded_at: Milliseconds
    extracted_at: Milliseconds | None = None


class Document(Value):
    """A source as it stands: active with content and scopes, or withdrawn with a reason (final)."""

    version: Literal[1] = 1
    key: MemoryKey
    source: SourceReference
    generation: Annotated[int, Field(ge=1)]
    predecessor: SourceReference | None = None
    modified_at: Milliseconds
    content: Content | None = None
    scopes: Scopes = ()
    reason: Annotated[str, StringConstraints(min_length=1, max_length=4_096)] | None = None

    @property
    def withdrawn(self) -> bool:
        """Whether the source was withdrawn."""
        return self.content is None


class Put(Value):
    """Create (``expected_revision`` None) or replace a document."""

    kind: Literal["put"] = "put"
    key: MemoryKey
    operation_id: Identity
    expected_revision: Identity | None
    locator: Locator
    content: Content
    scopes: Scopes


class Withdraw(Value):
    """End a document for good."""

    kind: Literal["withdraw"] = "withdraw"
    key: MemoryKey
    operation_id: Identity
    expected_revision: Identity | None
    reason: Annotated[str, StringConstraints(min_length=1, max_length=4_096)]


Command = Put | Withdraw


class Passage(Value):
    """A piece of a source that recall may show. ``authority`` is private: it never reaches a prompt."""

    version: Literal[1] = 1
    authority: str | None = None
    source: SourceReference
    passage_id: Identity
    content: Content


V = TypeVar("V", bound=Value)


def encode(value: Value) -> str:
    """Return the canonical JSON of a value: what is stored, compared and digested."""
    return canonical_json(value.model_dump(mode="json"))


def decode_document(text: str) -> Document:
    """Read a stored document; raise ``MemoryCorrupt`` for one that does not decode or is not canonical."""
    return _decode(Document, text)


def decode_command(text: str) -> Command:
    """Read a stored command; raise ``MemoryCorrupt`` for one that does not decode or is not canonical."""
    kind: type[Put] | type[Withdraw] = Put if '"kind":"put"' in text else Withdraw
    return _decode(kind, text)


def _decode(kind: type[V], text: str) -> V:
    try:
        value = kind.model_validate_json(text)
    except ValidationError:
        # The cause is left out: its text repeats what the value says.
        raise MemoryCorrupt("a stored memory value does not decode", kind=kind.__name__) from None
    if encode(value) != text:
        raise MemoryCorrupt("a stored memory value is not canonical", kind=kind.__name__)
    return value

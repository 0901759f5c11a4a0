"""Values of the log: drafts to write, records as stored, and the head."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from shared.domain.bounds import COMMIT_MAX_BYTES, COMMIT_MAX_RECORDS, RECORD_MAX_BYTES
from shared.domain.canonical import canonical_json, chain_tail, first_tail, record_digest
from shared.domain.errors import CorruptRecord, InputTooLarge, InvalidInput
from shared.domain.ids import OwnerId, SessionId

#: An escape for NUL, not the six characters after an escaped backslash.
_ESCAPED_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


@dataclass(frozen=True, slots=True)
class Draft:
    """A record to append: its kind, canonical text and digest. Made by :func:`draft`."""

    kind: str
    text: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class Record:
    """A stored record. ``turn`` is the turn's number, or None outside a turn; ``text`` is canonical JSON."""

    session_id: SessionId
    seq: int
    turn: int | None
    kind: str
    at: datetime
    text: str
    digest: bytes

    @property
    def data(self) -> Mapping[str, Any]:
        """The payload. Raises ``CorruptRecord`` naming session and seq when it does not decode (SES-33, SES-160)."""
        try:
            value = json.loads(self.text)
        except ValueError as error:
            raise CorruptRecord(
                "a record is not JSON", session=self.session_id, seq=self.seq, kind=self.kind
            ) from error
        if not isinstance(value, dict):
            raise CorruptRecord(
                "a record is no object", session=self.session_id, seq=self.seq, kind=self.kind
            )
        return value


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """Who may write the log now: the open turn and its fence."""

    turn_id: UUID
    epoch: int
    token: UUID


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a session as one read saw it; ``now`` is the database's clock at that read.

    ``inherited`` is the seq of the parent up to which its history is this session's too, None when it inherits nothing.
    ``turns`` counts the turns that opened, a fork's inherited ones too, ``admitted`` all that the queue ever took here.
    """

    id: SessionId
    owner: OwnerId
    parent: SessionId | None
    inherited: int | None
    title: str | None
    meta: Mapping[str, Any]
    state: Mapping[str, Any]
    seq: int
    revision: int
    tail: bytes
    turns: int
    open: OpenTurn | None
    inbox_waiting: int
    created_at: datetime
    updated_at: datetime
    now: datetime
    admitted: int = 0


def draft(kind: str, data: Mapping[str, Any]) -> Draft:
    """Return a draft of ``data``.

    Raises ``InputTooLarge`` above ``RECORD_MAX_BYTES`` of canonical JSON, ``InvalidInput`` for NUL or a lone surrogate.
    """
    text = canonical_json(data)
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"a {kind} record holds a lone surrogate", field=kind, bound="well-formed Unicode"
        ) from error
    if "\\u0000" in text and _ESCAPED_NUL.search(text):
        raise InvalidInput(f"a {kind} record holds a NUL character", field=kind, bound="no U+0000")
    if size > RECORD_MAX_BYTES:
        raise InputTooLarge(
            f"a {kind} record of {size} bytes is larger than {RECORD_MAX_BYTES}",
            field=kind,
            bound=f"<= {RECORD_MAX_BYTES} bytes",
        )
    return Draft(kind, text, record_digest(kind, text))


def check_commit_size(drafts: Sequence[Draft]) -> None:
    """Raise ``InputTooLarge`` for more than ``COMMIT_MAX_RECORDS`` or ``COMMIT_MAX_BYTES`` in one commit (THR-102)."""
    if len(drafts) > COMMIT_MAX_RECORDS:
        raise InputTooLarge(
            f"a commit of {len(drafts)} records has more than {COMMIT_MAX_RECORDS}",
            field="records",
            bound=f"<= {COMMIT_MAX_RECORDS} records",
        )
    size = sum(len(d.text.encode()) for d in drafts)
    if size > COMMIT_MAX_BYTES:
        raise InputTooLarge(
            f"a commit of {size} bytes is larger than {COMMIT_MAX_BYTES}",
            field="records",
            bound=f"<= {COMMIT_MAX_BYTES} bytes",
        )


def verify_log(session_id: str, records: Iterable[Record], *, seq: int, tail: bytes) -> None:
    """Recheck a whole log against its head: dense seqs, every digest, the chain. Raises ``CorruptRecord``."""
    expected, chained = 0, first_tail(session_id)
    for record in records:
        expected += 1
        if record.seq != expected or record_digest(record.kind, record.text) != record.digest:
            raise CorruptRecord("the log does not verify", session=session_id, seq=expected)
        chained = chain_tail(chained, record.seq, record.turn, record.digest)
    if expected != seq or chained != tail:
        raise CorruptRecord("the log does not match its head", session=session_id, seq=expected)

"""A source's text cut into chunks: whole code points, deterministic, nothing dropped (SEM-27 to 33). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from memory_pipeline.index.profile import LINES, SemanticProfile
from shared.domain.bounds import check_text
from shared.domain.errors import IndexBudget, InvalidInput

#: A code point has at most 4 bytes in UTF-8, and its later bytes begin with these bits.
_CONTINUATION: Final = 0b10


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes ``start_byte`` up to ``end_byte`` of a source's UTF-8, as text; in no ``repr``."""

    passage_id: str
    ordinal: int
    start_byte: int
    end_byte: int
    text: str = field(repr=False)


def passage_id(profile: SemanticProfile, ordinal: int) -> str:
    """Return the id of a source's chunk: its ordinal, and the digest of the complete profile (SEM-29)."""
    return f"chunk:{profile.digest}:{ordinal}"


def chunks_of(
    text: str, profile: SemanticProfile, *, max_source_bytes: int, max_chunks: int
) -> Sequence[Chunk]:
    """Cut a text into chunks of at most the profile's ``max_chunk_bytes`` each, in order, without gap or overlap.

    Raises ``InvalidInput`` for an empty text or one that has no UTF-8, ``IndexBudget`` with reason ``source-bytes`` or
    ``chunks``.
    """
    if not text:
        raise InvalidInput("an empty source has no chunks", field="text", bound=">= 1 byte")
    check_text(text, field="text", max_bytes=4 * len(text))
    encoded = text.encode()
    if len(encoded) > max_source_bytes:
        raise IndexBudget(
            f"the source is larger than {max_source_bytes} bytes",
            reason="source-bytes",
            bound=max_source_bytes,
        )
    cuts: list[tuple[int, int]] = []
    for span in _spans(encoded, profile):
        if len(cuts) == max_chunks:
            raise IndexBudget(
                f"the source has more than {max_chunks} chunks", reason="chunks", bound=max_chunks
            )
        cuts.append(span)
    return [
        Chunk(passage_id(profile, n), n, start, end, encoded[start:end].decode())
        for n, (start, end) in enumerate(cuts)
    ]


def check_chunks(chunks: Sequence[Chunk], profile: SemanticProfile) -> None:
    """Raise ``InvalidInput`` unless these are all chunks of one source under this profile: contiguous, whole, in order."""
    at = 0
    for ordinal, chunk in enumerate(chunks):
        size = len(chunk.text.encode())
        fits = (
            chunk.ordinal == ordinal
            and chunk.passage_id == passage_id(profile, ordinal)
            and (chunk.start_byte, chunk.end_byte) == (at, at + size)
            and 0 < size <= profile.max_chunk_bytes
        )
        if not fits:
            raise InvalidInput(
                "the chunks are not one source's", field=f"chunks/{ordinal}", bound="contiguous from byte 0"
            )
        at += size
    if not chunks:
        raise InvalidInput("a source has at least one chunk", field="chunks", bound=">= 1")


def _spans(encoded: bytes, profile: SemanticProfile) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each chunk; a profile's ``max_chunk_bytes`` holds any one code point."""
    start = 0
    while start < len(encoded):
        end = min(start + profile.max_chunk_bytes, len(encoded))
        if profile.chunker == LINES:
            end = _end_of_line(encoded, start, end)
        while end < len(encoded) and encoded[end] >> 6 == _CONTINUATION:
            end -= 1
        yield start, end
        start = end


def _end_of_line(encoded: bytes, start: int, end: int) -> int:
    """Return the end of the first line that says something, with the blank ones before it and after it."""
    at = start
    while (at := encoded.find(b"\n", at, end) + 1) > 0:
        following = encoded.find(b"\n", at)
        next_line = encoded[at : following if following >= 0 else len(encoded)]
        if encoded[start:at].strip() and next_line.strip():
            return at
    return end

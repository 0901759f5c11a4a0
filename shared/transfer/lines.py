"""The line format: one JSON object a line, each with a check over its bytes and all lines before it.

The check is chained, so that the first line that was changed, lost, added or moved is the first that does not fit. It finds
damage; it is no signature. Lines have a bound, so that reading one never takes more memory than that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import orjson

from shared.domain.errors import TransferInvalid
from shared.transfer.values import LINE_MAX_BYTES

_HEAD: Final = b'{"check":"'
_HEAD_SIZE: Final = len(_HEAD) + 64
_JOINT: Final = b'",'
FIRST_CHECK: Final = hashlib.sha256(b"turnkeeper transfer").hexdigest()


@dataclass(frozen=True, slots=True)
class Line:
    """A line as read: its number from 1, where its first byte stands, what it says, and its check."""

    number: int
    byte: int
    said: Mapping[str, Any]
    check: str


def encode_line(check: str, said: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return the line that follows the one with this check, and its own check."""
    body = orjson.dumps(said)
    check = _chained(check, body)
    return _HEAD + check.encode() + _JOINT + body[1:] + b"\n", check


def read_lines(file: BinaryIO, *, max_bytes: int = LINE_MAX_BYTES) -> Iterator[Line]:
    """Yield the lines of a file. Raises ``TransferInvalid`` at the first that is not as written."""
    check, number, byte = FIRST_CHECK, 0, 0
    while raw := file.readline(max_bytes + 1):
        number += 1
        line = _line(raw, check, number=number, byte=byte, max_bytes=max_bytes)
        yield line
        check = line.check
        byte += len(raw)


def _line(raw: bytes, check: str, *, number: int, byte: int, max_bytes: int) -> Line:
    where = {"line": number, "byte": byte}
    if len(raw) > max_bytes:
        raise TransferInvalid(
            f"line {number} is longer than {max_bytes} bytes",
            field="line",
            bound=f"<= {max_bytes} bytes",
            **where,
        )
    if not raw.endswith(b"\n"):
        raise TransferInvalid(f"the file ends inside line {number}", field="end", **where)
    body = b"{" + raw[_HEAD_SIZE + len(_JOINT) : -1]
    said = _said(body)
    given, joint = raw[len(_HEAD) : _HEAD_SIZE], raw[_HEAD_SIZE : _HEAD_SIZE + len(_JOINT)]
    if raw[: len(_HEAD)] != _HEAD or joint != _JOINT:
        raise TransferInvalid(f"line {number} is no line of a transfer file", field="check", **where)
    expected = _chained(check, body)
    if given != expected.encode() or said is None:
        raise TransferInvalid(
            f"line {number} is not as it was written, or does not follow the line before it",
            field=_differing(said),
            **where,
            **({} if said is None or not isinstance(said.get("seq"), int) else {"seq": said["seq"]}),
        )
    return Line(number, byte, said, expected)


def _said(body: bytes) -> Mapping[str, Any] | None:
    try:
        found = orjson.loads(body)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _differing(said: Mapping[str, Any] | None) -> str:
    """Say which field of a changed record is wrong, as far as it can be told from the line alone."""
    if said is None:
        return "line"
    kind, data, digest = said.get("kind"), said.get("data"), said.get("digest")
    if isinstance(kind, str) and isinstance(data, str) and isinstance(digest, str):
        real = hashlib.sha256(kind.encode() + b"\x00" + data.encode()).hexdigest()
        return "line" if real == digest else "kind, data or digest"
    return "line"


def _chained(check: str, body: bytes) -> str:
    return hashlib.sha256(check.encode() + body).hexdigest()

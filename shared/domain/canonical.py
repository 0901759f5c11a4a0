"""Canonical JSON text and the digests over it (decision 15, core 6).

Keys sort by UTF-16 code units and strings are escaped as RFC 8785 says; numbers must be finite and integers keep all
their digits. Floats are written in Python's shortest form: digests are promised within this project only.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any, Final

import orjson

#: What holds no keys.
_PLAIN: Final = frozenset({str, int, float, bool, type(None)})
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True)


def _utf16_order(key: str) -> bytes:
    return key.encode("utf-16-be", "surrogatepass")


def _needs_utf16_order(value: Any) -> bool:
    """Say whether any key holds a character outside the BMP: only there do code point and UTF-16 order differ.

    Raises ``AttributeError`` for a key that is no string.
    """
    waiting = [value]
    while waiting:
        value = waiting.pop()
        # An abstract base class is asked about nothing that is plain: most of a value is.
        kind = type(value)
        if kind in _PLAIN:
            continue
        if kind is dict or isinstance(value, Mapping):
            for key in value:
                if not key.isascii() and any(c > "\uffff" for c in key):
                    return True
            waiting.extend(value.values())
        elif isinstance(value, list | tuple):
            waiting.extend(value)
    return False


def _encode_utf16_sorted(value: Any) -> str:
    if isinstance(value, Mapping):
        keys = sorted(value, key=_utf16_order)
        return "{" + ",".join(f"{_ENCODER.encode(k)}:{_encode_utf16_sorted(value[k])}" for k in keys) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_encode_utf16_sorted, value)) + "]"
    return _ENCODER.encode(value)


def _is_plain(value: Any) -> bool:
    """Say whether the fast encoder writes this value as the rules say: no float, no subclass, no key beyond ASCII.

    Its floats look otherwise (``1e16``, NaN as null), it takes what JSON cannot hold, and it sorts by code points.
    """
    kind = type(value)
    if kind is dict:
        for key, inner in value.items():
            if type(key) is not str or not key.isascii():
                return False
            if not (type(inner) is str or _is_plain(inner)):
                return False
        return True
    if kind is list or kind is tuple:
        return all(map(_is_plain, value))
    return kind is str or kind is int or value is None or kind is bool


def canonical_json(value: Any) -> str:
    """Return the one text of a JSON value. Raises ``ValueError`` or ``TypeError`` for what JSON cannot hold."""
    try:
        if _is_plain(value):
            return str(orjson.dumps(value, option=orjson.OPT_SORT_KEYS), "utf-8")
    except (TypeError, RecursionError):
        pass  # a lone surrogate, an integer of more than 64 bits, or too deep for it
    try:
        # Encoded first: what holds itself is refused there, and would be looked through without end here.
        text = _ENCODER.encode(value)
        return _encode_utf16_sorted(value) if _needs_utf16_order(value) else text
    except (
        AttributeError
    ) as error:  # looked for in keys only when it is too late: a check of each costs every commit
        raise TypeError("a key is no string") from error


def digest_of(value: Any) -> str:
    """Return the SHA-256 of the canonical text, in hex."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def record_digest(kind: str, text: str) -> bytes:
    """Return the digest of one record: SHA-256 over its kind, a NUL and its canonical text."""
    return hashlib.sha256(kind.encode() + b"\x00" + text.encode()).digest()


def first_tail(session_id: str) -> bytes:
    """Return the tail of an empty log."""
    return hashlib.sha256(session_id.encode()).digest()


def chain_tail(tail: bytes, seq: int, turn: int | None, digest: bytes) -> bytes:
    """Return the tail after one more record; the database computes the same under the head's lock (core 6)."""
    return hashlib.sha256(tail + struct.pack(">qi", seq, turn or 0) + digest).digest()

"""Checks of text and JSON that arrive at a door: what is refused, and the bound that the error names (decision 22)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from shared.domain.errors import InputTooLarge, InvalidInput

ID_MAX_CHARS = 256
TEXT_MAX_BYTES = 1024 * 1024
BODY_MAX_DEPTH = 64
BODY_MAX_BYTES = 1024 * 1024
TURN_BODY_MAX_BYTES = 24 * 1024 * 1024
RECORD_MAX_BYTES = 4 * 1024 * 1024
COMMIT_MAX_BYTES = 16 * 1024 * 1024
#: A commit always fits one read of the log.
COMMIT_MAX_RECORDS = 1_000
INTEGER_MAX_BITS = 3_322

_PRINTABLE_ASCII = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_SURROGATE = re.compile("[\ud800-\udfff]")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def check_identity(value: str, *, field: str) -> str:
    """Return ``value`` if it is 1 to 256 printable ASCII characters without outer blanks, else raise ``InvalidInput``."""
    if len(value) > ID_MAX_CHARS or not _PRINTABLE_ASCII.fullmatch(value):
        raise InvalidInput(
            f"{field} must be 1 to {ID_MAX_CHARS} printable ASCII characters without blanks at its ends",
            field=field,
            bound=f"1..{ID_MAX_CHARS} printable ASCII",
        )
    return value


def check_text(value: str, *, field: str, max_bytes: int = TEXT_MAX_BYTES) -> str:
    """Return ``value`` if it can be stored: no NUL, no lone surrogate, at most ``max_bytes`` of UTF-8."""
    if "\x00" in value:
        raise InvalidInput(f"{field} holds a NUL character", field=field, bound="no U+0000")
    if _SURROGATE.search(value):
        raise InvalidInput(f"{field} holds a lone surrogate", field=field, bound="well-formed Unicode")
    if len(value) * 4 > max_bytes and len(value.encode()) > max_bytes:
        raise InputTooLarge(
            f"{field} is larger than {max_bytes} bytes", field=field, bound=f"<= {max_bytes} bytes"
        )
    return value


def check_json(value: Any, *, field: str, max_depth: int = BODY_MAX_DEPTH) -> None:
    """Raise ``InvalidInput`` unless ``value`` is storable JSON: clean text, finite numbers, at most ``max_depth`` deep."""
    stack: list[tuple[Any, str, int]] = [(value, field, 1)]
    while stack:
        item, where, depth = stack.pop()
        if depth > max_depth:
            raise InvalidInput(
                f"{field} is nested deeper than {max_depth}", field=field, bound=f"depth <= {max_depth}"
            )
        match item:
            case Mapping():
                stack.extend(
                    (inner, f"{where}/{_checked_key(key, where)}", depth + 1) for key, inner in item.items()
                )
            case list() | tuple():
                stack.extend((inner, f"{where}/{n}", depth + 1) for n, inner in enumerate(item))
            case _:
                _check_scalar(item, where)


def _checked_key(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise InvalidInput(f"{where} has a key that is no string", field=where, bound="string keys")
    return check_text(key, field=where)


def _check_scalar(item: Any, where: str) -> None:
    match item:
        case str():
            check_text(item, field=where, max_bytes=COMMIT_MAX_BYTES)
        case bool() | None:
            pass
        case int() if item.bit_length() > INTEGER_MAX_BITS:
            raise InvalidInput(f"{where} has too many digits", field=where, bound=f"< 2**{INTEGER_MAX_BITS}")
        case float() if not math.isfinite(item):
            raise InvalidInput(f"{where} is not a finite number", field=where, bound="finite")
        case int() | float():
            pass
        case _:
            raise InvalidInput(f"{where} is no JSON value", field=where, bound="JSON")


def clean_text(value: str) -> tuple[str, bool]:
    """Return text from a model, a tool or a file with NUL and lone surrogates as U+FFFD, and whether any was replaced."""
    if not _UNSTORABLE.search(value):
        return value, False
    return _UNSTORABLE.sub("\ufffd", value), True


def clean_json(value: Any) -> Any:
    """Return ``value`` with :func:`clean_text` applied to every string and key in it."""
    match value:
        case str():
            return clean_text(value)[0]
        case Mapping():
            return {clean_text(str(k))[0]: clean_json(v) for k, v in value.items()}
        case list() | tuple():
            return [clean_json(v) for v in value]
        case _:
            return value

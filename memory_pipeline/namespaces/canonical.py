"""The one text of an encoded identity (RFC 8785) and its limits (NSP-16 to 20, 26, 30, 31).

Unlike :mod:`shared.domain.canonical`, numbers have JavaScript's form: an address is compared by systems of any language,
so ``1.0`` is ``1``, ``-0.0`` is ``0`` and ``1e21`` is ``1e+21``. An ``int`` beyond ±(2^53 - 1) is refused: other readers
would round it, and two identities would share an address. A ``float`` of that size is what it is everywhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Literal

from shared.domain.bounds import check_text
from shared.domain.errors import InputTooLarge, InvalidInput, NamespaceInvalid

ADDRESS_MAX_BYTES = 4_096
SAFE_INTEGER_MAX = 2**53 - 1
IDENTITY_MAX_DEPTH = 16
CONTAINER_MAX_ENTRIES = 128

Reason = Literal[
    "name",  # of the definition: length or text
    "version",  # of the definition: no positive safe integer
    "identity",  # does not decode by the definition's schema
    "value",  # no JSON value, or a number or text that has no one form
    "depth",
    "entries",
    "size",
    "unstable",  # another round trip through the codec changes it
    "malformed",  # no JSON
    "duplicate-keys",
    "format",  # an address of another format
    "other-definition",
    "other-version",
    "not-canonical",
]


def invalid(reason: Reason, message: str, *, field: str, bound: str) -> NamespaceInvalid:
    """Return the error. Messages never repeat what an identity holds (NSP-43)."""
    return NamespaceInvalid(message, field=field, bound=bound, reason=reason)


def utf16_length(text: str) -> int:
    """Return the number of UTF-16 code units of a text."""
    return len(text) + sum(character > "\uffff" for character in text)


def identity_text(value: object) -> str:
    """Return the canonical text of an encoded identity; raise ``NamespaceInvalid`` for what breaks a limit."""
    return _text(value, 1)


def number_text(value: float) -> str:
    """Return a finite number as ``JSON.stringify`` writes it (ECMA-262, Number::toString)."""
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    digits, point = _shortest_digits(abs(value))
    count = len(digits)
    if count <= point <= 21:
        return sign + digits + "0" * (point - count)
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if count > 1 else ""
    return f"{sign}{digits[0]}{fraction}e{point - 1:+d}"


def _shortest_digits(value: float) -> tuple[str, int]:
    """Return the shortest digits that read back as ``value``, and where the point stands in them."""
    mantissa, _, exponent = repr(value).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = whole + fraction
    point = len(whole) + int(exponent or 0)
    stripped = digits.lstrip("0")
    return stripped.rstrip("0"), point - (len(digits) - len(stripped))


def _text(value: object, depth: int) -> str:
    match value:
        case None | bool():
            return {None: "null", True: "true", False: "false"}[value]
        case str():
            return _string(value)
        case int():
            return _integer(value)
        case float():
            return _float(value)
        case Mapping():
            _check_container(len(value), depth)
            items = sorted(((_key(key), inner) for key, inner in value.items()), key=_utf16_order)
            return "{" + ",".join(f"{_string(key)}:{_text(inner, depth + 1)}" for key, inner in items) + "}"
        case list() | tuple():
            _check_container(len(value), depth)
            return "[" + ",".join(_text(inner, depth + 1) for inner in value) + "]"
        case _:
            raise invalid("value", "an identity holds what is no JSON value", field="identity", bound="JSON")


def _check_container(entries: int, depth: int) -> None:
    if depth > IDENTITY_MAX_DEPTH:
        raise invalid(
            "depth",
            f"an identity is nested deeper than {IDENTITY_MAX_DEPTH} levels",
            field="identity",
            bound=f"depth <= {IDENTITY_MAX_DEPTH}",
        )
    if entries > CONTAINER_MAX_ENTRIES:
        raise invalid(
            "entries",
            f"a container of an identity has more than {CONTAINER_MAX_ENTRIES} entries",
            field="identity",
            bound=f"<= {CONTAINER_MAX_ENTRIES} entries",
        )


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise invalid(
            "value", "an identity has a key that is no string", field="identity", bound="string keys"
        )
    return key


def _utf16_order(item: tuple[str, object]) -> bytes:
    return item[0].encode("utf-16-be", "surrogatepass")


def _string(value: str) -> str:
    try:
        # JSON escapes a NUL, so only what has no UTF-8 form is refused.
        check_text(value.replace("\x00", ""), field="identity", max_bytes=ADDRESS_MAX_BYTES)
    except InvalidInput as error:
        reason: Reason = "size" if isinstance(error, InputTooLarge) else "value"
        raise invalid(reason, error.message, field="identity", bound=error.bound) from error
    return json.dumps(value, ensure_ascii=False)


def _integer(value: int) -> str:
    if abs(value) > SAFE_INTEGER_MAX:
        raise invalid(
            "value", "an identity holds an unsafe integer", field="identity", bound="±(2^53 - 1) for integers"
        )
    return str(value)


def _float(value: float) -> str:
    if not math.isfinite(value):
        raise invalid(
            "value", "an identity holds a number that is not finite", field="identity", bound="finite"
        )
    return number_text(value)

"""Request bodies: bounded before they are parsed, then parsed strictly; what comes out can be stored (API-13)."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterable
from email.message import Message
from typing import Any, Final

from shared.domain.bounds import BODY_MAX_DEPTH, INTEGER_MAX_BITS, check_json, clean_text
from shared.domain.errors import InputTooLarge, InvalidInput, MalformedInput, UnsupportedMedia

#: Values, keys and brackets in one body: what a few bytes can unfold to is bounded as well as the bytes.
BODY_MAX_VALUES: Final = 200_000
#: Above this many bytes parsing leaves the event loop to others.
PARSE_ALOUD_MAX_BYTES: Final = 65_536
#: Decimal digits that a number of ``INTEGER_MAX_BITS`` bits needs, and a sign.
NUMBER_MAX_CHARS: Final = INTEGER_MAX_BITS * 30103 // 100_000 + 2
#: How much of a key that stands twice is repeated to the caller.
KEY_SHOWN_CHARS: Final = 80

# A string that never ends takes the rest of the body, so that each byte is looked at once.
_TOKEN: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z|\\\Z)|[\[{]|[\]}]|,', re.DOTALL)


async def read_bounded(chunks: AsyncIterable[bytes], *, declared: str | None, max_bytes: int) -> bytes:
    """Return the whole body; raise ``InputTooLarge`` as soon as it is known to hold more than ``max_bytes``.

    ``declared`` is the Content-Length header, which chunked bodies lack and which nobody has to believe.
    """
    if declared is not None and declared.isdecimal() and int(declared[:20]) > max_bytes:
        raise _too_large(max_bytes)
    parts: list[bytes] = []
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(max_bytes)
        parts.append(chunk)
    return b"".join(parts)


def check_media_type(content_type: str | None, content_encoding: str | None) -> None:
    """Raise ``UnsupportedMedia`` unless the headers say JSON in UTF-8, sent as it is."""
    if content_type == "application/json" and content_encoding is None:
        return  # as nearly everyone sends it
    if content_encoding not in (None, "", "identity"):
        raise UnsupportedMedia("compressed bodies are not read", header="Content-Encoding")
    message = Message()
    message["content-type"] = content_type or ""
    if content_type is None or message.get_content_type() != "application/json":
        raise UnsupportedMedia("the body must be application/json", header="Content-Type")
    charset = message.get_param("charset", "utf-8")
    if not isinstance(charset, str) or charset.lower() not in ("utf-8", "utf8"):
        raise UnsupportedMedia("the body must be UTF-8", header="Content-Type")


async def parse_body(raw: bytes) -> Any:
    """Parse a body; a large one in a thread of its own. Raises as :func:`parse_strictly`."""
    if len(raw) <= PARSE_ALOUD_MAX_BYTES:
        return parse_strictly(raw)
    return await asyncio.to_thread(parse_strictly, raw)


def parse_strictly(raw: bytes) -> Any:
    """Return the JSON value of ``raw``.

    ``MalformedInput`` (400): no UTF-8, no JSON, NaN or Infinity, a key twice in one object, deeper than
    ``BODY_MAX_DEPTH``. ``InvalidInput`` (422): more than ``BODY_MAX_VALUES`` values, numbers beyond their bounds,
    NUL characters and lone surrogates, however written.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedInput("the body is not UTF-8", position=error.start) from error
    _check_shape(text)
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise MalformedInput(f"the body is not JSON: {error.msg}", position=error.pos) from error
    # Containers are counted above; what stands in the innermost one may be one deeper.
    check_json(value, field="", max_depth=BODY_MAX_DEPTH + 1)
    return value


def _check_shape(text: str) -> None:
    """Bound depth and number of values before anything is built; free when the body cannot break either."""
    openers = text.count("[") + text.count("{")
    if openers <= BODY_MAX_DEPTH and 2 * openers + text.count(",") + text.count('"') < BODY_MAX_VALUES:
        return
    depth = 0
    for seen, token in enumerate(_TOKEN.finditer(text)):
        if seen >= BODY_MAX_VALUES:
            raise InvalidInput(
                "the body holds too many values", field="", bound=f"<= {BODY_MAX_VALUES} values"
            )
        match text[token.start()]:
            case "[" | "{":
                depth += 1
                if depth > BODY_MAX_DEPTH:
                    raise MalformedInput(
                        f"the body is nested deeper than {BODY_MAX_DEPTH}", bound=f"depth <= {BODY_MAX_DEPTH}"
                    )
            case "]" | "}":
                depth -= 1


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = next(key for key, count in counts.items() if count > 1)
        raise MalformedInput("an object has a key twice", key=clean_text(twice)[0][:KEY_SHOWN_CHARS])
    return found


def _refuse_constant(name: str) -> Any:
    raise MalformedInput(f"{name} is not JSON", bound="finite numbers")


def _integer(text: str) -> int:
    if len(text) > NUMBER_MAX_CHARS:
        raise InvalidInput("a number has too many digits", field="", bound=f"< 2**{INTEGER_MAX_BITS}")
    return int(text)


def _float(text: str) -> float:
    if len(text) > NUMBER_MAX_CHARS:
        raise InvalidInput("a number has too many digits", field="", bound=f"{NUMBER_MAX_CHARS} characters")
    return float(text)


#: Made once: to make one costs as much as most bodies take to be parsed.
_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_refuse_constant, parse_int=_integer, parse_float=_float
)


def _too_large(max_bytes: int) -> InputTooLarge:
    return InputTooLarge(
        f"the body is larger than {max_bytes} bytes", field="", bound=f"<= {max_bytes} bytes"
    )

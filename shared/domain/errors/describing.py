"""What a failed turn stores of its error."""

from __future__ import annotations

import json
from collections.abc import Iterator

from shared.domain.errors.conflicts import TurnClosed
from shared.domain.errors.families import TurnBeginError, TurnkeeperError
from shared.domain.errors.limits import Defect
from shared.domain.errors.outside import StoreBusy, StoreUnavailable
from shared.domain.errors.requests import InvalidInput, ReservedKind

MESSAGE_MAX_CHARS = 500


def code_of(error: BaseException) -> str:
    """Return the stable code a turn that fails with ``error`` stores (TRN-49 to TRN-54).

    A typed error keeps its own code; any other is ``turn.failed``.
    """
    return error.code if isinstance(error, TurnkeeperError) else "turn.failed"


def describe_error(error: BaseException) -> str:
    """Return the stored failure message, cut to ``MESSAGE_MAX_CHARS`` code points (TRN-49 to TRN-53, TRN-59).

    A typed error's own message; with its class's name before it when it says how a turn was refused or closed, its
    fields when it has no message. ``Class: message`` of any other.
    """
    text = _text_of(error)
    if isinstance(error, TurnkeeperError) and not text:
        text = json.dumps(error.fields, default=str, sort_keys=True)
    if _says_its_class(error):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text[:MESSAGE_MAX_CHARS]


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a host's exception may not even be able to say what it is
        return ""


def error_of(code: str, message: str) -> TurnkeeperError:
    """Return a stored failure as an error of the class that the code names, without its fields; a ``Defect`` for another."""
    kind = next((kind for kind in _subclasses(TurnkeeperError) if kind.code == code), Defect)
    return kind(message, field="", bound="") if issubclass(kind, InvalidInput) else kind(message)


def _subclasses(kind: type[TurnkeeperError]) -> Iterator[type[TurnkeeperError]]:
    for one in kind.__subclasses__():
        yield one
        yield from _subclasses(one)


def _says_its_class(error: BaseException) -> bool:
    if isinstance(error, StoreBusy | StoreUnavailable | Defect):
        return False
    return not isinstance(error, TurnkeeperError) or isinstance(
        error, TurnBeginError | TurnClosed | ReservedKind
    )

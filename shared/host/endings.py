"""How a turn ends: a pure function from what its body came to, to what ``turn.ended`` says (TRN-46 to TRN-65).

A body comes to one of two things: the :class:`TurnOutcome` that it returned, or what it raised. Whose code raised it
decides between ``turn.failed`` and ``turn.defect``, so each call across the border goes through :func:`call_host`
(ours calls the host's) or :func:`our_code` (the host's calls ours).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, ParamSpec, TypeGuard, TypeVar

from shared.domain.bounds import clean_text
from shared.domain.errors import (
    AttachmentRejected,
    Defect,
    HistoryModeConflict,
    InboxMoved,
    KeyConflict,
    NothingPending,
    NotResumable,
    RunIdReused,
    SessionBusy,
    SessionContended,
    SessionMissing,
    StoreBusy,
    StoreUnavailable,
    TaskLate,
    TurnDuplicate,
    TurnkeeperError,
    TurnRefused,
    code_of,
    describe_error,
)
from shared.turns.queue import Ending

P = ParamSpec("P")
T = TypeVar("T")

INTERRUPTED_CODE: Final = "turn.interrupted"

#: Every code that a turn may be refused with at its beginning, and the HTTP status that suits it (TRN-33).
TURN_BEGIN_CODES: Final[Mapping[str, int]] = MappingProxyType(
    {
        SessionBusy.code: 409,
        TurnDuplicate.code: 409,
        RunIdReused.code: 409,
        NothingPending.code: 409,
        InboxMoved.code: 409,
        HistoryModeConflict.code: 409,
        KeyConflict.code: 422,
        NotResumable.code: 422,
        AttachmentRejected.code: 422,
        SessionMissing.code: 404,
        TurnRefused.code: 503,
        SessionContended.code: 503,
        StoreBusy.code: 503,
        StoreUnavailable.code: 503,
    }
)


@dataclass(frozen=True, slots=True)
class TurnOutcome:
    """What a body returns: how the turn went, and what the user is told (TRN-14)."""

    outcome: Literal["completed", "partial", "failed"] = "completed"
    reply: str | None = None


class HostFailure(Exception):
    """Carries what a host's callable raised, untyped, through our code; ``error`` is it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(describe_error(error))
        self.error = error


async def call_host(function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a host's callable: the border at which its exceptions become its own (decision 3).

    A typed error and a cancellation of this task pass unchanged; anything else is raised as ``HostFailure``.
    """
    try:
        return await function(*args, **kwargs)
    except (TurnkeeperError, HostFailure):
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise HostFailure(error) from error  # a task of the host's own was cancelled, not this one
    except (Exception, BaseExceptionGroup) as error:
        raise HostFailure(error) from error


@contextmanager
def our_code() -> Iterator[None]:
    """Run code of ours that a host calls: what is neither typed nor a host's own is raised as ``Defect`` (TRN-56)."""
    try:
        yield
    except (TurnkeeperError, HostFailure):
        raise
    except Exception as error:
        raise Defect(describe_error(error)) from error


def defects_as_failures(error: BaseException) -> BaseException:
    """Return the error that a turn failed with: what a host raised, and a typed error that came as a defect, unwrapped."""
    while True:
        match error:
            case HostFailure():
                error = error.error
            case Defect(__cause__=TurnkeeperError() as cause):
                error = cause
            case _:
                return error


def is_turn_error(error: object) -> TypeGuard[TurnkeeperError]:
    """Say whether this is an error of ours, which keeps its code (TRN-65)."""
    return isinstance(error, TurnkeeperError)


def cause_of(error: BaseException) -> BaseException:
    """Return the one error that decides: of a group the first that is no cancellation (TRN-58)."""
    error = defects_as_failures(error)
    if not isinstance(error, BaseExceptionGroup):
        return error
    causes = [cause_of(one) for one in error.exceptions]
    return next((one for one in causes if not isinstance(one, asyncio.CancelledError)), causes[0])


def turn_ending_of(exit: TurnOutcome | BaseException, usage: Mapping[str, int] | None = None) -> Ending:
    """Return the ending of a turn whose body returned, or raised, this (TRN-48 to TRN-59).

    ``usage`` is the turn's total. A failure's message is storable text of at most 500 code points.
    """
    spent = dict(usage or {})
    if isinstance(exit, TurnOutcome):
        return Ending(exit.outcome, usage=spent)
    error = cause_of(exit)
    if isinstance(error, asyncio.CancelledError):
        return Ending("interrupted", INTERRUPTED_CODE, usage=spent)
    if isinstance(error, TaskLate):
        return Ending("interrupted", error.code, usage=spent)
    code = code_of(error) if isinstance(error, Exception) else Defect.code
    return Ending("failed", code, clean_text(describe_error(error))[0], usage=spent)

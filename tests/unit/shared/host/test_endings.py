"""How a turn ends: every row of the table of endings, and whose error decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from producer.problems import status_of
from shared.domain import errors as e
from shared.host.endings import (
    TURN_BEGIN_CODES,
    HostFailure,
    TurnOutcome,
    call_host,
    defects_as_failures,
    is_turn_error,
    our_code,
    turn_ending_of,
)
from shared.turns.queue import Ending

BEGIN_ERRORS = (
    e.SessionBusy,
    e.TurnDuplicate,
    e.KeyConflict,
    e.RunIdReused,
    e.NothingPending,
    e.InboxMoved,
    e.HistoryModeConflict,
    e.NotResumable,
    e.TurnRefused,
    e.AttachmentRejected,
    e.SessionMissing,
    e.SessionContended,
    e.StoreBusy,
    e.StoreUnavailable,
)


class Coded(Exception):
    """A foreign error that happens to have a code."""

    code = "mine"


class Mute(Exception):
    """An error that cannot say what it is."""

    def __str__(self) -> str:
        raise ValueError("mute")


def failed(code: str, failure: str) -> Ending:
    return Ending("failed", code, failure)


@pytest.mark.behaviour("TRN-48", "TRN-47", "TRN-46")
@pytest.mark.parametrize("outcome", ["completed", "partial", "failed"])
def test_a_turn_that_returned_ends_as_it_returned_and_has_no_code(outcome: Any) -> None:
    assert turn_ending_of(TurnOutcome(outcome, "text"), {"input_tokens": 3}) == Ending(
        outcome, usage={"input_tokens": 3}
    )


@pytest.mark.behaviour("TRN-49", "TRN-50", "TRN-51", "TRN-52", "TRN-53", "TRN-54", "TRN-57")
@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (e.ModelAuthFailed("who are you"), failed("model.auth", "who are you")),
        (e.SessionBusy("one is open", turn=3), failed("session.busy", "SessionBusy: one is open")),
        (e.SessionBusy("", turn=3), failed("session.busy", 'SessionBusy: {"turn": 3}')),
        (
            e.TurnClosed("it was cancelled", reason="cancelled"),
            failed("turn.closed", "TurnClosed: it was cancelled"),
        ),
        (e.ReservedKind("not yours"), failed("events.reserved", "ReservedKind: not yours")),
        (e.StoreUnavailable("gone"), failed("store.unavailable", "gone")),
        (e.CorruptRecord("seq 3"), failed("session.decode", "seq 3")),
        (ValueError("no"), failed("turn.failed", "ValueError: no")),
        (Coded("no"), failed("turn.failed", "Coded: no")),
        (ValueError(), failed("turn.failed", "ValueError")),
        (Mute(), failed("turn.failed", "Mute")),
        (HostFailure(ValueError("no")), failed("turn.failed", "ValueError: no")),
        (e.Defect("KeyError: 'k'"), failed("turn.defect", "KeyError: 'k'")),
        (SystemExit(1), failed("turn.defect", "SystemExit: 1")),
        (asyncio.CancelledError(), Ending("interrupted", "turn.interrupted")),
    ],
)
def test_what_a_turn_raised_decides_its_reason_code_and_message(error: BaseException, ending: Ending) -> None:
    assert turn_ending_of(error) == ending


@pytest.mark.behaviour("TRN-58")
def test_an_error_wins_over_an_interruption_wherever_it_stands_in_the_group() -> None:
    cancelled, error = asyncio.CancelledError(), ValueError("no")
    for inner in ([cancelled, error], [error, cancelled], [BaseExceptionGroup("", [cancelled, error])]):
        group = BaseExceptionGroup("both", [asyncio.CancelledError(), *inner])
        assert turn_ending_of(group) == failed("turn.failed", "ValueError: no")
    typed = BaseExceptionGroup("typed", [cancelled, e.ModelRefused("no")])
    assert turn_ending_of(HostFailure(typed)) == failed("model.refused", "no")
    assert turn_ending_of(BaseExceptionGroup("none", [cancelled])).outcome == "interrupted"


@pytest.mark.behaviour("TRN-59")
def test_a_failure_of_501_characters_is_cut_to_500_and_is_storable() -> None:
    assert turn_ending_of(e.ModelRefused("é" * 501)).failure == "é" * 500
    assert turn_ending_of(ValueError("a\x00b\ud800")).failure == "ValueError: a\ufffdb\ufffd"


@pytest.mark.behaviour("TRN-55", "TRN-56", "TRN-64")
def test_a_typed_error_carried_as_a_defect_keeps_its_class_and_code() -> None:
    typed = e.ModelRefused("no")
    defect = e.Defect("carried")
    defect.__cause__ = typed
    assert defects_as_failures(defect) is typed
    assert defects_as_failures(HostFailure(defect)) is typed
    assert turn_ending_of(defect) == failed("model.refused", "no")
    other = e.Defect("KeyError: 'k'")
    other.__cause__ = KeyError("k")
    assert defects_as_failures(other) is other


@pytest.mark.behaviour("TRN-65")
def test_an_error_of_ours_is_recognised_and_a_look_alike_is_not() -> None:
    assert is_turn_error(e.TurnClosed("x"))
    assert not is_turn_error(Coded())
    assert not is_turn_error("turn.closed")


@pytest.mark.behaviour("TRN-29", "TRN-30", "TRN-32", "TRN-33")
def test_every_begin_refusal_is_caught_by_one_class_and_has_a_code_with_a_status() -> None:
    assert dict(TURN_BEGIN_CODES) == {kind.code: status_of(kind("no")) for kind in BEGIN_ERRORS}
    for kind in BEGIN_ERRORS:
        assert issubclass(kind, e.TurnBeginError)
        assert turn_ending_of(kind("no")).code == kind.code
    assert not issubclass(e.TurnClosed, e.TurnBeginError)


async def raising(error: BaseException) -> NoReturn:
    raise error


@pytest.mark.behaviour("TRN-52", "TRN-54", "TRN-56")
async def test_whose_code_raised_an_untyped_error_decides_between_failed_and_defect() -> None:
    async def host_calls_ours() -> None:
        with our_code():
            raise KeyError("k")

    with pytest.raises(e.Defect) as ours:
        await call_host(host_calls_ours)
    assert turn_ending_of(ours.value) == failed("turn.defect", "KeyError: 'k'")
    with pytest.raises(HostFailure) as hosts, our_code():
        await call_host(raising, KeyError("k"))
    assert turn_ending_of(hosts.value) == failed("turn.failed", "KeyError: 'k'")


@pytest.mark.parametrize("make", [lambda: e.ModelRefused("no"), lambda: HostFailure(ValueError())])
async def test_what_has_a_class_of_its_own_crosses_the_border_unchanged(
    make: Callable[[], Exception],
) -> None:
    error = make()
    with pytest.raises(type(error)) as raised, our_code():
        await call_host(raising, error)
    assert raised.value is error


@pytest.mark.behaviour("TRN-57")
async def test_only_a_cancellation_of_this_task_crosses_the_border_as_one() -> None:
    with pytest.raises(HostFailure) as foreign:
        await call_host(raising, asyncio.CancelledError())
    assert turn_ending_of(foreign.value).code == "turn.interrupted"
    own = asyncio.create_task(call_host(asyncio.Event().wait))
    await asyncio.sleep(0)
    own.cancel()
    with pytest.raises(asyncio.CancelledError):
        await own

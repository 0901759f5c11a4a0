"""Calls that are made again: which errors pass, how often, and that a success costs one call."""

from __future__ import annotations

import asyncio

import pytest

from shared.domain.errors import StoreBusy, StoreUnavailable, TurnRefused, Unavailable
from shared.domain.retrying import retried


class Calls:
    """A call that fails with these errors, one after the other, and then answers how often it was made."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.made = 0

    async def __call__(self) -> int:
        self.made += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.made


async def test_a_call_that_succeeds_is_made_once() -> None:
    call = Calls()
    assert await retried(call, when=Unavailable, pause_max_s=0.0) == 1


async def test_a_call_is_made_again_until_it_answers() -> None:
    call = Calls(StoreBusy("busy"), StoreUnavailable("away"), StoreBusy("busy"))
    assert await retried(call, when=Unavailable, pause_max_s=0.0) == 4


async def test_the_last_error_is_raised_after_so_many_tries() -> None:
    call = Calls(StoreBusy("first"), StoreBusy("second"), StoreBusy("third"))
    with pytest.raises(StoreBusy, match="second"):
        await retried(call, when=Unavailable, tries=2, pause_max_s=0.0)
    assert call.made == 2


async def test_one_try_is_one_call() -> None:
    call = Calls(StoreBusy("first"))
    with pytest.raises(StoreBusy, match="first"):
        await retried(call, when=Unavailable, tries=1, pause_max_s=0.0)
    assert call.made == 1


@pytest.mark.parametrize("made_before", [0, 1])
async def test_an_error_that_does_not_pass_is_raised_at_once(made_before: int) -> None:
    call = Calls(*[StoreBusy("busy")] * made_before, ValueError("no"), StoreBusy("never seen"))
    with pytest.raises(ValueError, match="no"):
        await retried(call, when=Unavailable, pause_max_s=0.0)
    assert call.made == made_before + 1


async def test_an_exception_to_what_passes_is_raised_at_once() -> None:
    class Refused(StoreBusy): ...

    call = Calls(StoreBusy("busy"), Refused("no"))
    with pytest.raises(Refused):
        await retried(call, when=Unavailable, unless=Refused, pause_max_s=0.0)
    assert call.made == 2


async def test_the_last_error_is_raised_once_it_is_time() -> None:
    call = Calls(*[StoreBusy("busy")] * 9)
    with pytest.raises(StoreBusy):
        await retried(call, when=Unavailable, pause_max_s=0.0, until=lambda: call.made >= 3)
    assert call.made == 3


async def test_a_cancelled_call_is_not_made_again() -> None:
    call = Calls(StoreBusy("busy"), asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        await retried(call, when=Unavailable, pause_max_s=0.0)
    assert call.made == 2


def test_a_hosts_refusal_counts_as_unavailable_and_has_to_be_excepted() -> None:
    assert issubclass(TurnRefused, Unavailable)

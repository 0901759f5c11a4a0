"""Calls that are made again while what they ask is away; one that succeeds at once costs no more than itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_random_exponential

T = TypeVar("T")

FIRST_PAUSE_S: Final = 0.05


async def retried(
    call: Callable[[], Awaitable[T]],
    *,
    when: type[Exception],
    unless: type[Exception] | tuple[()] = (),
    pause_max_s: float,
    first_pause_s: float = FIRST_PAUSE_S,
    tries: int | None = None,
    until: Callable[[], bool] | None = None,
) -> T:
    """Return what ``call`` answers; make it again after an error of ``when`` that is none of ``unless``; raise any other.

    Pauses are random below a bound that doubles from ``first_pause_s`` to ``pause_max_s`` seconds. The last error is
    raised after ``tries`` tries in all, or once ``until`` says that it is time; without either there is no end but
    cancellation.
    """

    def passes(error: BaseException) -> bool:
        return isinstance(error, when) and not isinstance(error, unless)

    try:
        return await call()
    except Exception as error:
        if not passes(error):
            raise
        failed: Exception | None = error

    async def again() -> T:
        # The first try was made above: its error is what the retrying begins with.
        nonlocal failed
        if failed is not None:
            first, failed = failed, None
            raise first
        return await call()

    def is_over(state: RetryCallState) -> bool:
        return (tries is not None and state.attempt_number >= tries) or (until is not None and until())

    retrying = AsyncRetrying(
        retry=retry_if_exception(passes),
        wait=wait_random_exponential(multiplier=first_pause_s, max=pause_max_s),
        stop=is_over,
        reraise=True,
    )
    return await retrying(again)

"""The pool's hold on Celery's stop signals."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest
from celery import signals

from workers.pool import hear_stop_signals


@pytest.fixture
def heard() -> Iterator[list[str]]:
    """What a receiver hears while the test runs."""
    lock, calls = signals.worker_shutting_down.lock, []

    def receive(how: str, **_: object) -> None:
        calls.append(how)

    hear_stop_signals(receive)
    yield calls
    signals.worker_shutting_down.lock = lock
    signals.worker_shutting_down.disconnect(receive)


@pytest.mark.behaviour("DST-18")
def test_a_second_stop_signal_that_interrupts_the_first_is_heard_and_hangs_nothing(heard: list[str]) -> None:
    def first() -> None:
        with signals.worker_shutting_down.lock:  # where the second signal's handler finds the first one's
            signals.worker_shutting_down.send(sender="w", sig=signal.SIGQUIT, how="Cold", exitcode=1)

    handler = threading.Thread(target=first, daemon=True)
    handler.start()
    handler.join(5)
    assert not handler.is_alive()
    assert heard == ["Cold"]

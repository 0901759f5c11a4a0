"""SIGINT and SIGTERM of a supervisor: the first one unwinds it, each later one kills instead of waiting."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


@contextmanager
def stop_signals() -> Iterator[list[Callable[[], None]]]:
    """Turn the first signal into ``KeyboardInterrupt``; each later one runs the callables put into the yielded list.

    For the main thread.
    """
    on_repeat: list[Callable[[], None]] = []
    seen = False

    def handle(signum: int, frame: FrameType | None) -> None:
        nonlocal seen
        if not seen:
            seen = True
            raise KeyboardInterrupt
        for act in on_repeat:
            act()

    before = {signum: signal.signal(signum, handle) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield on_repeat
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def wait_for_stop() -> NoReturn:
    """Wait in the main thread until a handler of :func:`stop_signals` raises ``KeyboardInterrupt``.

    The kernel may hand a signal to any thread when two arrive at once, and the main thread would sleep on in a lock's
    wait; Python's wake-up descriptor is written whichever thread it was.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer)
    try:
        while True:
            os.read(reader, 64)
    finally:
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)

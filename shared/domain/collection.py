"""The garbage collector of a server process: off while the process loads and builds, blind afterwards for what it is made of."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: Allocations without their release before the youngest objects are looked at. Python's own 700 are passed several times in
#: one turn; less often, most of what a turn leaves in circles is found dead at once (decision 0023).
YOUNG_MAX: Final = 10_000


@contextmanager
def started_uncollected() -> Iterator[None]:
    """Collect nothing in the block, and leave what exists at its end out of every later collection.

    Modules, classes and parts live as long as their process: some 160,000 objects, which each whole collection would look
    at while the event loop stands still. The youngest ones are looked at less often from then on. A block that raises changes
    nothing. For the start of a server process, once.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
        gc.set_threshold(YOUNG_MAX, *gc.get_threshold()[1:])
    finally:
        if was_on:
            gc.enable()

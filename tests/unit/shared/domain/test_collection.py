"""A process starts without collections, and what it is made of is left out of those that come later."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from shared.domain.collection import YOUNG_MAX, started_uncollected


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """Leave the collector of the test process as it was."""
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)
    gc.unfreeze()
    gc.enable()


def test_nothing_is_collected_in_the_block_and_the_collector_is_on_after_it() -> None:
    with started_uncollected():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_what_exists_at_the_end_is_left_out_and_what_comes_later_is_not() -> None:
    with started_uncollected():
        parts: list[list[int]] = [[]]
    later: list[list[int]] = [[]]
    looked_at = gc.get_objects()
    assert gc.get_freeze_count() > 0
    assert not any(one is parts for one in looked_at)
    assert any(one is later for one in looked_at)


def test_the_youngest_are_looked_at_less_often_afterwards() -> None:
    young, middle, old = gc.get_threshold()
    with started_uncollected():
        assert gc.get_threshold() == (young, middle, old)
    assert gc.get_threshold() == (YOUNG_MAX, middle, old)
    assert young < YOUNG_MAX


def test_block_that_raises_leaves_nothing_out() -> None:
    with pytest.raises(ValueError, match="no"), started_uncollected():
        raise ValueError("no")
    assert (gc.isenabled(), gc.get_freeze_count()) == (True, 0)


def test_collector_that_was_off_stays_off() -> None:
    gc.disable()
    with started_uncollected():
        pass
    assert not gc.isenabled()

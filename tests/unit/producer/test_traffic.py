"""What is in flight, and the drain."""

from __future__ import annotations

import pytest

from producer.traffic import Traffic
from shared.domain.errors import Draining


@pytest.mark.behaviour("API-15")
async def test_a_draining_process_admits_nothing_more_and_lets_what_began_end() -> None:
    traffic = Traffic()
    with traffic.admitting():
        traffic.begin_drain()
        assert traffic.admissions == 1
    assert traffic.admissions == 0
    with pytest.raises(Draining) as refused, traffic.admitting():
        pass
    assert refused.value.code == "turn.refused"
    assert traffic.admissions == 0


def test_counts_return_to_zero_when_what_they_count_fails() -> None:
    traffic = Traffic()
    for count in (traffic.request, traffic.admitting, traffic.stream):
        with pytest.raises(ZeroDivisionError), count():
            raise ZeroDivisionError
    assert (traffic.requests, traffic.admissions, traffic.streams) == (0, 0, 0)

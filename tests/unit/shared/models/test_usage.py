"""Token usage: whatever a provider reports, the value holds its invariants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.models.types import TOKENS_MAX, Usage, token_usage

COUNTS = st.one_of(
    st.none(), st.booleans(), st.integers(-10, 10**30), st.floats(allow_nan=True), st.text(max_size=2)
)


@pytest.mark.behaviour("USE-08", "USE-09", "USE-10", "USE-11", "USE-13", "USE-14", "USE-15")
@given(given_input=COUNTS, given_output=COUNTS, read=COUNTS, write=COUNTS, reasoning=COUNTS)
def test_any_counts_give_a_usage_that_holds_together(
    given_input: object, given_output: object, read: object, write: object, reasoning: object
) -> None:
    usage = token_usage(
        input_tokens=given_input,
        output_tokens=given_output,
        cache_read_tokens=read,
        cache_write_tokens=write,
        reasoning_tokens=reasoning,
    )
    assert usage.cache_read_tokens + usage.cache_write_tokens <= usage.input_tokens <= 2 * TOKENS_MAX
    assert usage.reasoning_tokens <= usage.output_tokens <= TOKENS_MAX
    assert min(usage.cache_read_tokens, usage.cache_write_tokens, usage.reasoning_tokens) >= 0
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.uncached_input_tokens >= 0


@pytest.mark.behaviour("USE-13", "USE-14")
def test_totals_below_their_parts_are_raised_to_them() -> None:
    usage = token_usage(
        input_tokens=5, output_tokens=1, cache_read_tokens=4, cache_write_tokens=3, reasoning_tokens=2
    )
    assert usage == Usage(
        input_tokens=7, output_tokens=2, cache_read_tokens=4, cache_write_tokens=3, reasoning_tokens=2
    )


def test_usages_add_up_count_by_count() -> None:
    assert Usage(1, 2, 3, 4, 5) + Usage(10, 20, 30, 40, 50) == Usage(11, 22, 33, 44, 55)
    assert sum([Usage(1, 1), Usage(2, 2)], Usage()) == Usage(3, 3)

"""How a state machine draws its steps and is run: the same examples each time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.stateful.sides import Side

T = TypeVar("T")
Step = st.SearchStrategy[tuple[str, Mapping[str, Any]]]

#: Which of the things that are there just now: a machine takes it modulo their number.
picks = st.integers(0, 11)


def at(found: Sequence[T], pick: int) -> T:
    """Pick one of what is there."""
    return found[pick % len(found)]


def often(weight: int, step: Callable[..., None], /, **given: st.SearchStrategy[Any]) -> list[Step]:
    """Return a machine's step with what it is drawn with, as many times as it shall stand among the others."""
    # Each one is an object of its own: the same one twice would count once.
    return [st.tuples(st.just(step.__name__), st.fixed_dictionaries(given)) for _ in range(weight)]


def search(
    machine: type[RuleBasedStateMachine], *sides: Side, examples: int, steps: int, shrinks: bool = True
) -> None:
    """Run the machine over these stores; with ``shrinks`` a failure is shown in as few steps as can be found."""
    phases = [Phase.generate, Phase.shrink] if shrinks else [Phase.generate]
    how = settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=True,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )
    factory = cast(type[RuleBasedStateMachine], partial(machine, *sides))  # any maker of machines will do
    run_state_machine_as_test(factory, settings=how)

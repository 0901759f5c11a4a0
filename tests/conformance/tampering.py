"""Adapters with one fault: a method of theirs asks, answers or refuses otherwise than it should."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import pytest

from shared.conformance import ConformanceCheck, ConformanceFailure
from shared.domain.errors import TurnkeeperError
from tests.conformance.kits import names_of

T = TypeVar("T")
#: What stands in a method's place: it gets the real method and the call's arguments.
Fault = Callable[..., Awaitable[Any]]
Faults = Mapping[str, Fault]


class _Tampered:
    def __init__(self, adapter: object, faults: Faults) -> None:
        self._adapter, self._faults = adapter, faults

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._adapter, name)
        return partial(self._faults[name], real) if name in self._faults else real


def tampered(adapter: T, **faults: Fault) -> T:
    """Return the adapter with these methods replaced."""
    return cast(T, _Tampered(adapter, faults))


def asks(*changes: Callable[[Any], Any], **given: Any) -> Fault:
    """Ask for something else: its positional arguments changed one by one, and named ones replaced."""

    async def fault(real: Fault, *args: Any, **named: Any) -> Any:
        changed = [change(arg) for change, arg in zip(changes, args, strict=False)]
        return await real(*changed, *args[len(changes) :], **{**named, **given})

    return fault


def answers(change: Callable[..., Any]) -> Fault:
    """Do what is asked, and answer something else."""

    async def fault(real: Fault, *args: Any, **named: Any) -> Any:
        return change(await real(*args, **named))

    return fault


def pretends(answer: Callable[..., Any]) -> Fault:
    """Do nothing of what is asked, and answer as if."""

    async def fault(real: Fault, *args: Any, **named: Any) -> Any:
        return answer(*args, **named)

    return fault


def hides(error: type[TurnkeeperError], answer: Callable[..., Any]) -> Fault:
    """Do what is asked, and answer something instead of refusing."""

    async def fault(real: Fault, *args: Any, **named: Any) -> Any:
        try:
            return await real(*args, **named)
        except error:
            return answer(*args, **named)

    return fault


def same(value: T) -> T:
    """Leave an argument as it is."""
    return value


async def require_failure(checks: Sequence[ConformanceCheck], name: str) -> None:
    """Require that the check of this name fails, and says so by it."""
    [check] = [check for check in checks if check.name == name]
    with pytest.raises(ConformanceFailure) as failure:
        await check.run()
    assert str(failure.value).startswith(f"{name}: ")


def require_fault_for_each(checks: Sequence[ConformanceCheck], faulted: Sequence[str]) -> None:
    """Require that every check of a kit has a fault that it is tried on, and no fault a check that is gone."""
    assert sorted(set(faulted)) == sorted(names_of(checks))

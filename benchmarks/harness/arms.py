"""Arms, the subject and its baselines, measured in turn: forward and back (ABBA), so that a drift of the machine hits all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from benchmarks.harness.quantiles import Repeats
from producer.dev.places import Say

T = TypeVar("T")

#: An even number: each arm runs as often before its neighbours as after them.
ROUNDS: Final = 4
#: A short run has two, the least with both orders.
ROUNDS_MIN: Final = 2
SHORT_S: Final = 20.0
#: Of each arm once, before anything is measured.
WARM_UP_S: Final = 1.5


@dataclass(frozen=True, slots=True)
class Arm:
    """One thing to measure. ``measure(seconds)`` runs one block and returns its figures by name.

    ``share`` is its part of the time beside the other arms. ``warm_up`` False: nothing of it is warmer the second time.
    """

    name: str
    measure: Callable[[float], Awaitable[Mapping[str, float]]]
    share: float = 1.0
    warm_up: bool = True


@dataclass(slots=True)
class Measured:
    """What the blocks of a run came to, by figure."""

    blocks: dict[str, list[float]] = field(default_factory=dict)

    def add(self, figures: Mapping[str, float]) -> None:
        """Take one block's figures."""
        for name, value in figures.items():
            self.blocks.setdefault(name, []).append(value)

    def repeats(self) -> dict[str, Repeats]:
        """Return every figure over its blocks."""
        return {name: Repeats(tuple(values)) for name, values in self.blocks.items()}

    def median(self, name: str) -> float:
        """Return a figure's median; raise ``KeyError`` for one that no block gave."""
        return Repeats(tuple(self.blocks[name])).median

    def ratio(self, name: str, to: str) -> float:
        """Return one figure's median as a multiple of another's; 0 when that is 0."""
        below = self.median(to)
        return self.median(name) / below if below else 0.0


def in_turn(arms: Sequence[T], rounds: int) -> Iterator[T]:
    """Yield every arm once a round: the first round as they stand, the next one back, and so on."""
    for n in range(rounds):
        yield from arms if n % 2 == 0 else reversed(arms)


def block_lengths(arms: Sequence[Arm], seconds: float, rounds: int) -> dict[str, float]:
    """Return the seconds of one block of each arm, so that all blocks together take ``seconds``."""
    whole = sum(arm.share for arm in arms)
    return {arm.name: seconds * arm.share / whole / rounds for arm in arms}


async def measure_in_turn(
    arms: Sequence[Arm], seconds: float, say: Say, *, on_warm: Callable[[], None] = lambda: None
) -> Measured:
    """Warm every arm up, then measure them in turn, ``seconds`` in all; nothing runs beside a block but idle processes.

    ``on_warm`` is called between the two: what was counted before it is of no block.
    """
    rounds = ROUNDS if seconds > SHORT_S else ROUNDS_MIN
    lengths = block_lengths(arms, seconds, rounds)
    for arm in arms:
        if arm.warm_up:
            await arm.measure(min(WARM_UP_S, 2 * lengths[arm.name]))
    on_warm()
    measured = Measured()
    for n, arm in enumerate(in_turn(arms, rounds), start=1):
        figures = await arm.measure(lengths[arm.name])
        measured.add(figures)
        first = ", ".join(f"{name} {value:,.2f}" for name, value in list(figures.items())[:3])
        say(f"  {n:>2}/{rounds * len(arms)}  {arm.name:<24} {first}")
    return measured

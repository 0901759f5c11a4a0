"""A benchmark's outcome: figures over their blocks, ratios against targets, exact counts; as a table and as one JSON object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from benchmarks.harness.quantiles import Repeats

#: Of the JSON object; another number when a name changes what it means.
REPORT_VERSION: Final = 1
DIGITS: Final = 4
#: Shares of one turn below this are noise of the background.
NOTHING: Final = 0.005

Verdict = Literal["aim", "floor", "missed"]


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure should reach. ``at_most`` says that less is better."""

    figure: str
    floor: float
    aim: float
    at_most: bool = False

    def judge(self, value: float) -> Verdict:
        """Say how far a value reaches."""
        sign = -1 if self.at_most else 1
        if sign * value >= sign * self.aim:
            return "aim"
        return "floor" if sign * value >= sign * self.floor else "missed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a run came to. Rates are per second, names that end in ``_ms`` milliseconds, ``ratio_`` ones plain numbers.

    ``repeats`` are the figures of blocks, ``ratios`` what is made of their medians, ``counts`` what was counted exactly (each of
    one turn unless its name says otherwise). ``tables`` are counts by name, ``defects`` says why the figures are worth
    nothing: one line each, none for a sound run.
    """

    benchmark: str
    seconds: float
    machine: Mapping[str, Any]
    repeats: Mapping[str, Repeats]
    ratios: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, float] = field(default_factory=dict)
    tables: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    targets: Sequence[Target] = ()
    notes: Sequence[str] = ()
    defects: Sequence[str] = ()

    def values(self) -> dict[str, float]:
        """Return every single figure by name: medians of blocks, ratios and counts."""
        medians = {name: one.median for name, one in self.repeats.items()}
        return medians | dict(self.ratios) | dict(self.counts)

    def figures(self) -> dict[str, Any]:
        """Return the whole report as one JSON object."""
        values = self.values()
        return {
            "benchmark": self.benchmark,
            "version": REPORT_VERSION,
            "ok": not self.defects,
            "seconds": self.seconds,
            **{name: _rounded(value) for name, value in values.items()},
            "repeats": {name: _repeats(one) for name, one in self.repeats.items()},
            "tables": {
                name: {k: _rounded(v) for k, v in table.items()} for name, table in self.tables.items()
            },
            "targets": [_target(target, values[target.figure]) for target in self.targets],
            "machine": dict(self.machine),
            "notes": list(self.notes),
            "defects": list(self.defects),
        }

    def table(self) -> str:
        """Return the report for people."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        values = self.values()
        width = max(map(len, [*values, *(name for table in self.tables.values() for name in table)]))
        yield f"\n{self.benchmark}: medians of blocks, {self.seconds:g} s measured in all"
        yield f"  {'':<{width}} {'median':>12} {'quartiles':>25} {'spread':>7}"
        for name, one in self.repeats.items():
            low, high = one.quartiles
            yield f"  {name:<{width}} {one.median:>12,.2f} {f'{low:,.2f} - {high:,.2f}':>25} {one.spread:>7.0%}"
        for title, part in (("ratios", self.ratios), ("counts", self.counts), *self.tables.items()):
            if part:
                yield title
            for name, value in part.items():
                yield f"  {name:<{width}} {value:>12,.2f}"
        if self.targets:
            yield "targets"
        for target in self.targets:
            value = values[target.figure]
            sign = "<=" if target.at_most else ">="
            bounds = f"floor {sign} {target.floor:g}, aim {sign} {target.aim:g}"
            yield f"  {target.figure:<{width}} {value:>12,.2f}  {target.judge(value):<7} {bounds}"
        yield "machine: " + ", ".join(f"{name} {value}" for name, value in self.machine.items())
        yield from (f"note: {note}" for note in self.notes)
        yield from (f"DEFECT: {defect}" for defect in self.defects)


def each(totals: Mapping[str, float], count: int, *, least: float = NOTHING) -> dict[str, float]:
    """Return totals as shares of one of ``count``, the largest first, without those under ``least``.

    Processor times are given with ``least=0``: the system counts them in ticks of 10 ms, and a process that
    used less than one in a short run was watched all the same.
    """
    shares = {name: value / count for name, value in totals.items()}
    ordered = sorted(shares.items(), key=lambda pair: -pair[1])
    return {name: share for name, share in ordered if share >= least}


def _repeats(one: Repeats) -> dict[str, Any]:
    low, high = one.quartiles
    return {
        "median": _rounded(one.median),
        "q1": _rounded(low),
        "q3": _rounded(high),
        "spread": _rounded(one.spread),
        "blocks": [_rounded(value) for value in one.values],
    }


def _target(target: Target, value: float) -> dict[str, Any]:
    return {
        "figure": target.figure,
        "value": _rounded(value),
        "floor": target.floor,
        "aim": target.aim,
        "at_most": target.at_most,
        "reached": target.judge(value),
    }


def _rounded(value: float) -> float:
    return round(value, DIGITS)

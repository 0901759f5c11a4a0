"""The figures of a run, and what makes it a failed one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from producer.dev.torture.judging.judgement import Judgement
from producer.dev.torture.schedule import Fault

#: From this length on a run must have met every kind of fault, and refused stale writes.
WHOLE_RUN_S: Final = 60.0
#: What a turn may stay with a holder that is gone, beyond its lease and a sweep.
HELD_MARGIN_S: Final = 1.0
FINDINGS_SHOWN: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a run came to. Times are seconds. ``findings`` name what is wrong, most of them by id."""

    seed: int
    seconds: float
    lease_s: float
    sweep_s: float
    judgement: Judgement
    faults: Mapping[Fault, int]
    left_out: Mapping[Fault, int]
    longest_held_s: float
    losses: int
    losses_measured: int
    overdue_counted_s: float
    overdue_not_counted_s: float
    refused_of_workers: int
    refused_of_stale_writer: int
    stale_accepted: int
    drained_s: float | None
    unplanned_exits: int
    hung_exits: int
    tracebacks: int
    followed: int = 0
    reconnects: int = 0
    longest_held_of: str = ""
    answers: Mapping[str, int] = field(default_factory=dict)

    @property
    def held_bound_s(self) -> float:
        """The longest that a turn may stay held by a holder that is gone."""
        return self.lease_s + self.sweep_s + HELD_MARGIN_S

    @property
    def stale_writes_refused(self) -> int:
        """Writes of lost holders that Postgres refused: of real workers, and of the stale writer."""
        return self.refused_of_workers + self.refused_of_stale_writer

    @property
    def failures(self) -> list[str]:
        """Why the run failed: one line a law or bound that was broken; empty for a run that holds."""
        return list(self._failures())

    def figures(self) -> dict[str, Any]:
        """Return the figures as one JSON object."""
        judged, outcomes = self.judgement, self.judgement.outcomes
        return {
            "ok": not self.failures,
            "seed": self.seed,
            "seconds": self.seconds,
            "admitted": judged.admitted,
            "completed": outcomes["completed"],
            "lost": len(judged.lost),
            "doubled_turns": len(judged.doubled_turns),
            "doubled_replies": len(judged.doubled_replies),
            "doubled_effects": len(judged.doubled_effects),
            "doubled_items": len(judged.doubled_items),
            "doubled_tasks": len(judged.doubled_tasks),
            "missing_effects": len(judged.missing_effects),
            "log_errors": len(judged.log_errors),
            "delivered": judged.delivered,
            "items_answered": judged.answered,
            "items_dropped": judged.dropped,
            "tasks": judged.tasks,
            "tasks_cancelled": judged.tasks_cancelled,
            "followed": self.followed,
            "reconnects": self.reconnects,
            "follow_errors": len(judged.follow_errors),
            "stale_writes_refused": self.stale_writes_refused,
            "stale_writes_refused_by": {
                "workers": self.refused_of_workers,
                "stale_writer": self.refused_of_stale_writer,
            },
            "stale_writes_accepted": self.stale_accepted,
            "faults": sum(self.faults.values()),
            "faults_by_kind": {kind.value: self.faults.get(kind, 0) for kind in Fault},
            "faults_left_out": {kind.value: count for kind, count in self.left_out.items() if count},
            "longest_held_s": round(self.longest_held_s, 2),
            "held_bound_s": self.held_bound_s,
            "longest_held_of": self.longest_held_of,
            "losses": self.losses,
            "losses_measured": self.losses_measured,
            "overdue_s": {
                "counted": round(self.overdue_counted_s, 1),
                "not_counted": round(self.overdue_not_counted_s, 1),
            },
            "outcomes": dict(sorted(outcomes.items())),
            "effects": judged.effects,
            "records": judged.records,
            "drained_s": None if self.drained_s is None else round(self.drained_s, 1),
            "unplanned_exits": self.unplanned_exits,
            "hung_exits": self.hung_exits,
            "tracebacks": self.tracebacks,
            "answers": dict(sorted(self.answers.items())),
            "failures": self.failures,
        }

    def _failures(self) -> Iterator[str]:
        judged = self.judgement
        for name, found in (
            ("lost", judged.lost),
            ("doubled turns", judged.doubled_turns),
            ("doubled replies", judged.doubled_replies),
            ("doubled effects", judged.doubled_effects),
            ("doubled items", judged.doubled_items),
            ("doubled tasks", judged.doubled_tasks),
            ("results without an effect", judged.missing_effects),
            ("errors in logs", judged.log_errors),
            ("errors of followers", judged.follow_errors),
        ):
            if found:
                yield f"{name}: {len(found)}"
        if self.stale_accepted:
            yield f"stale writes accepted: {self.stale_accepted}"
        if self.longest_held_s > self.held_bound_s:
            yield f"a turn was held for {self.longest_held_s:.2f} s by a holder that was gone (bound {self.held_bound_s:g} s)"
        if judged.admitted == 0:
            yield "nothing was admitted"
        if self.seconds >= WHOLE_RUN_S:
            yield from (f"no fault of kind {kind.value}" for kind in Fault if not self.faults.get(kind))
            if self.stale_writes_refused == 0:
                yield "no stale write was refused"

    def findings(self) -> Iterator[str]:
        """Yield what is wrong, in words, the first of each kind."""
        judged = self.judgement
        for found in (
            judged.lost,
            judged.doubled_turns,
            judged.doubled_replies,
            judged.doubled_effects,
            judged.doubled_items,
            judged.doubled_tasks,
            judged.missing_effects,
            judged.log_errors,
            judged.follow_errors,
        ):
            yield from found[:FINDINGS_SHOWN]

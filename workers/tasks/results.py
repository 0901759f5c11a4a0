"""What a task's turn leaves: ``task.result`` in its closing commit, and how long it may execute. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shared.agents import Policy
from shared.domain.errors import Exhausted, TaskLate, TurnTimeout
from shared.host.tasks.deadlines import CLOSING_RESERVE_MS, closing_reserve_s
from shared.sessions.vocabulary import TurnEnded, TurnReply
from shared.sessions.vocabulary_around import BackgroundTaskResult
from shared.turns.queue import Claim, Ending
from workers.turns.progress import Closing

TASK: Final = "task"


def is_task(claim: Claim) -> bool:
    """Say whether a claimed turn is a background task's."""
    return claim.origin == TASK


def with_result(closing: Closing, claim: Claim, *, reply: TurnReply | None = None) -> Closing:
    """Return the closing commit of a task's turn with its ``task.result`` before the end, any other one unchanged.

    ``reply`` is one that an earlier commit stored; the closing's own wins.
    """
    if not is_task(claim) or any(isinstance(one, BackgroundTaskResult) for one in closing.payloads):
        return closing
    said = next((one for one in closing.payloads if isinstance(one, TurnReply)), reply)
    result = result_of(claim, closing.ending, said)
    before = tuple(one for one in closing.payloads if not isinstance(one, TurnEnded))
    ended = tuple(one for one in closing.payloads if isinstance(one, TurnEnded))
    return replace(closing, payloads=(*before, result, *ended))


def result_of(claim: Claim, ending: Ending, reply: TurnReply | None) -> BackgroundTaskResult:
    """Return the result of a task whose turn ends so: the reply's words, or why there are none."""
    outcome = "interrupted" if ending.outcome == "cancelled" else ending.outcome
    text = None if reply is None else reply.text
    code = ending.code or (None if reply is None else reply.reason)
    return BackgroundTaskResult(
        task=claim.session_id, outcome=outcome, text=text, code=code, failure=ending.failure
    )


def time_to_execute(claim: Claim, policy: Policy, *, held_for_s: float = 0.0) -> tuple[float, Exhausted]:
    """Return the seconds that a turn may still execute, and what it ends with when they are over.

    A turn's own time, else its agent's, counts from its first open over all attempts by the database's clock. A task's
    execution also stops before its deadline, by the closing reserve (TSK-29), counted from when the turn was claimed
    ``held_for_s`` seconds ago.
    """
    allowed_s = policy.max_duration_s if claim.max_duration_s is None else claim.max_duration_s
    own_s = allowed_s - (claim.open_for_s or 0.0)
    late_s = None
    if is_task(claim) and claim.deadline_in_s is not None:
        late_s = claim.deadline_in_s - closing_reserve_s(claim.deadline_in_s, CLOSING_RESERVE_MS) - held_for_s
    if late_s is not None and late_s <= own_s:
        return max(0.0, late_s), TaskLate("the task's deadline came before its turn was done")
    return max(0.0, own_s), TurnTimeout(f"the turn took longer than {allowed_s:g} s")

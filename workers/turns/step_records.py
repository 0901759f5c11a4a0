"""The records and ledger lines that one step writes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from shared.models.types import ModelResponse
from shared.sessions.vocabulary import (
    MemoryMessage,
    MemoryToolResult,
    Payload,
    StepEnded,
    StepResponse,
    StepUsage,
    StoredCall,
    ToolCompleted,
    ToolStarted,
    TurnEnded,
    TurnReply,
)
from shared.turns.queue import CallEntry, CallState, Ending
from workers.tools.calls import PlannedCall, Settled, name_calls
from workers.turns.progress import Closing, Progress, RunTail, usage_fields

#: Why a run ended that took as many steps as it may.
STEP_CAP: Final = "step-cap"


def name_response(answer: ModelResponse, progress: Progress, *, run_id: str, model: str) -> StepResponse:
    """Return a model's answer as it is stored, each call with its identity (BEY-01). ``model`` stands in for an unnamed one."""
    calls = name_calls(
        answer.calls,
        number=progress.number,
        run_id=run_id,
        run=progress.run,
        step=progress.step,
        before=progress.calls,
    )
    return StepResponse(
        run_id=run_id,
        run=progress.run,
        step=progress.step,
        text=answer.text,
        calls=calls,
        finish_reason=answer.finish_reason,
        model=answer.model or model,
        usage=usage_fields(answer.usage),
        replaced_characters=answer.replaced_characters or None,
    )


def whole_step(
    progress: Progress,
    response: StepResponse,
    plans: Sequence[PlannedCall],
    results: Mapping[int, Settled],
    unsaid: Sequence[PlannedCall],
) -> tuple[list[Payload], Progress]:
    """Return the records that make a step whole (message and results together, RSM-27) and where that leads.

    ``unsaid`` are the calls whose settling no earlier commit told.
    """
    first = progress.entries
    message = memory_message(first, response)
    tool_results = [
        _memory_result(first + 1 + n, response, p.stored, results[p.ordinal]) for n, p in enumerate(plans)
    ]
    payloads = [
        *(tool_completed(p, results[p.ordinal], progress) for p in unsaid),
        message,
        *tool_results,
        StepUsage(run=progress.run, step=progress.step, model=response.model, usage=response.usage),
        StepEnded(run=progress.run, step=progress.step, status="completed"),
    ]
    return payloads, progress.after_step(message, tool_results, response.usage)


def memory_message(n: int, response: StepResponse) -> MemoryMessage:
    """Return the assistant message of a response as memory entry ``n`` of its turn."""
    return MemoryMessage(
        entry=f"{response.run_id}:{n}",
        run_id=response.run_id,
        run=response.run,
        step=response.step,
        text=response.text,
        calls=response.calls,
        replaced_characters=response.replaced_characters,
    )


def closing_of(tail: RunTail) -> Closing:
    """Return the closing commit of a turn whose only run ended: its last step, the reply, the end."""
    result = tail.result
    capped = result.reason == STEP_CAP
    reply = TurnReply(
        outcome=result.outcome,
        text=(result.text or None) if capped else result.text,
        exhausted="steps" if capped else None,
        reason=None if result.outcome == "completed" else result.reason,
        run=result.run or None,
        step=result.step,
    )
    payloads = (*tail.payloads, reply, TurnEnded(reason=reply.outcome))
    return Closing(payloads, Ending(reply.outcome, usage=tail.progress.usage), tail.calls)


def tool_started(plan: PlannedCall, progress: Progress) -> ToolStarted:
    """Return the record that a handler is about to run."""
    return ToolStarted(
        run=progress.run,
        step=progress.step,
        invocation_id=plan.stored.invocation_id,
        name=plan.stored.name,
    )


def tool_completed(plan: PlannedCall, settled: Settled, progress: Progress) -> ToolCompleted:
    """Return the record that a call settled."""
    return ToolCompleted(
        run=progress.run,
        step=progress.step,
        invocation_id=plan.stored.invocation_id,
        name=plan.stored.name,
        status=settled.status,
    )


def planned_entry(plan: PlannedCall, step: int, *, started: bool) -> CallEntry:
    """Return the ledger's line of a call in the commit of its response."""
    if plan.settled is not None:
        return plan.entry(step, ledger_state(plan.settled), plan.settled.text)
    return plan.entry(step, "started" if started else "planned")


def ledger_state(settled: Settled) -> CallState:
    """Return the ledger's state of a settled call."""
    match settled.status:
        case "ok":
            return "done"
        case "unknown":
            return "unknown"
        case "error" | "refused":
            return "failed"


def _memory_result(n: int, response: StepResponse, call: StoredCall, settled: Settled) -> MemoryToolResult:
    return MemoryToolResult(
        entry=f"{response.run_id}:{n}",
        run_id=response.run_id,
        run=response.run,
        step=response.step,
        call_id=call.call_id,
        invocation_id=call.invocation_id,
        name=call.name,
        status=settled.status,
        text=settled.text,
        replaced_characters=settled.replaced_characters or None,
    )

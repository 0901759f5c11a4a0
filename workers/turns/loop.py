"""The step loop of one attempt: ask, store, run tools, store the whole step; until a reply or a limit.

Each stage is one durable step. The commits of a step with calls: the response (with the first calls marked started),
results as they finish, and the whole step together with the next request's header (core 6, 7).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Final

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from shared.agents import Agent
from shared.agents.tools import ToolContext
from shared.domain.errors import ModelStreamBroken
from shared.domain.failpoints import Failpoints
from shared.feed.port import TurnFeed
from shared.models.port import ChatModel
from shared.models.types import Finished, ModelResponse, TextDelta, Usage
from shared.sessions.vocabulary import (
    MemoryMessage,
    MemoryToolResult,
    Payload,
    RequestPrepared,
    StepEnded,
    StepResponse,
    StepStarted,
    StepUsage,
    StoredCall,
    ToolCompleted,
    ToolStarted,
    TurnEnded,
    TurnReply,
)
from shared.turns.queue import CallEntry, CallState, Claim, Ending
from workers.context.request import PreparedRequest, prepare_request
from workers.context.transcript import Transcript
from workers.executor import BoundedExecutor
from workers.tools.calls import PlannedCall, Settled, name_calls, plan_calls
from workers.tools.execution import run_call
from workers.turns.writer import TurnWriter

_log: Final = logging.getLogger(__name__)

RUN: Final = 0
#: Tries of one step when the stream breaks after text was shown; the adapter bounds what fails before that.
BROKEN_STREAM_TRIES: Final = 3
CANCEL_TOOLS_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the attempt stands after whole steps: pure state, replaced step by step."""

    transcript: Transcript
    number: int
    step: int = 0
    calls: int = 0
    usages: tuple[dict[str, int], ...] = ()

    @property
    def next_entry(self) -> int:
        """The number of the next memory entry: the message is 0, each step one and one for each result."""
        return 1 + self.step + self.calls


@dataclass(frozen=True, slots=True)
class Closing:
    """The closing commit: its records and the row's ending."""

    payloads: tuple[Payload, ...]
    ending: Ending
    calls: tuple[CallEntry, ...] = ()


@dataclass(slots=True)
class StepLoop:
    """Runs the steps of one claimed, open turn. Parts come by argument; :meth:`run` returns the closing commit.

    ``progress`` is where the log stands, whole steps only, and ``response`` the stored one whose step is not whole yet:
    what a failure is told by. ``recalled`` is transient context of every step: never stored, never in a header.
    """

    claim: Claim
    agent: Agent
    model_name: str
    model: ChatModel
    writer: TurnWriter
    feed: TurnFeed
    executor: BoundedExecutor
    failpoints: Failpoints
    ledger: dict[str, CallEntry] = field(default_factory=dict)
    progress: Progress | None = None
    response: StepResponse | None = None
    recalled: str = ""

    async def run(self, progress: Progress, response: StepResponse | None, *, prepared: bool) -> Closing:
        """Run from where the log stands: with a stored response its calls are settled first, else the model is asked."""
        while True:
            self.progress, self.response = progress, response
            if response is None:
                if not prepared:
                    await self.writer.append(self.step_header(progress))
                await self.failpoints.hit("turn.requested")
                answer = await self._ask(progress)
                if not answer.calls:
                    await self.failpoints.hit("turn.reply-ready")
                    return self._close_with_reply(progress, answer)
                response = self._name_response(progress, answer)
                plans = self._plan(progress, response)
                await self._store_response(response, plans)
                self.response = response
            else:
                plans = self._plan(progress, response)
                await self._store_replanned(progress, plans)
            finished = await self._run_calls(progress, plans)
            step, progress = self._whole_step(progress, response, plans, finished)
            if progress.step >= self.agent.policy.max_steps:
                return self._close_at_step_cap(progress, step, response, finished)
            await self.writer.append(
                [*step.payloads, *self.step_header(progress)], stepped=True, calls=step.calls
            )
            await self.failpoints.hit("turn.step-stored")
            response, prepared = None, True

    def step_header(self, progress: Progress) -> list[Payload]:
        """Return the records that stand before a model call: the step's start and the request's header."""
        return [StepStarted(run=RUN, step=progress.step), self.request_header(progress)]

    def request_header(self, progress: Progress) -> RequestPrepared:
        """Return the header of the next model call."""
        return self._prepare(progress).header

    def cut_short(self) -> tuple[list[Payload], dict[str, int]]:
        """Return the records that end the step in flight as failed, and the usage of all that the model answered."""
        if self.progress is None:
            return [], {}
        step, answered = self.progress.step, [] if self.response is None else [self.response]
        spent = [StepUsage(run=RUN, step=step, model=r.model, usage=r.usage) for r in answered]
        usage = sum_usage([*self.progress.usages, *(r.usage for r in answered)])
        return [*spent, StepEnded(run=RUN, step=step, status="failed")], usage

    # --- the model -------------------------------------------------------------------------------------------

    def _prepare(self, progress: Progress) -> PreparedRequest:
        return prepare_request(
            self.agent,
            progress.transcript,
            model=self.model_name,
            run_id=self.claim.run_id,
            session_id=self.claim.session_id,
            run=RUN,
            step=progress.step,
            recalled=self.recalled,
        )

    async def _ask(self, progress: Progress) -> ModelResponse:
        """Stream one answer; a stream that broke after text was shown starts over, which followers see as a reset."""
        tries = AsyncRetrying(
            retry=retry_if_exception_type(ModelStreamBroken),
            stop=stop_after_attempt(BROKEN_STREAM_TRIES),
            wait=wait_random_exponential(multiplier=0.1, max=2.0),
            reraise=True,
        )
        async for attempt in tries:
            with attempt:
                return await self._ask_once(progress)
        raise AssertionError("unreachable: the last try raises")

    async def _ask_once(self, progress: Progress) -> ModelResponse:
        self.feed.begin(RUN, progress.step)
        async with aclosing(self.model.stream(self._prepare(progress).request)) as events:
            async for event in events:
                match event:
                    case TextDelta(text):
                        self.feed.push(RUN, progress.step, text)
                    case Finished(response):
                        return response
        raise ModelStreamBroken("the model's stream ended without an answer")

    def _name_response(self, progress: Progress, answer: ModelResponse) -> StepResponse:
        calls = name_calls(
            answer.calls,
            number=progress.number,
            run_id=self.claim.run_id,
            run=RUN,
            step=progress.step,
            before=progress.calls,
        )
        return StepResponse(
            run_id=self.claim.run_id,
            run=RUN,
            step=progress.step,
            text=answer.text,
            calls=calls,
            finish_reason=answer.finish_reason,
            model=answer.model or self.model_name,
            usage=usage_fields(answer.usage),
            replaced_characters=answer.replaced_characters or None,
        )

    # --- tools -----------------------------------------------------------------------------------------------

    def _plan(self, progress: Progress, response: StepResponse) -> list[PlannedCall]:
        left = max(0, self.agent.policy.max_tool_calls - progress.calls)
        return plan_calls(response.calls, self.agent, self.ledger, calls_left=left)

    async def _store_response(self, response: StepResponse, plans: Sequence[PlannedCall]) -> None:
        """Save the whole response and every call before the first handler runs; the first ones are marked started.

        What never runs (an unknown tool, unfit arguments, past the limit) is settled in the same commit.
        """
        step, first = response.step, self._first_batch(plans)
        entries = {p.ordinal: _planned_entry(p, step, started=p in first) for p in plans}
        refused = [_tool_completed(p, p.settled, step) for p in plans if p.settled is not None]
        started = [_tool_started(p, step) for p in first]
        await self.writer.append([response, *refused, *started], calls=list(entries.values()))
        self.ledger |= {p.stored.invocation_id: entries[p.ordinal] for p in plans if p.settled is not None}
        await self.failpoints.hit("turn.response-stored")

    async def _store_replanned(self, progress: Progress, plans: Sequence[PlannedCall]) -> None:
        """Save what a continuing attempt starts anew; calls that were started before and run again are marked already."""
        fresh = [p for p in self._first_batch(plans) if not self._was_started(p)]
        if fresh:
            await self.writer.append(
                [_tool_started(p, progress.step) for p in fresh],
                calls=[p.entry(progress.step, "started") for p in fresh],
            )

    def _first_batch(self, plans: Sequence[PlannedCall]) -> list[PlannedCall]:
        return [p for p in plans if p.settled is None][: self.agent.policy.tool_concurrency]

    def _was_started(self, plan: PlannedCall) -> bool:
        entry = self.ledger.get(plan.stored.invocation_id)
        return entry is not None and entry.state == "started"

    async def _run_calls(self, progress: Progress, plans: Sequence[PlannedCall]) -> dict[int, Settled]:
        """Run what is to run, a bounded number at once; results that finish together share a commit.

        The results of the last ones are not committed here: they go with the whole step.
        """
        results = {p.ordinal: p.settled for p in plans if p.settled is not None}
        waiting = deque(p for p in plans if p.settled is None)
        running: dict[asyncio.Task[Settled], PlannedCall] = {}
        try:
            self._start_calls(waiting, running)
            while running:
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                finished = [(running.pop(task), task.result()) for task in done]
                results |= {plan.ordinal: settled for plan, settled in finished}
                await self.failpoints.hit("turn.tool-done")
                if running or waiting:
                    await self._store_results(progress, finished, waiting, free=len(finished))
                    self._start_calls(waiting, running)
        finally:
            await _cancel_all(running)
        return results

    def _start_calls(
        self, waiting: deque[PlannedCall], running: dict[asyncio.Task[Settled], PlannedCall]
    ) -> None:
        while waiting and len(running) < self.agent.policy.tool_concurrency:
            plan = waiting.popleft()
            running[asyncio.create_task(self._run_call(plan), name=f"tool:{plan.stored.invocation_id}")] = (
                plan
            )

    async def _run_call(self, plan: PlannedCall) -> Settled:
        await self.failpoints.hit("turn.tool-started")
        context = ToolContext(
            session_id=self.claim.session_id,
            owner=self.claim.owner,
            turn_id=self.claim.turn_id,
            run_id=self.claim.run_id,
            invocation_id=plan.stored.invocation_id,
            idempotency_token=plan.stored.token,
        )
        return await run_call(plan, context, self.executor)

    async def _store_results(
        self,
        progress: Progress,
        finished: Sequence[tuple[PlannedCall, Settled]],
        waiting: deque[PlannedCall],
        *,
        free: int,
    ) -> None:
        following = [p for p in list(waiting)[:free] if not self._was_started(p)]
        step = progress.step
        await self.writer.append(
            [_tool_completed(p, s, step) for p, s in finished] + [_tool_started(p, step) for p in following],
            calls=[p.entry(step, _ledger_state(s), s.text) for p, s in finished]
            + [p.entry(step, "started") for p in following],
        )
        for plan, settled in finished:
            entry = plan.entry(step, _ledger_state(settled), settled.text)
            self.ledger[plan.stored.invocation_id] = entry

    # --- whole steps and endings -----------------------------------------------------------------------------

    def _whole_step(
        self,
        progress: Progress,
        response: StepResponse,
        plans: Sequence[PlannedCall],
        results: dict[int, Settled],
    ) -> tuple[Closing, Progress]:
        """Return the records that make the step whole (message and results together, RSM-27) and where that leaves us."""
        step, first = progress.step, progress.next_entry
        message = _memory_message(self.claim.run_id, first, response)
        tool_results = [
            _memory_result(self.claim.run_id, first + 1 + n, step, p.stored, results[p.ordinal])
            for n, p in enumerate(plans)
        ]
        unsaid = [p for p in plans if not self._is_settled(p)]
        payloads: list[Payload] = [
            *(_tool_completed(p, results[p.ordinal], step) for p in unsaid),
            message,
            *tool_results,
            StepUsage(run=RUN, step=step, model=response.model, usage=response.usage),
            StepEnded(run=RUN, step=step, status="completed"),
        ]
        entries = tuple(p.entry(step, _ledger_state(results[p.ordinal])) for p in unsaid)
        after = replace(
            progress,
            transcript=progress.transcript.with_step(message, tool_results),
            step=step + 1,
            calls=progress.calls + len(plans),
            usages=(*progress.usages, response.usage),
        )
        return Closing(tuple(payloads), Ending("completed"), entries), after

    def _is_settled(self, plan: PlannedCall) -> bool:
        entry = self.ledger.get(plan.stored.invocation_id)
        return entry is not None and entry.state in ("done", "failed", "unknown")

    def _close_with_reply(self, progress: Progress, answer: ModelResponse) -> Closing:
        response = self._name_response(progress, answer)
        cut = answer.finish_reason in ("length", "content_filter")
        reply = TurnReply(
            outcome="partial" if cut else "completed",
            text=answer.text,
            reason=answer.finish_reason if cut else None,
            step=progress.step,
        )
        usage = usage_fields(answer.usage)
        payloads = (
            _memory_message(self.claim.run_id, progress.next_entry, response),
            StepUsage(run=RUN, step=progress.step, model=response.model, usage=usage),
            StepEnded(run=RUN, step=progress.step, status="completed"),
            reply,
            TurnEnded(reason=reply.outcome),
        )
        return Closing(payloads, Ending(reply.outcome, usage=sum_usage((*progress.usages, usage))))

    def _close_at_step_cap(
        self, progress: Progress, step: Closing, response: StepResponse, results: dict[int, Settled]
    ) -> Closing:
        reply = TurnReply(
            outcome="partial",
            text=response.text or None,
            exhausted="steps",
            reason="step-cap",
            step=response.step,
        )
        payloads = (*step.payloads, reply, TurnEnded(reason="partial"))
        return Closing(payloads, Ending("partial", usage=sum_usage(progress.usages)), step.calls)


def usage_fields(usage: Usage) -> dict[str, int]:
    """Return a usage as it is stored."""
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
    }


def sum_usage(usages: Sequence[dict[str, int]]) -> dict[str, int]:
    """Return the totals of several stored usages."""
    return {name: sum(u.get(name, 0) for u in usages) for name in usage_fields(Usage())}


def _planned_entry(plan: PlannedCall, step: int, *, started: bool) -> CallEntry:
    if plan.settled is not None:
        return plan.entry(step, _ledger_state(plan.settled), plan.settled.text)
    return plan.entry(step, "started" if started else "planned")


def _ledger_state(settled: Settled) -> CallState:
    match settled.status:
        case "ok":
            return "done"
        case "unknown":
            return "unknown"
        case "error" | "refused":
            return "failed"


def _tool_started(plan: PlannedCall, step: int) -> ToolStarted:
    return ToolStarted(run=RUN, step=step, invocation_id=plan.stored.invocation_id, name=plan.stored.name)


def _tool_completed(plan: PlannedCall, settled: Settled, step: int) -> ToolCompleted:
    return ToolCompleted(
        run=RUN,
        step=step,
        invocation_id=plan.stored.invocation_id,
        name=plan.stored.name,
        status=settled.status,
    )


def _memory_message(run_id: str, n: int, response: StepResponse) -> MemoryMessage:
    return MemoryMessage(
        entry=f"{run_id}:{n}",
        run_id=run_id,
        run=response.run,
        step=response.step,
        text=response.text,
        calls=response.calls,
        replaced_characters=response.replaced_characters,
    )


def _memory_result(run_id: str, n: int, step: int, call: StoredCall, settled: Settled) -> MemoryToolResult:
    return MemoryToolResult(
        entry=f"{run_id}:{n}",
        run_id=run_id,
        run=RUN,
        step=step,
        call_id=call.call_id,
        invocation_id=call.invocation_id,
        name=call.name,
        status=settled.status,
        text=settled.text,
        replaced_characters=settled.replaced_characters or None,
    )


async def _cancel_all(running: dict[asyncio.Task[Settled], PlannedCall]) -> None:
    """Cancel handlers that still run and give them a bounded time to clean up; one that goes on all the same is told of."""
    for task in running:
        task.cancel()
    if running:
        _, deaf = await asyncio.wait(running, timeout=CANCEL_TOOLS_S)
        for task in deaf:
            _log.error("a tool goes on although it was cancelled", extra={"tool": running[task].stored.name})

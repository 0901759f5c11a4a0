"""The step loop: ask, store, run tools, store the whole step; until the model answers without calls, or a limit.

Each stage is one durable step. The commits of a step with calls: the response (with the first calls marked started),
results as they finish, and the whole step together with the next request's header (core 6, 7).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, Protocol

from shared.agents import Agent, Policy
from shared.agents.tools import ToolContext
from shared.agents.turn import RunResult
from shared.domain.errors import ModelStreamBroken
from shared.domain.failpoints import Failpoints
from shared.domain.retrying import retried
from shared.feed.port import TurnFeed
from shared.models.port import ChatModel
from shared.models.types import Finished, ModelResponse, TextDelta
from shared.sessions.vocabulary import (
    Payload,
    StepEnded,
    StepResponse,
    StepStarted,
    StepUsage,
)
from shared.turns.queue import CallEntry
from workers.context.request import PreparedRequest, prepare_request
from workers.executor import BoundedExecutor
from workers.tools.calls import PlannedCall, Settled, plan_calls
from workers.tools.execution import run_call
from workers.turns.journal import StepJournal
from workers.turns.progress import Progress, RunTail, TurnRef, sum_usage
from workers.turns.step_records import (
    STEP_CAP,
    ledger_state,
    memory_message,
    name_response,
    planned_entry,
    tool_completed,
    tool_started,
    whole_step,
)

_log: Final = logging.getLogger(__name__)

#: Tries of one step when the stream breaks after text was shown; the adapter bounds what fails before that.
BROKEN_STREAM_TRIES: Final = 3
CANCEL_TOOLS_S: Final = 5.0


class StepInputs(Protocol):
    """What a caller lets into a run between its steps; asked after a complete response and its tool batch, never within."""

    def take(self, *, stopping: bool) -> bool:
        """Take what is to enter now, and say whether there is any; ``stopping``: the run would end here otherwise."""
        ...

    async def enter(self, progress: Progress) -> Progress:
        """Record what was taken as entries of the turn, and return where that leads."""
        ...


@dataclass(slots=True, kw_only=True)
class LoopParts:
    """What every run of a turn's step loop is made of; parts come by argument.

    ``recalled`` is transient context of every step: never stored, never in a header. ``ledger`` holds the turn's calls as
    they were last stored. With ``inputs`` a request's header is a commit of its own, after what entered.
    """

    turn: TurnRef
    agent: Agent
    model_name: str
    model: ChatModel
    journal: StepJournal
    feed: TurnFeed
    executor: BoundedExecutor
    failpoints: Failpoints
    ledger: dict[str, CallEntry] = field(default_factory=dict)
    recalled: str = ""
    inputs: StepInputs | None = None


@dataclass(slots=True)
class StepLoop:
    """Runs the steps of one run of an open turn; :meth:`run` returns its uncommitted end.

    ``progress`` is where the log stands, whole steps only, and ``response`` the stored one whose step is not whole yet:
    what a failure is told by.
    """

    parts: LoopParts
    policy: Policy
    progress: Progress
    response: StepResponse | None = None

    async def run(self, response: StepResponse | None = None, *, prepared: bool = False) -> RunTail:
        """Run from where the log stands: with a stored response its calls are settled first, else the model is asked.

        ``prepared`` says that the next request's header is stored already.
        """
        while True:
            self.response = response
            progress = self.progress
            if response is None:
                if not prepared:
                    await self.parts.journal.append(self.step_header())
                await self.parts.failpoints.hit("turn.requested")
                answer = await self._ask()
                response = name_response(
                    answer, progress, run_id=self.parts.turn.run_id, model=self.parts.model_name
                )
                if not answer.calls:
                    await self.parts.failpoints.hit("turn.reply-ready")
                    tail = self._answered(response)
                    further = await self._goes_on(tail)
                    if further is None:
                        return tail
                    self.progress, response, prepared = further, None, False
                    continue
                plans = self._plan(response)
                await self._store_response(response, plans)
                self.response = response
            else:
                plans = self._plan(response)
                await self._store_replanned(plans)
            finished = await self._run_calls(plans)
            unsaid = [p for p in plans if not self._is_settled(p)]
            payloads, after = whole_step(progress, response, plans, finished, unsaid)
            entries = tuple(self._settled_entry(p, finished[p.ordinal]) for p in unsaid)
            if after.step >= self.policy.max_steps:
                return RunTail(tuple(payloads), self._result(response, after, STEP_CAP), after, entries)
            header = [] if self.parts.inputs is not None else _header_of(self.parts, after)
            await self.parts.journal.append([*payloads, *header], stepped=True, calls=entries)
            await self.parts.failpoints.hit("turn.step-stored")
            self.progress, response, prepared = await self._with_inputs(after), None, bool(header)

    def step_header(self) -> list[Payload]:
        """Return the records that stand before a model call: the step's start and the request's header."""
        return _header_of(self.parts, self.progress)

    def cut_short(self) -> tuple[list[Payload], dict[str, int]]:
        """Return the records that end the step in flight as failed, and the usage of all that the model answered."""
        run, step = self.progress.run, self.progress.step
        answered = [] if self.response is None else [self.response]
        spent = [StepUsage(run=run, step=step, model=r.model, usage=r.usage) for r in answered]
        usage = sum_usage([*self.progress.usages, *(r.usage for r in answered)])
        return [*spent, StepEnded(run=run, step=step, status="failed")], usage

    # --- what enters between steps ---------------------------------------------------------------------------

    async def _with_inputs(self, after: Progress) -> Progress:
        inputs = self.parts.inputs
        return after if inputs is None or not inputs.take(stopping=False) else await inputs.enter(after)

    async def _goes_on(self, tail: RunTail) -> Progress | None:
        """Return where the run goes on after an answer, when something enters; None where it ends. A bound ends it too."""
        inputs = self.parts.inputs
        is_bounded = tail.result.outcome != "completed" or tail.progress.step >= self.policy.max_steps
        if inputs is None or is_bounded or not inputs.take(stopping=True):
            return None
        await self.parts.journal.append(tail.payloads, stepped=True)
        self.progress = tail.progress
        return await inputs.enter(tail.progress)

    # --- the model -------------------------------------------------------------------------------------------

    async def _ask(self) -> ModelResponse:
        """Stream one answer; a stream that broke after text was shown starts over, which followers see as a reset."""
        return await retried(
            self._ask_once,
            when=ModelStreamBroken,
            tries=BROKEN_STREAM_TRIES,
            first_pause_s=0.1,
            pause_max_s=2.0,
        )

    async def _ask_once(self) -> ModelResponse:
        run, step = self.progress.run, self.progress.step
        self.parts.feed.begin(run, step)
        request = _prepare(self.parts, self.progress).request
        async with aclosing(self.parts.model.stream(request)) as events:
            async for event in events:
                match event:
                    case TextDelta(text):
                        self.parts.feed.push(run, step, text)
                    case Finished(response):
                        return response
        raise ModelStreamBroken("the model's stream ended without an answer")

    # --- tools -----------------------------------------------------------------------------------------------

    def _plan(self, response: StepResponse) -> list[PlannedCall]:
        left = max(0, self.policy.max_tool_calls - self.progress.run_calls)
        return plan_calls(response.calls, self.parts.agent, self.parts.ledger, calls_left=left)

    async def _store_response(self, response: StepResponse, plans: Sequence[PlannedCall]) -> None:
        """Save the whole response and every call before the first handler runs; the first ones are marked started.

        What never runs (an unknown tool, unfit arguments, past the limit) is settled in the same commit.
        """
        step, first = response.step, self._first_batch(plans)
        entries = {p.ordinal: planned_entry(p, step, started=p in first) for p in plans}
        refused = [tool_completed(p, p.settled, self.progress) for p in plans if p.settled is not None]
        started = [tool_started(p, self.progress) for p in first]
        await self.parts.journal.append([response, *refused, *started], calls=list(entries.values()))
        settled = {p.stored.invocation_id: entries[p.ordinal] for p in plans if p.settled is not None}
        self.parts.ledger.update(settled)
        await self.parts.failpoints.hit("turn.response-stored")

    async def _store_replanned(self, plans: Sequence[PlannedCall]) -> None:
        """Save what a continuing attempt starts anew; calls that were started before and run again are marked already."""
        fresh = [p for p in self._first_batch(plans) if not self._was_started(p)]
        if fresh:
            await self.parts.journal.append(
                [tool_started(p, self.progress) for p in fresh],
                calls=[p.entry(self.progress.step, "started") for p in fresh],
            )

    def _first_batch(self, plans: Sequence[PlannedCall]) -> list[PlannedCall]:
        return [p for p in plans if p.settled is None][: self.policy.tool_concurrency]

    def _was_started(self, plan: PlannedCall) -> bool:
        entry = self.parts.ledger.get(plan.stored.invocation_id)
        return entry is not None and entry.state == "started"

    async def _run_calls(self, plans: Sequence[PlannedCall]) -> dict[int, Settled]:
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
                await self.parts.failpoints.hit("turn.tool-done")
                if running or waiting:
                    await self._store_results(finished, waiting, free=len(finished))
                    self._start_calls(waiting, running)
        finally:
            await _cancel_all(running)
        return results

    def _start_calls(
        self, waiting: deque[PlannedCall], running: dict[asyncio.Task[Settled], PlannedCall]
    ) -> None:
        while waiting and len(running) < self.policy.tool_concurrency:
            plan = waiting.popleft()
            running[asyncio.create_task(self._run_call(plan), name=f"tool:{plan.stored.invocation_id}")] = (
                plan
            )

    async def _run_call(self, plan: PlannedCall) -> Settled:
        await self.parts.failpoints.hit("turn.tool-started")
        turn = self.parts.turn
        context = ToolContext(
            session_id=turn.session_id,
            owner=turn.owner,
            turn_id=turn.turn_id,
            run_id=turn.run_id,
            invocation_id=plan.stored.invocation_id,
            idempotency_token=plan.stored.token,
        )
        return await run_call(plan, context, self.parts.executor)

    async def _store_results(
        self, finished: Sequence[tuple[PlannedCall, Settled]], waiting: deque[PlannedCall], *, free: int
    ) -> None:
        following = [p for p in list(waiting)[:free] if not self._was_started(p)]
        done = [self._settled_entry(plan, settled) for plan, settled in finished]
        await self.parts.journal.append(
            [tool_completed(p, s, self.progress) for p, s in finished]
            + [tool_started(p, self.progress) for p in following],
            calls=[*done, *(p.entry(self.progress.step, "started") for p in following)],
        )
        self.parts.ledger.update({entry.invocation_id: entry for entry in done})

    def _settled_entry(self, plan: PlannedCall, settled: Settled) -> CallEntry:
        return plan.entry(self.progress.step, ledger_state(settled), settled.text)

    def _is_settled(self, plan: PlannedCall) -> bool:
        entry = self.parts.ledger.get(plan.stored.invocation_id)
        return entry is not None and entry.state in ("done", "failed", "unknown")

    # --- the end of a run ------------------------------------------------------------------------------------

    def _answered(self, response: StepResponse) -> RunTail:
        message = memory_message(self.progress.entries, response)
        run, step = self.progress.run, self.progress.step
        payloads = (
            message,
            StepUsage(run=run, step=step, model=response.model, usage=response.usage),
            StepEnded(run=run, step=step, status="completed"),
        )
        after = self.progress.after_step(message, [], response.usage)
        cut = response.finish_reason in ("length", "content_filter")
        return RunTail(
            payloads, self._result(response, after, response.finish_reason if cut else "completed"), after
        )

    def _result(self, response: StepResponse, after: Progress, reason: str) -> RunResult:
        return RunResult(
            outcome="completed" if reason == "completed" else "partial",
            reason=reason,
            text=response.text,
            run=response.run,
            step=response.step,
            usage=sum_usage(after.usages[len(after.usages) - after.step :]),
        )


def _header_of(parts: LoopParts, progress: Progress) -> list[Payload]:
    started = StepStarted(run=progress.run, step=progress.step)
    return [started, _prepare(parts, progress).header]


def _prepare(parts: LoopParts, progress: Progress) -> PreparedRequest:
    return prepare_request(
        parts.agent,
        progress.transcript,
        model=parts.model_name,
        run_id=parts.turn.run_id,
        session_id=parts.turn.session_id,
        run=progress.run,
        step=progress.step,
        recalled=parts.recalled,
    )


async def _cancel_all(running: dict[asyncio.Task[Settled], PlannedCall]) -> None:
    """Cancel handlers that still run and give them a bounded time to clean up; one that goes on all the same is told of."""
    for task in running:
        task.cancel()
    if running:
        _, deaf = await asyncio.wait(running, timeout=CANCEL_TOOLS_S)
        for task in deaf:
            _log.error("a tool goes on although it was cancelled", extra={"tool": running[task].stored.name})

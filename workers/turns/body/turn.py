"""The turn that a host's code gets, over the step loop and the turn's memory (:class:`shared.agents.turn.Turn`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from shared.agents import Policy, RunResult, TurnOutcome, TurnTasks
from shared.domain.bounds import check_text, clean_text
from shared.domain.errors import (
    MESSAGE_MAX_CHARS,
    Defect,
    FenceLost,
    RunCut,
    RunOpen,
    TurnkeeperError,
    TurnTimeout,
    describe_error,
)
from shared.host.endings import HostFailure, call_host, our_code
from shared.host.port import AdmittedTurn
from shared.models.types import Message
from shared.sessions.vocabulary import Payload, RunEnded, StepResponse, UserMessage
from shared.turns.queue import CallEntry
from workers.turns.body.memory import TurnMemory
from workers.turns.loop import LoopParts, StepLoop
from workers.turns.next_action import AskModel, NextAction, SettleCalls
from workers.turns.progress import RunTail

T = TypeVar("T")


async def no_open_calls() -> Sequence[CallEntry]:
    """Return no ledger lines: the turn has no ledger."""
    return ()


class HostTurn:
    """Implements :class:`shared.agents.turn.Turn`.

    ``stands`` says where the open run of an earlier attempt stands: it is what the first run that is not stored goes on
    from. ``open_calls`` gives the ledger lines of calls that never settled, as ``unknown``.
    """

    def __init__(
        self,
        parts: LoopParts,
        memory: TurnMemory,
        admitted: AdmittedTurn,
        *,
        stands: NextAction | None = None,
        open_calls: Callable[[], Awaitable[Sequence[CallEntry]]] = no_open_calls,
    ) -> None:
        self.turn_memory = memory
        self.journal = parts.journal
        self.tasks = TurnTasks()
        self._parts = parts
        self._admitted = admitted
        self._stands = stands
        self._open_calls = open_calls
        #: The run that began and is not stored as ended; it is under way, or was cancelled.
        self._loop: StepLoop | None = None
        self._running = False

    @property
    def user_message(self) -> UserMessage:
        """See the port."""
        return self.turn_memory.started.user_message

    @property
    def admitted(self) -> AdmittedTurn:
        """See the port."""
        return self._admitted

    @property
    def memory(self) -> Sequence[Message]:
        """See the port."""
        return self.turn_memory.progress.transcript.messages

    @property
    def usage(self) -> Mapping[str, int]:
        """See the port."""
        return self.turn_memory.progress.usage if self._loop is None else self._loop.cut_short()[1]

    def reply(self, text: str) -> TurnOutcome:
        """See the port."""
        check_text(text, field="reply")
        return TurnOutcome("completed", text)

    async def run(self, policy: Policy | None = None) -> RunResult:
        """See the port."""
        with our_code():
            await self._settle_cut("another run")
            stored = self.turn_memory.stored_run(self.turn_memory.start_run())
            if isinstance(stored, TurnkeeperError):
                raise stored
            return stored if stored is not None else await self._run_stored(policy)

    async def context(self, text: str) -> None:
        """See the port."""
        with our_code():
            await self._settle_cut("a context entry")
            await self.turn_memory.context(text)

    async def flush(self) -> int:
        """See the port."""
        with our_code():
            return await self.journal.flush()

    async def write(self, op: Callable[[], Awaitable[T]]) -> T:
        """See the port."""
        with our_code():
            return await self.journal.write(lambda: call_host(op))

    # --- for the code that runs the body -------------------------------------------------------------------------

    async def run_once(self) -> RunTail:
        """Run the step loop once and return its uncommitted end: the default body, whose reply shares that commit."""
        self.turn_memory.start_run()
        return await self._run_loop(None)

    def cut_short(self) -> tuple[list[Payload], dict[str, int]]:
        """Return the records that end a step in flight as failed, and the turn's usage."""
        return ([], dict(self.usage)) if self._loop is None else self._loop.cut_short()

    # --- one run ---------------------------------------------------------------------------------------------------

    async def _run_stored(self, policy: Policy | None) -> RunResult:
        """Run the loop once and store its end before the body goes on; a failure of it is stored too, and raised."""
        try:
            tail = await self._run_loop(policy)
        except FenceLost:
            raise
        except TurnkeeperError as error:
            await self._store_failure(error)
            raise
        except HostFailure as error:  # of the caller's own hooks, in a run that no other attempt repeats
            await self._store_failure(Defect(describe_error(error.error)))
            raise
        except Exception as error:
            defect = Defect(describe_error(error))
            await self._store_failure(defect)
            raise defect from error
        result = tail.result
        ended = RunEnded(
            run_id=self._parts.turn.run_id,
            run=result.run,
            step=result.step,
            outcome=result.outcome,
            reason=result.reason,
        )
        await self._parts.journal.append([*tail.payloads, ended], stepped=True, calls=tail.calls)
        self._loop = None
        self.turn_memory.note_run(result, tail.progress)
        await self._parts.failpoints.hit("turn.run-stored")
        return result

    async def _run_loop(self, policy: Policy | None) -> RunTail:
        self._loop = StepLoop(self._parts, policy or self._parts.agent.policy, self.turn_memory.progress)
        response, prepared = self._where_it_stands()
        limit_s = None if policy is None else policy.max_duration_s
        self._running = True
        try:
            async with asyncio.timeout(limit_s) as limit:
                return await self._loop.run(response, prepared=prepared)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise TurnTimeout(f"the run took longer than {limit_s:g} s") from error
        finally:
            self._running = False

    def _where_it_stands(self) -> tuple[StepResponse | None, bool]:
        stands, self._stands = self._stands, None
        match stands:
            case SettleCalls(response):
                return response, True
            case AskModel(prepared=prepared):
                return None, prepared
            case _:
                return None, False

    async def _store_failure(self, error: TurnkeeperError) -> None:
        """End the step in flight and the run as failed, so that another attempt's body meets the same failure."""
        loop = self._loop
        assert loop is not None, "only a run that began fails"
        payloads, _ = loop.cut_short()
        ended = RunEnded(
            run_id=self._parts.turn.run_id,
            run=loop.progress.run,
            step=loop.progress.step,
            outcome="failed",
            reason=error.code,
            failure=clean_text(error.message[:MESSAGE_MAX_CHARS])[0],
        )
        unknown = [replace(call, state="unknown") for call in await self._open_calls()]
        await self._parts.journal.append([*payloads, ended], calls=unknown)
        self._parts.ledger.update({call.invocation_id: call for call in unknown})
        self._loop = None
        self.turn_memory.note_run(error, loop.progress)
        if loop.response is not None:
            self.turn_memory.note_spent([loop.response.usage], len(loop.response.calls))

    async def _settle_cut(self, what: str) -> None:
        """Refuse ``what`` beside a run; a run that the body itself cancelled is stored as failed first."""
        if self._running and self._loop is not None:
            raise RunOpen(f"{what} has to wait: a run of the turn is under way", run=self._loop.progress.run)
        if self._loop is not None:
            await self._store_failure(RunCut("the turn's body cancelled the run"))

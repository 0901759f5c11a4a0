"""Checks of a tasks backend: what a deadline cuts, and what then waits again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from shared.conformance.check import check, checks_of, require, same
from shared.conformance.tasks.stage import ANSWER, Hang, MakeTasks, deadline_in, stage
from shared.domain.ids import SessionId
from shared.host.endings import TurnOutcome
from shared.host.port import NewTurn, TurnWriter
from shared.host.tasks.deadlines import Deadline
from shared.sessions.vocabulary import TurnReply, draft_of
from shared.turns.admission import TurnToAdmit
from shared.turns.queue import Ending

#: When a check's work is cut at the soonest, in seconds from its hand-over.
SOON_S: Final = 0.3
#: How many times longer than a rehearsal a task and its reaction get to begin before they are cut.
_MARGIN: Final = 8
LATER_S: Final = 60.0


@check("a task that is not done at the cutoff ends interrupted, and is told so", "TSK-25", "TSK-28", "TSK-29")
async def _cut_turn(make: MakeTasks) -> None:
    async with stage(make) as on:
        on.executor.on_turn = hang = Hang()
        started = await on.start()
        await on.runner.run_next(deadline_in(SOON_S))
        require(hang.is_cancelled, "the host's code was cancelled")
        view = await on.status(started.task_id)
        same((view.status, view.code), ("interrupted", "task.deadline"), "how it stands")
        same(await on.ends(on.child(started.task_id)), [("interrupted", "task.deadline")], "its turn")
        await on.require_told(started.task_id)


@check("a task with a deadline of its own is cut before it, whatever the runner's time", "TSK-25", "TSK-29")
async def _own_deadline(make: MakeTasks) -> None:
    async with stage(make) as on:
        on.executor.on_turn = Hang()
        started = await on.start(deadline_in_s=2 * SOON_S)
        await on.runner.run_next()
        view = await on.status(started.task_id)
        same((view.status, view.code), ("interrupted", "task.deadline"), "how it stands")
        await on.require_told(started.task_id)


@check("work that comes too late runs nothing, and the task waits", "TSK-28")
async def _too_late(make: MakeTasks) -> None:
    async with stage(make) as on:
        started = await on.start()
        now = asyncio.get_running_loop().time()
        await on.runner.run_next(Deadline(now + 1.0, now - 1.0))
        same(on.executor.turns, [], "what ran")
        same((await on.status(started.task_id)).status, "pending", "how it stands")
        same(
            list((await on.tasks.reconcile(on.parent)).handed),
            [started.task_id],
            "what a reconcile hands over",
        )


@check("a runner whose time is bounded admits at most one reaction", "TSK-32")
async def _one_reaction(make: MakeTasks) -> None:
    for deadline, reactions in ((True, 1), (False, 2)):
        async with stage(make) as on:

            async def start_another(writer: TurnWriter) -> TurnOutcome:
                if len(on.executor.reactions) == 1:
                    await on.sessions.deliver(on.parent, id="more", source="test", content="more")
                return ANSWER

            on.executor.on_react = start_another
            await on.start()
            if deadline:
                await on.runner.run_next(deadline_in(LATER_S))
            else:
                await on.runner.run_next()
            same(len(on.executor.reactions), reactions, "how many reactions there were")
            same(await on.waiting(), 2 - reactions, "what waits")


@check(
    "a reaction that is cut after its answer ends partial, and its notice is never answered again", "TSK-33"
)
async def _cut_after_answer(make: MakeTasks) -> None:
    soon_s = await _rehearse(make)
    async with stage(make) as on:
        hang = Hang()

        async def answer_then_hang(writer: TurnWriter) -> TurnOutcome:
            await writer.append([draft_of(TurnReply(outcome="completed", text="thanks"))], framework=True)
            await writer.flush()
            return await hang(writer)

        on.executor.on_react = answer_then_hang
        await on.start()
        await on.runner.run_next(deadline_in(soon_s))
        require(hang.is_cancelled, "the reaction was cut")
        same([reason for reason, _ in await on.ends()], ["partial"], "the parent's turn")
        same(await on.waiting(), 0, "what waits")


@check("a reaction that is cut before its answer ends interrupted, and its notice waits again", "TSK-34")
async def _cut_before_answer(make: MakeTasks) -> None:
    soon_s = await _rehearse(make)
    async with stage(make) as on:
        on.executor.on_react = hang = Hang()
        await on.start()
        await on.runner.run_next(deadline_in(soon_s))
        require(hang.is_cancelled, "the reaction was cut")
        same([reason for reason, _ in await on.ends()], ["interrupted"], "the parent's turn")
        same(await on.waiting(), 1, "what waits")


@check(
    "a parent's turn that is admitted past the cutoff reacts not, and counts no attempt", "TSK-35", "TSK-28"
)
async def _admitted_late(make: MakeTasks) -> None:
    class Slow:
        """Admits the parent's turns once their time is over."""

        parent: SessionId | None = None

        async def admit(self, turn: TurnToAdmit, proceed: Callable[[], Awaitable[None]]) -> None:
            await proceed()
            if turn.session_id == self.parent:
                await asyncio.sleep(2 * SOON_S)  # the admission under test is slower than the cutoff

    slow = Slow()
    async with stage(make, admission=slow) as on:
        slow.parent = on.parent.id
        for _ in range(3):  # one claim more than an item is dropped after
            await on.start()
            await on.runner.run_next(deadline_in(SOON_S))
        same(on.executor.reactions, [], "what was answered")
        same({reason for reason, _ in await on.ends()}, {"interrupted"}, "the parent's turns")
        same(await on.waiting(), 3, "what waits")


@check("a notice whose reaction cannot begin stays in the inbox", "TSK-36", "TSK-20")
async def _cannot_begin(make: MakeTasks) -> None:
    for bounded in (True, False):
        async with stage(make) as on:
            started = await on.start()
            async with on.sessions.begin(on.parent, NewTurn({"text": "busy"})) as writer:
                if bounded:
                    await on.runner.run_next(deadline_in(LATER_S))
                else:
                    await on.runner.run_next()
                same(on.executor.reactions, [], "what was answered beside a turn in flight")
                await on.require_told(started.task_id)
                ended = await writer.end(Ending("completed"))
            same(ended.pending, 1, "what the end of the turn in flight counts")


async def _rehearse(make: MakeTasks) -> float:
    """Return how many seconds a reaction surely has begun after, on this backend and machine."""
    async with stage(make) as on:
        await on.start()
        began_at = asyncio.get_running_loop().time()
        await on.runner.run_next()
        return max(SOON_S, _MARGIN * (asyncio.get_running_loop().time() - began_at))


CHECKS: Final = checks_of(globals())

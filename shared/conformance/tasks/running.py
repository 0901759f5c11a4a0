"""Checks of a tasks backend: starting, running, telling, cancelling, and what a lost runner left."""

from __future__ import annotations

import asyncio
from typing import Final

from shared.conformance.check import check, checks_of, refused, require, same
from shared.conformance.tasks.stage import Hang, MakeTasks, Stage, stage
from shared.conformance.tasks.waiting import happened
from shared.domain.errors import (
    SessionMissing,
    TaskConflict,
    TaskMissing,
    TaskNested,
    TasksFull,
    TurnRefused,
)
from shared.domain.ids import OwnerId, new_session_id
from shared.host.endings import TurnOutcome
from shared.host.port import SessionAddress, TurnWriter
from shared.host.tasks.deadlines import UNBOUNDED
from shared.turns.admission import TurnToAdmit


@check(
    "a started task is handed over, runs once, and its result is told and answered once",
    "TSK-06",
    "TSK-16",
    "TSK-17",
    "TSK-20",
    "KIT-53",
)
async def _runs_once(make: MakeTasks) -> None:
    async with stage(make) as on:
        started = await on.start()
        [(handed, work)] = on.runner.handed
        same((handed.task_id, handed.parent), (started.task_id, on.parent), "what is handed over")
        same((await on.status(started.task_id)).status, "pending", "a task that nobody runs yet")
        await on.runner.run_next()
        await work(UNBOUNDED)  # a runner that repeats itself
        same([one.id for one in on.executor.turns], [started.task_id], "the turns that ran")
        view = await on.status(started.task_id)
        same((view.status, view.text), ("completed", "42"), "how the task ended")
        await on.require_told(started.task_id)
        same(len(on.executor.reactions), 1, "how often the parent answered")
        require(started.task_id in on.executor.reactions[0], "the notice names the task")
        require("42" in on.executor.reactions[0], "the notice tells the reply")
        same(await on.ends(), [("completed", None)], "the parent's turn")
        same(await on.waiting(), 0, "what waits")


@check("a task's result is stored before its turn closes", "TSK-18", "KIT-53")
async def _result_first(make: MakeTasks) -> None:
    async with stage(make) as on:
        started = await on.start()
        await on.runner.run_next()
        kinds = [r.kind for r in await on.sessions.read(on.child(started.task_id))]
        require("task.result" in kinds, "the result is a record of the child")
        same(
            [kind for kind in kinds if kind in ("task.result", "turn.ended")],
            ["task.result", "turn.ended"],
            "the order of result and end",
        )


@check("a start that is repeated starts once, with other content it is a conflict", "TSK-10", "TSK-12")
async def _repeats(make: MakeTasks) -> None:
    async with stage(make) as on:
        task_id = new_session_id()
        first = await on.start(task_id=task_id)
        again = await on.start(task_id=task_id)
        same((first.task_id, first.duplicate), (task_id, False), "the first start")
        same((again.turn_id, again.duplicate), (first.turn_id, True), "the repeat")
        for other in ({"instructions": "something else"}, {"mode": "fork"}):
            async with refused(TaskConflict, "the same id with other content"):
                await on.start(task_id=task_id, **other)
        while on.runner.handed:
            await on.runner.run_next()
        same(len(on.executor.turns), 1, "how often it ran")


@check("a fork sees the conversation up to its last closed turn, a spawn nothing", "TSK-01")
async def _modes(make: MakeTasks) -> None:
    async with stage(make) as on:
        seen: list[list[str]] = []

        async def look(writer: TurnWriter) -> TurnOutcome:
            records = await on.sessions.history(writer.session, kinds=["turn.started"])
            seen.append([r.data["user_message"]["text"] for r in records])
            return TurnOutcome("completed", "seen")

        on.executor.on_turn = look
        await on.run_user_turn("before")
        for mode in ("fork", "spawn"):
            await on.start(mode=mode)
            await on.runner.run_next()
        same(seen[0][:1], ["before"], "a fork's history begins with the parent's")
        same(seen[1], ["find out"], "a spawn has its instructions alone")


@check("a task's meta goes with its turn and with the parent's reaction", "TSK-14", "TSK-15")
async def _meta(make: MakeTasks) -> None:
    async with stage(make) as on:
        await on.start(meta={"tenant": "a"})
        await on.runner.run_next()
        same(on.executor.metas, [{"tenant": "a"}, {"tenant": "a"}], "the meta of both turns")


@check("what is asked of a task that is not the session's is missing", "TSK-39", "TSK-47")
async def _missing(make: MakeTasks) -> None:
    async with stage(make) as on:
        started = await on.start()
        for task_id in ("no id at all!", new_session_id(), on.parent.id):
            async with refused(TaskMissing, "an unknown task"):
                await on.status(task_id)
            async with refused(TaskMissing, "an unknown task"):
                await on.tasks.cancel(on.parent, task_id)
        stranger = SessionAddress(on.parent.id, OwnerId("stranger"))
        async with refused(TaskMissing, "another owner's task"):
            await on.tasks.status(stranger, started.task_id)
        async with refused(SessionMissing, "another owner's session"):
            await on.tasks.list(stranger)
        same([one.task_id for one in await on.tasks.list(on.parent)], [started.task_id], "the list")


@check("a cancelled task that waits never runs and tells nobody", "TSK-40")
async def _cancel_waiting(make: MakeTasks) -> None:
    async with stage(make) as on:
        started = await on.start()
        same((await on.tasks.cancel(on.parent, started.task_id)).took_effect, True, "the cancel")
        await on.runner.run_next()
        await on.tasks.reconcile(on.parent)
        same((await on.status(started.task_id)).status, "cancelled", "how it stands")
        same((on.executor.turns, await on.queued()), ([], []), "what ran and was told")


@check("a cancel stops a task that runs, and nothing is told", "TSK-40")
async def _cancel_running(make: MakeTasks) -> None:
    async with stage(make) as on:
        on.executor.on_turn = hang = Hang()
        started = await on.start()
        running = asyncio.create_task(on.runner.run_next())
        await happened(hang.began, "the task's turn begins")
        same((await on.status(started.task_id)).status, "running", "how it stands while it runs")
        same((await on.tasks.cancel(on.parent, started.task_id)).took_effect, True, "the cancel")
        await running
        require(hang.is_cancelled, "the host's code was cancelled")
        same((await on.status(started.task_id)).status, "cancelled", "how it stands")
        same((await on.queued(), on.executor.reactions), ([], []), "what was told and answered")
        same([reason for reason, _ in await on.ends(on.child(started.task_id))], ["cancelled"], "its turn")


@check("a reconcile hands over what a lost runner never ran; it runs once", "TSK-41")
async def _reconcile_runs(make: MakeTasks) -> None:
    async with stage(make) as on:
        started = await on.start()
        on.runner.lose()
        done = await on.tasks.reconcile(on.parent)
        same(list(done.handed), [started.task_id], "what is handed over")
        await on.runner.run_next()
        await on.require_told(started.task_id)
        done = await on.tasks.reconcile(on.parent)
        same((list(done.handed), list(done.delivered)), ([], []), "what a second one finds")
        same(len(on.executor.turns), 1, "how often it ran")


@check(
    "a task whose runner stopped is delivered as interrupted, once, by a reconcile",
    "TSK-26",
    "TSK-37",
    "TSK-41",
)
async def _reconcile_delivers(make: MakeTasks) -> None:
    async with stage(make) as on:
        await _stop_while_running(on)
        [task] = await on.tasks.list(on.parent)
        same(task.status, "interrupted", "how it stands")
        await on.require_told(task.task_id, 0)
        done = await on.tasks.reconcile(on.parent)
        same(list(done.delivered), [task.task_id], "what is delivered")
        same(on.executor.reactions, [], "the caller of a reconcile drains, not the reconcile")
        await on.tasks.reconcile(on.parent)
        await on.require_told(task.task_id)
        require("interrupted" in (await on.queued())[0][1], "the notice says how it ended")


@check("a task whose code fails is told as failed, with its code", "TSK-17")
async def _fails(make: MakeTasks) -> None:
    async with stage(make) as on:

        async def fail(writer: TurnWriter) -> TurnOutcome:
            raise ValueError("out of luck")

        on.executor.on_turn = fail
        started = await on.start()
        await on.runner.run_next()
        view = await on.status(started.task_id)
        same((view.status, view.code), ("failed", "turn.failed"), "how it stands")
        await on.require_told(started.task_id)
        same(len(on.executor.reactions), 1, "how often the parent answered")


@check("a task that the host will not admit fails with the host's reason, and nothing runs", "TSK-24")
async def _refused(make: MakeTasks) -> None:
    class Closed:
        async def admit(self, turn: TurnToAdmit, proceed: object) -> None:
            raise TurnRefused("the tenant's budget is spent", session=turn.session_id, reason="budget")

    async with stage(make, admission=Closed()) as on:
        started = await on.start()
        await on.runner.run_next()
        view = await on.status(started.task_id)
        same((view.status, view.code), ("failed", TurnRefused.code), "how it stands")
        same(on.executor.turns, [], "what ran")
        await on.require_told(started.task_id)
        same(on.executor.reactions, [], "a reaction that the host admits neither")
        same(await on.waiting(), 1, "the notice waits")


@check("a session runs two tasks, and a task starts none; a refused start leaves nothing", "TSK-03", "TSK-04")
async def _bounds(make: MakeTasks) -> None:
    async with stage(make) as on:
        first = await on.start()
        await on.start()
        async with refused(TasksFull, "a third running task"):
            await on.start()
        nested = on.child(first.task_id)
        async with refused(TaskNested, "a task of a task"):
            await on.tasks.start(nested, instructions="go on", mode="spawn")
        started = await on.sessions.read(on.parent, kinds=["task.started"])
        same(len(started), 2, "how many starts are stored")
        same(len(on.runner.handed), 2, "how many were handed over")
        await on.runner.run_next()
        require((await on.start()).task_id, "a place that became free is taken")


async def _stop_while_running(on: Stage) -> None:
    on.executor.on_turn = hang = Hang()
    await on.start()
    running = asyncio.create_task(on.runner.run_next())
    await happened(hang.began, "the task's turn begins")
    running.cancel()
    await asyncio.wait([running])


CHECKS: Final = checks_of(globals())

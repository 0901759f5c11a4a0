"""How a task ends: what its status says, what a cancel does, what is owed for every way to end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from shared.conformance.check import check, refused, require, same
from shared.conformance.task_store.stage import DEADLINE_S, TaskStage, TaskStoreSubject, task_stage
from shared.conformance.turn_stage import ATTEMPTS_MAX, TAKEOVER_LEASE_S, commit_id, ended, started
from shared.domain.errors import TaskMissing, TurnClosed, TurnRefused
from shared.domain.ids import SessionId, new_session_id
from shared.sessions.records import draft
from shared.tasks.port import TaskResult, TaskView
from shared.turns.admission import TurnToAdmit
from shared.turns.queue import Ending


def result_of(view: TaskView) -> TaskResult:
    """Return what a view says of the end."""
    return TaskResult(view.status, view.text, view.code, view.failure)


@check("a task is pending, then running, then what its result says", "TSK-39", "TSK-23", "TSK-18")
async def reads_its_status(subject: TaskStoreSubject) -> None:
    stage = await task_stage(subject)
    begun = await stage.start(instructions="dig", mode="fork")
    view = await stage.status(begun.task_id)
    same(
        (view.mode, view.instructions, view.turn_id, view.parent),
        ("fork", "dig", begun.turn_id, stage.parent),
        "what it is",
    )
    same((view.status, view.owed, view.ended_at), ("pending", False, None), "it waits")
    claim = await stage.claim(begun)
    same((await stage.status(begun.task_id)).status, "running", "it runs")
    await stage.turns.queue.open(claim, commit_id(claim, "open"), [started(claim)])
    await stage.store_result(claim, "half way")
    view = await stage.status(begun.task_id)
    same(
        (result_of(view), view.owed),
        (TaskResult("completed", "half way"), False),
        "a stored result ends the task",
    )
    await stage.turns.end(claim)
    view = await stage.status(begun.task_id)
    same(
        (result_of(view), view.owed),
        (TaskResult("completed", "half way"), True),
        "its turn ended: the parent is owed it",
    )
    require(view.ended_at is not None, "it says when it ended")


@check("the tasks of a session are listed by id, in pages", "TSK-39")
async def lists_in_pages(subject: TaskStoreSubject) -> None:
    stage = await task_stage(subject, max_running=20)
    ids = sorted([(await stage.start()).task_id for _ in range(5)], reverse=True)
    await stage.start(parent=await stage.turns.session())
    first = await stage.tasks.list(stage.parent, stage.owner, limit=3)
    rest = await stage.tasks.list(stage.parent, stage.owner, before=first[-1].task_id)
    same([view.task_id for view in [*first, *rest]], ids, "each task once")
    same(len(first), 3, "no more than the limit")
    same(
        await stage.tasks.list(await stage.turns.session(), stage.owner),
        [],
        "a session without tasks has none",
    )


@check("an unknown task, a string that is no id and another owner's task read alike", "TSK-39", "TSK-47")
async def knows_no_other(subject: TaskStoreSubject) -> None:
    stage = await task_stage(subject)
    known = (await stage.start()).task_id
    other = await stage.turns.session()
    for parent, task, owner in (
        (stage.parent, new_session_id(), stage.owner),
        (stage.parent, "no id]\n", stage.owner),
        (stage.parent, stage.parent, stage.owner),
        (other, known, stage.owner),
        (stage.parent, known, subject.new_owner()),
    ):
        for ask in (stage.tasks.status, stage.tasks.cancel):
            async with refused(TaskMissing, "no such task"):
                await ask(parent, task, owner)


@check("a cancel ends a task that waits or runs, and nothing of it is owed", "TSK-40", "TSK-23")
async def cancels(subject: TaskStoreSubject) -> None:
    stage = await task_stage(subject)
    waiting, running = await stage.start(), await stage.run()
    told = await stage.cancel(waiting.task_id)
    same(
        (told.took_effect, told.status, told.turn_id, told.holder),
        (True, "cancelled", waiting.turn_id, None),
        "one that waited",
    )
    told = await stage.cancel(running.session_id)
    same(
        (told.took_effect, told.status, told.holder), (True, "cancelled", stage.turns.worker), "one that ran"
    )
    same(await stage.kinds(waiting.task_id), ["task.cancelled"], "its child says so")
    same(
        (await stage.kinds(running.session_id))[-2:],
        ["task.cancelled", "turn.ended"],
        "before its turn's last record",
    )
    async with refused(TurnClosed, "its holder is told", reason="cancelled"):
        await stage.end(running)
    for task in (waiting.task_id, running.session_id):
        view = await stage.status(task)
        same((result_of(view), view.owed), (TaskResult("cancelled"), False), "cancelled, and settled")
        same((await stage.cancel(task)).took_effect, True, "a repeat answers as the first did")
    same(await stage.owed(), [], "nothing is owed")
    await stage.turns.check_session(stage.parent)


@check("a stored result or reply wins over a cancel, and is owed", "TSK-23", "TSK-40")
async def keeps_a_result(subject: TaskStoreSubject) -> None:
    stage = await task_stage(subject, max_running=3)
    with_result, replied, over = await stage.run(), await stage.run(), await stage.run()
    await stage.store_result(with_result)
    await stage.turns.reply(replied, "partial")
    await stage.end(over)
    for claim, status in ((with_result, "completed"), (replied, "partial"), (over, "completed")):
        told = await stage.cancel(claim.session_id)
        same((told.took_effect, told.status), (False, status), "the cancel came too late")
        same((await stage.status(claim.session_id)).owed, True, "the parent is owed it")
        require("task.cancelled" not in await stage.kinds(claim.session_id), "one terminal record")
    same(len(await stage.owed()), 3, "each is owed once")


@check("whatever ends a task's turn owes its parent, opened or not", "TSK-22", "TSK-24", "TSK-25", "TSK-26")
async def owes_every_end(subject: TaskStoreSubject) -> None:
    stage = await task_stage(subject, max_running=20)
    for end, expected in ENDS:
        task, told = await end(stage), expected
        debts = {debt.task_id: debt for debt in await stage.owed()}
        require(task in debts, f"a task that ended {told} is owed")
        same(debts[task].result, told, "the parent is told how it ended")
        same(result_of(await stage.status(task)), told, "its status says the same")
    same(len(await stage.owed()), len(ENDS), "each is owed once")


async def _failed(stage: TaskStage) -> SessionId:
    claim = await stage.run()
    ending = Ending("failed", "turn.timeout", "too long")
    await stage.turns.queue.end(claim, commit_id(claim, "end"), [ended("failed")], ending)
    return claim.session_id


async def _lost(stage: TaskStage) -> SessionId:
    claim = await stage.run(on_worker_loss="interrupt")
    await stage.turns.lose_leases()
    await stage.turns.queue.reap(limit=1_000)
    return claim.session_id


async def _spent_unopened(stage: TaskStage) -> SessionId:
    begun = await stage.start()
    for _ in range(ATTEMPTS_MAX + 1):
        await stage.tasks.take(
            begun.task_id, stage.owner, stage.turns.subject.new_worker(), lease_s=TAKEOVER_LEASE_S
        )
        await stage.turns.lose_leases()
    await stage.turns.queue.reap(limit=1_000)
    return begun.task_id


async def _expired(stage: TaskStage) -> SessionId:
    begun = await stage.start(deadline_in_s=DEADLINE_S)
    await stage.turns.subject.advance(DEADLINE_S + 1)
    await stage.turns.queue.expire(limit=1_000)
    return begun.task_id


async def _refused(stage: TaskStage) -> SessionId:
    claim = await stage.claim(await stage.start())
    hook = _Closed()
    async with refused(TurnRefused, "the host's hook judges a task's turn"):
        await stage.turns.queue.open(claim, commit_id(claim, "open"), [started(claim)], admit=hook)
    return claim.session_id


async def _turn_cancelled(stage: TaskStage) -> SessionId:
    begun = await stage.start()
    await stage.turns.queue.cancel(begun.turn_id, stage.owner)
    return begun.task_id


async def _superseded(stage: TaskStage) -> SessionId:
    claim = await stage.run()
    await stage.turns.admit(claim.session_id, on_busy="interrupt")
    return claim.session_id


async def _superseded_unopened(stage: TaskStage) -> SessionId:
    begun = await stage.start()
    await stage.turns.admit(begun.task_id, on_busy="interrupt")
    return begun.task_id


async def _replied_and_lost(stage: TaskStage) -> SessionId:
    claim = await stage.run(on_worker_loss="interrupt")
    await stage.turns.reply(claim, "partial")
    await stage.turns.lose_leases()
    await stage.turns.queue.reap(limit=1_000)
    return claim.session_id


class _Closed:
    """A host that admits nothing."""

    async def admit(self, turn: TurnToAdmit, proceed: Callable[[], Awaitable[None]]) -> None:
        raise TurnRefused("no more today", session=turn.session_id, reason="quota")


ENDS: tuple[tuple[Callable[[TaskStage], Awaitable[SessionId]], TaskResult], ...] = (
    (_failed, TaskResult("failed", None, "turn.timeout", "too long")),
    (_lost, TaskResult("interrupted", None, "task.lost")),
    (_replied_and_lost, TaskResult("partial", "hi")),
    (_spent_unopened, TaskResult("interrupted", None, "task.lost")),
    (_expired, TaskResult("interrupted", None, "task.deadline")),
    (_refused, TaskResult("failed", None, "turn.refused", "quota")),
    (_turn_cancelled, TaskResult("cancelled")),
    (_superseded, TaskResult("cancelled", None, "turn.superseded")),
    (_superseded_unopened, TaskResult("cancelled", None, "turn.superseded")),
)


@check(
    "an open task past its deadline ends by the store: by what it stored, else interrupted",
    "TSK-25",
    "TSK-27",
)
async def ends_the_late(subject: TaskStoreSubject) -> None:
    stage = await task_stage(subject, max_running=20)
    late = await stage.run(deadline_in_s=DEADLINE_S)
    answered = await stage.run(deadline_in_s=DEADLINE_S)
    patient = await stage.run()
    await stage.turns.queue.append(
        answered,
        commit_id(answered, "reply"),
        [draft("turn.reply", {"v": 1, "outcome": "completed", "text": "hi"})],
    )
    await stage.turns.subject.advance(DEADLINE_S - 60)
    mine = {late.turn_id, answered.turn_id, patient.turn_id}
    same(
        [each for each in await stage.tasks.end_late(limit=1_000) if each.turn_id in mine],
        [],
        "before it nothing ends",
    )
    await stage.turns.subject.advance(120)
    over = {each.turn_id: each for each in await stage.tasks.end_late(limit=1_000) if each.turn_id in mine}
    same(
        {each: over[each].outcome for each in over},
        {late.turn_id: "interrupted", answered.turn_id: "completed"},
        "those past it",
    )
    same(over[late.turn_id].holder, stage.turns.worker, "it says who still held it")
    same(
        result_of(await stage.status(late.session_id)),
        TaskResult("interrupted", None, "task.deadline"),
        "the task says so",
    )
    same(
        result_of(await stage.status(answered.session_id)),
        TaskResult("completed", "hi"),
        "a reply is its result",
    )
    async with refused(TurnClosed, "its holder is told"):
        await stage.turns.end(late)
    same((await stage.status(patient.session_id)).status, "running", "a task without a deadline goes on")

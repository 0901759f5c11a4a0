"""Starting a task: what is stored, what a repeat answers, what is refused, and who may run it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from shared.conformance.check import check, outcomes, refused, require, same
from shared.conformance.task_store.stage import DEADLINE_S, TaskStoreSubject, task_stage
from shared.conformance.turn_stage import LEASE_S
from shared.domain.errors import (
    HistoryModeConflict,
    QueueFull,
    SessionExists,
    SessionMissing,
    TaskConflict,
    TaskNested,
    TasksFull,
)
from shared.domain.ids import new_run_id, new_session_id
from shared.sessions.log import NewSession
from shared.sessions.records import draft
from shared.tasks.port import StartedTask, TaskLimits


@check(
    "a start stores the record, the child and its turn, ready to be claimed in the background",
    "TSK-01",
    "TSK-02",
    "TSK-05",
    "TSK-14",
    "TSK-16",
)
async def stores_it_whole(subject: TaskStoreSubject) -> None:
    stage = await task_stage(subject)
    run, meta = new_run_id(), {"tenant": "t", "n": 2**70}
    task = stage.task("dig", started_by=run, meta=meta, deadline_in_s=DEADLINE_S)
    begun = await stage.start(task)
    same(begun.duplicate, False, "the first start is no repeat")
    [record] = await stage.turns.log.read(stage.parent)
    told = {"v": 1, "task": task.task_id, "mode": "spawn", "instructions": "dig", "run_id": run}
    same(
        (record.kind, record.seq, record.turn, record.data),
        ("task.started", begun.seq, None, told),
        "the parent's record",
    )
    child = await stage.turns.log.head(task.task_id, stage.owner)
    same(
        (child.parent, child.open, child.seq),
        (stage.parent, None, 0),
        "the child is the parent's, and nothing is open",
    )
    claim = await stage.turns.claim(takeovers=False)
    same(
        (claim.turn_id, claim.session_id, claim.origin),
        (begun.turn_id, task.task_id, "task"),
        "its turn is claimed like any other",
    )
    same(
        (claim.key, claim.message, claim.meta, claim.priority),
        (task.task_id, {"text": "dig"}, meta, 2),
        "what the turn is made of",
    )
    same(claim.parent, stage.parent, "a claim says who is told the result")
    require(0 < (claim.deadline_in_s or 0) <= DEADLINE_S, "a claim says what is left of the deadline")
    await stage.turns.check_session(stage.parent)


@check("a fork inherits the history to the last closed turn, a spawn inherits nothing", "TSK-01", "SES-72")
async def inherits(subject: TaskStoreSubject) -> None:
    stage = await task_stage(subject)
    await stage.closed_turn(stage.parent)
    closed = (await stage.turns.log.head(stage.parent, stage.owner)).seq
    await stage.turns.admit(stage.parent)
    await stage.turns.open(await stage.turns.claim(takeovers=False))
    fork, spawn = await stage.start(mode="fork"), await stage.start(mode="spawn")
    heads = [await stage.turns.log.head(each.task_id, stage.owner) for each in (fork, spawn)]
    same(
        [head.inherited for head in heads],
        [closed, None],
        "the fork's history ends with the last closed turn",
    )
    same([head.turns for head in heads], [1, 0], "a fork's turns count on, a spawn's begin anew")


@check("starting an id again answers the first start and starts nothing", "TSK-10", "TSK-11")
async def starts_once(subject: TaskStoreSubject) -> None:
    stage = await task_stage(subject)
    task = stage.task(meta={"a": 1})
    first = await stage.start(task)
    same(await stage.start(task), first, "a repeat after a lost answer is the first start")
    again = replace(stage.task(task_id=task.task_id), meta={"b": 2})
    same(
        await stage.start(again), replace(first, duplicate=True), "another start of the id answers the first"
    )
    await stage.end(await stage.run())
    same(await stage.start(again), replace(first, duplicate=True), "later too")
    same((await stage.kinds(stage.parent)).count("task.started"), 2, "each task has one record")


@check("two starts of one id at once are one task, and a conflict with other content", "TSK-10", "TSK-12")
async def starts_once_at_once(subject: TaskStoreSubject) -> None:
    stage = await task_stage(subject)
    other = await subject.tasks()
    one = stage.task("one")
    calls = [
        stage.tasks.start(one, stage.limits),
        other.start(stage.task("one", task_id=one.task_id), stage.limits),
    ]
    answers = await asyncio.gather(*calls)
    same({each.turn_id for each in answers}, {answers[0].turn_id}, "both name the one turn")
    same(sorted(each.duplicate for each in answers), [False, True], "one of them started it")
    two = stage.task("two")
    mixed = await outcomes(
        [
            stage.tasks.start(two, stage.limits),
            other.start(stage.task("three", task_id=two.task_id), stage.limits),
        ]
    )
    same(
        sorted(type(each).__name__ for each in mixed),
        ["StartedTask", "TaskConflict"],
        "one of two contents is stored",
    )
    same((await stage.kinds(stage.parent)).count("task.started"), 2, "each task has one record")


@check("an id with other instructions or another mode is a conflict, and nothing is stored", "TSK-12")
async def refuses_other_content(subject: TaskStoreSubject) -> None:
    stage = await task_stage(subject)
    first = await stage.start(stage.task("one"))
    for other in (stage.task("two", task_id=first.task_id), stage.task("one", "fork", task_id=first.task_id)):
        async with refused(TaskConflict, "other content under a task's id"):
            await stage.start(other)
    same(await stage.kinds(stage.parent), ["task.started"], "a refused start leaves no record")


@check(
    "a session of whole turns starts no task, and one that started a task keeps no whole turn",
    "THR-76",
    "TSK-19",
)
async def apart_from_whole_turns(subject: TaskStoreSubject) -> None:
    stage = await task_stage(subject)
    log, kept = stage.turns.log, await stage.turns.session()
    whole = [draft("noted", {"v": 1})]
    stands = await log.head(kept, stage.owner)
    await log.retain(NewSession(kept, stage.owner), whole, tail=stands.tail, commit_id="one")
    async with refused(HistoryModeConflict, "a task of it could never be told"):
        await stage.start(parent=kept)
    stands = await log.head(kept, stage.owner)
    same(stands.seq, 1, "nothing of the task is stored")
    await log.retain(NewSession(kept, stage.owner), whole, tail=stands.tail, commit_id="two")
    task = stage.task()
    begun = await stage.start(task)
    stands = await log.head(stage.parent, stage.owner)
    async with refused(HistoryModeConflict, "before the task is told", session=stage.parent):
        await log.retain(NewSession(stage.parent, stage.owner), whole, tail=stands.tail, commit_id="one")
    same(await stage.start(task), begun, "the task stands")
    same((await log.head(stage.parent, stage.owner)).seq, stands.seq, "and nothing was kept")


@check("an id of a session that is no task of this one is refused, and nothing is stored", "TSK-05", "TSK-13")
async def refuses_others_sessions(subject: TaskStoreSubject) -> None:
    stage = await task_stage(subject, max_running=20)
    log = stage.turns.log
    fork = new_session_id()
    await log.fork(NewSession(fork, stage.owner), stage.parent, inherit=True)
    other = await stage.turns.session()
    elsewhere = await stage.start(parent=other)
    for taken in (stage.parent, other, fork, elsewhere.task_id):
        async with refused(SessionExists, "another session's id"):
            await stage.start(task_id=taken)
    same(await stage.kinds(stage.parent), [], "a refused start leaves no record")


@check("a task starts no tasks", "TSK-03", "TSK-05")
async def refuses_nesting(subject: TaskStoreSubject) -> None:
    stage = await task_stage(subject)
    child = await stage.start()
    nested = stage.task(parent=child.task_id)
    async with refused(TaskNested, "a start inside a task"):
        await stage.start(nested)
    same(await stage.kinds(child.task_id), [], "it leaves no record")
    async with refused(SessionMissing, "it leaves no child"):
        await stage.turns.log.head(nested.task_id, stage.owner)


@check("a session runs at most so many tasks at once; one that ended makes room", "TSK-04", "TSK-05")
async def bounds_running(subject: TaskStoreSubject) -> None:
    stage = await task_stage(subject)
    first = await stage.run()
    await stage.start()
    third = stage.task()
    async with refused(TasksFull, "the third at once"):
        await stage.start(third)
    same((await stage.kinds(stage.parent)).count("task.started"), 2, "a refused start leaves no record")
    async with refused(SessionMissing, "it leaves no child"):
        await stage.turns.log.head(third.task_id, stage.owner)
    await stage.tasks.start(stage.task(), TaskLimits(max_running=3))
    await stage.cancel(first.session_id)
    async with refused(TasksFull, "a bound that is still reached"):
        await stage.start(third)
    await stage.tasks.start(third, TaskLimits(max_running=3))


@check("of many starts at once no more are stored than may run", "TSK-04")
async def bounds_at_once(subject: TaskStoreSubject) -> None:
    stage = await task_stage(subject, max_running=3)
    answers = await outcomes([stage.start() for _ in range(8)])
    same(sum(isinstance(each, StartedTask) for each in answers), 3, "exactly as many as may run")
    same(sum(isinstance(each, TasksFull) for each in answers), 5, "the others are refused")


@check("a start counts among the turns that wait, and is refused where they are too many")
async def bounds_waiting(subject: TaskStoreSubject) -> None:
    stage = await task_stage(subject)
    await subject.limit_owner(stage.owner, queued_max=1)
    await stage.start()
    async with refused(QueueFull, "the owner's bound", bound="queued turns an owner"):
        await stage.start()
    await subject.limit_owner(stage.owner)
    async with refused(QueueFull, "the bound of all", bound="queued turns in all"):
        await stage.tasks.start(stage.task(), TaskLimits(is_full=True))


@check("another owner's session reads as missing", "TSK-39")
async def is_of_its_owner(subject: TaskStoreSubject) -> None:
    stage = await task_stage(subject)
    stranger = subject.new_owner()
    async with refused(SessionMissing, "a start in another owner's session"):
        await stage.start(replace(stage.task(), owner=stranger))
    async with refused(SessionMissing, "a list of another owner's session"):
        await stage.tasks.list(stage.parent, stranger)


@check("a runner takes exactly its task's turn, once, with or without a lease", "TSK-06", "TSK-16")
async def is_taken_once(subject: TaskStoreSubject) -> None:
    stage = await task_stage(subject)
    first, second = await stage.start(), await stage.start()
    taken = await outcomes(
        [
            stage.tasks.take(second.task_id, stage.owner, subject.new_worker(), lease_s=LEASE_S)
            for _ in range(4)
        ]
    )
    [claim] = [each for each in taken if each is not None]
    same(
        (claim.turn_id, claim.parent), (second.turn_id, stage.parent), "the turn of that task, no earlier one"
    )
    same(
        await stage.tasks.take(first.task_id, subject.new_owner(), stage.turns.worker, lease_s=1),
        None,
        "not another owner's",
    )
    held = await stage.tasks.take(first.task_id, stage.owner, stage.turns.worker, lease_s=None)
    require(held is not None, "the other task is taken by itself")
    await stage.turns.lose_leases()
    same(
        await stage.tasks.take(first.task_id, stage.owner, stage.turns.worker, lease_s=1),
        None,
        "a hold without a lease stays",
    )
    again = await stage.tasks.take(second.task_id, stage.owner, stage.turns.worker, lease_s=LEASE_S)
    require(
        again is not None and again.lost and again.fence.epoch == 2,
        "a lost turn is taken again, under a new fence",
    )
    same(
        await stage.tasks.take(new_session_id(), stage.owner, stage.turns.worker, lease_s=1),
        None,
        "what is no task",
    )


@check("the turns of a parent's tasks that wait are told, to be rung again", "TSK-41", "TSK-43")
async def tells_what_waits(subject: TaskStoreSubject) -> None:
    stage = await task_stage(subject, max_running=20)
    waiting = [await stage.start() for _ in range(2)]
    await stage.claim(await stage.start())
    await stage.done()
    told = await stage.tasks.waiting(stage.parent, stage.owner)
    same(set(told), {each.turn_id for each in waiting}, "exactly those that wait")
    same(await stage.tasks.waiting(stage.parent, subject.new_owner()), [], "of this owner's session")

"""Telling the parent: once, as one inbox item, whatever else happens to parent and child."""

from __future__ import annotations

import json
from dataclasses import replace

from shared.conformance.check import check, outcomes, require, same
from shared.conformance.task_store.stage import TaskStoreSubject, task_stage
from shared.tasks.port import TaskResult

#: Many more than an inbox holds of other items.
MANY = 21


@check("a result becomes the parent's inbox item task:<id>, framed, and is owed no more", "TSK-19", "TSK-21")
async def delivers(subject: TaskStoreSubject) -> None:
    stage = await task_stage(subject)
    task = await stage.done("it </task-output> is")
    [debt] = await stage.owed()
    same(
        (debt.task_id, debt.parent, debt.owner, debt.tries),
        (task, stage.parent, stage.owner, 0),
        "who owes whom",
    )
    delivered = await stage.tasks.deliver(debt)
    require(delivered is not None, "what is owed is delivered")
    [item] = await stage.items()
    notice = f"[Background task {task} completed]\n<task-output>\nit &#60;/task-output> is\n</task-output>"
    same(item.data, {"v": 1, "id": f"task:{task}", "source": "task", "content": notice}, "the item's record")
    assert delivered is not None
    same(delivered.seq, item.seq, "the answer names it")
    head = await stage.turns.log.head(stage.parent, stage.owner)
    same(
        (head.inbox_waiting, await stage.owed(), (await stage.status(task)).owed),
        (1, [], False),
        "it waits, and is owed no more",
    )
    claim = await stage.turns.claim(takeovers=False)
    same(
        (claim.turn_id, claim.session_id, claim.origin),
        (delivered.turn_id, stage.parent, "inbox"),
        "an inbox turn answers it",
    )


@check("of many deliveries of one result one is stored, also later", "TSK-19", "INB-02")
async def delivers_once(subject: TaskStoreSubject) -> None:
    stage = await task_stage(subject)
    await stage.done()
    [debt] = await stage.owed()
    other = await subject.tasks()
    answers = await outcomes([store.deliver(debt) for store in (stage.tasks, other) for _ in range(4)])
    same(sum(each is not None for each in answers), 1, "one of them delivered it")
    same(await stage.tasks.deliver(debt), None, "a late one finds it done")
    same(len(await stage.items()), 1, "the parent's inbox holds one")


@check("a parent is told of more tasks than its inbox holds of other items", "TSK-19")
async def delivers_beyond_the_bound(subject: TaskStoreSubject) -> None:
    stage = await task_stage(subject)
    for _ in range(MANY):
        await stage.done()
    same(len(await stage.deliver()), MANY, "every result is delivered")
    same((await stage.turns.log.head(stage.parent, stage.owner)).inbox_waiting, MANY, "all of them wait")


@check(
    "the turn that answers a notice has the task's meta, and the agent of the parent's turns",
    "TSK-14",
    "TSK-15",
)
async def answers_with_its_meta(subject: TaskStoreSubject) -> None:
    stage = await task_stage(subject)
    await stage.done(agent="helper", meta={"tenant": "t"})
    await stage.deliver()
    claim = await stage.turns.claim(takeovers=False)
    same(
        (claim.meta, claim.agent),
        ({"tenant": "t"}, "helper"),
        "of a parent without turns the task's agent answers",
    )
    stage = await task_stage(subject)
    await stage.closed_turn(stage.parent)
    await stage.done(agent="helper", meta={"tenant": "u"})
    await stage.deliver()
    claim = await stage.turns.claim(takeovers=False)
    same((claim.meta, claim.agent), ({"tenant": "u"}, ""), "else that of the parent's last turn")


@check(
    "a delivery that was put off is due later, and one parent's are found whenever they are due",
    "TSK-37",
    "TSK-41",
    "TSK-43",
)
async def puts_off(subject: TaskStoreSubject) -> None:
    stage = await task_stage(subject)
    await stage.done()
    [debt] = await stage.owed()
    mine = [each for each in await stage.tasks.owed(limit=1_000) if each.parent == stage.parent]
    same(mine, [debt], "it is due")
    await stage.tasks.put_off(debt, 60)
    same(
        [each for each in await stage.tasks.owed(limit=1_000) if each.parent == stage.parent],
        [],
        "it is due no more",
    )
    [later] = await stage.owed()
    same(later.tries, 1, "the try is counted, and its parent may have it now")
    await subject.advance(61)
    same(
        [each for each in await stage.tasks.owed(limit=1_000) if each.parent == stage.parent],
        [later],
        "due again",
    )
    require(await stage.tasks.deliver(debt) is not None, "what was read before is still what is owed")


@check("what is owed longest is read first, and no more than asked for", "TSK-43")
async def reads_in_order(subject: TaskStoreSubject) -> None:
    stage = await task_stage(subject, max_running=3)
    ids = [await stage.done() for _ in range(3)]
    debts = await stage.owed()
    same([debt.task_id for debt in debts], ids, "in the order they ended")
    await stage.tasks.put_off(debts[0], 30)
    same([debt.task_id for debt in await stage.owed()], [*ids[1:], ids[0]], "one put off comes last")
    same(len(await stage.tasks.owed(parent=stage.parent, limit=2)), 2, "as many as asked for")


@check("a removed parent drops what it is owed", "TSK-43")
async def drops_with_its_parent(subject: TaskStoreSubject) -> None:
    stage = await task_stage(subject)
    task = await stage.done()
    [debt] = await stage.owed()
    removed = await stage.turns.log.remove(stage.parent, stage.owner)
    same(set(removed), {stage.parent, task}, "a child goes with its parent")
    same(await stage.tasks.deliver(debt), None, "nobody is there to be told")
    same(await stage.owed(), [], "and nothing is owed any more")


@check("a parent hears that a removed task of it is lost", "TSK-22", "TSK-26")
async def tells_of_removed_children(subject: TaskStoreSubject) -> None:
    stage = await task_stage(subject, max_running=3)
    running, over = await stage.run(meta={"a": 1}), await stage.done()
    [before] = await stage.owed()
    cancelled = (await stage.start()).task_id
    await stage.cancel(cancelled)
    for task in (running.session_id, over, cancelled):
        await stage.turns.log.remove(task, stage.owner)
    same(await stage.tasks.deliver(before), None, "a result that is gone is not delivered from memory")
    lost = TaskResult("interrupted", None, "task.lost")
    same(
        {debt.task_id: debt.result for debt in await stage.owed()},
        {running.session_id: lost, over: lost},
        "both are owed as lost",
    )
    same(len(await stage.deliver()), 2, "and delivered")
    told = [json.loads(item.text)["content"] for item in await stage.items()]
    require(all(text.endswith("interrupted]\n(task.lost)") for text in told), "the notices say so")
    view = await stage.status(running.session_id)
    same(
        (view.status, view.code, view.turn_id, view.instructions),
        ("interrupted", "task.lost", None, "look it up"),
        "its status too",
    )
    same((await stage.cancel(running.session_id)).took_effect, False, "there is nothing to cancel")
    again = await stage.start(replace(stage.task(), task_id=running.session_id))
    same(again.duplicate, True, "a removed task is not started anew")


@check("a notice is answered after the parent's turn in flight", "TSK-20")
async def answers_after_the_turn_in_flight(subject: TaskStoreSubject) -> None:
    stage = await task_stage(subject)
    await stage.turns.admit(stage.parent)
    busy = await stage.turns.claim(takeovers=False)
    await stage.turns.open(busy)
    await stage.done()
    [told] = await stage.deliver()
    same(
        (told.turn_id, await stage.turns.claims(takeovers=False)),
        (None, []),
        "nothing is to be had beside it",
    )
    ending = await stage.turns.end(busy)
    claim = await stage.turns.claim(takeovers=False)
    same((claim.turn_id, claim.origin), (ending.promoted, "inbox"), "its end makes the inbox turn ready")

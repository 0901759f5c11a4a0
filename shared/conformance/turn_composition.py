"""The kit of a turn's composition: what anything that runs a host's body as a turn must show (KIT-17 to KIT-28)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from shared.agents import Turn, TurnOutcome, TurnResult, Use
from shared.conformance.check import ConformanceCheck, check, checks_of, require, same
from shared.domain.errors import SessionBusy
from shared.host.port import NewTurn
from shared.models.scripted import ScriptedModel, ScriptedReply
from shared.models.types import Usage
from shared.sessions.records import Record

#: Longer than any composition may wait for a reaction to the reply of a cancelled turn.
AT_ONCE_S = 5.0


class EndlessReactions:
    """Background reactions that never are done once the turn replied."""

    def __init__(self) -> None:
        self.drains = 0

    @property
    def pending(self) -> int:
        """Nothing waits while the body runs."""
        return 0

    async def drain(self) -> None:
        """Never return."""
        self.drains += 1
        await asyncio.Event().wait()


class TurnStage(Protocol):
    """A session of its own in which turns are run."""

    async def run(self, turn: NewTurn, use: Use) -> TurnResult:
        """Begin a turn, run the body, end the turn: the composition under test."""
        ...

    async def begin_another(self) -> None:
        """Leave a turn of the session open that nobody ends."""
        ...

    async def deliver(self, item: str) -> None:
        """Put an item of this id into the session's inbox."""
        ...

    async def records(self) -> Sequence[Record]:
        """Read the session's whole log."""
        ...


class TurnCompositionSubject(Protocol):
    """A composition under test."""

    async def stage(self, model: ScriptedModel, reactions: EndlessReactions | None = None) -> TurnStage:
        """Return a new session whose turns ask this model, with these reactions to their events."""
        ...


def turn_composition_conformance(subject: TurnCompositionSubject) -> Sequence[ConformanceCheck]:
    """Return the checks of a turn composition for this subject. Each uses a session of its own."""
    return [each.on(subject) for each in CHECKS]


def hello() -> NewTurn:
    """Return a turn to begin."""
    return NewTurn({"text": "hello"})


async def outcome_of(call: Awaitable[TurnResult]) -> TurnResult | BaseException:
    """Return what a run came to, raised or returned."""
    try:
        return await call
    except BaseException as error:
        return error


async def end_of(stage: TurnStage) -> dict[str, Any]:
    """Require that the turn has one reply, one end and nothing after it; return what both say."""
    records = await stage.records()
    kinds = [r.kind for r in records]
    same((kinds.count("turn.reply"), kinds.count("turn.ended")), (1, 1), "one reply and one end")
    same(kinds[-1], "turn.ended", "nothing is stored after the end")
    [reply] = [r.data for r in records if r.kind == "turn.reply"]
    return {"reply": reply["outcome"], **records[-1].data}


@check("a turn that succeeds has one reply and one end, as its body returned", "KIT-20", "TRN-21", "TRN-48")
async def success(subject: TurnCompositionSubject) -> None:
    stage = await subject.stage(ScriptedModel(["hi"]))

    async def use(turn: Turn) -> TurnOutcome:
        return TurnOutcome("partial", (await turn.run()).text)

    result = await stage.run(hello(), use)
    same((result.outcome, result.reply), ("partial", "hi"), "the result is what the body returned")
    same(await end_of(stage), {"reply": "partial", "v": 1, "reason": "partial"}, "and so is what is stored")


@check(
    "a turn that fails has one failed reply and one end with its code, and raises its own cause",
    *("KIT-20", "TRN-22", "TRN-23", "TRN-52", "TRN-61"),
)
async def failure(subject: TurnCompositionSubject) -> None:
    stage, cause = await subject.stage(ScriptedModel([])), ValueError("no")

    async def use(turn: Turn) -> TurnOutcome:
        raise cause

    require(await outcome_of(stage.run(hello(), use)) is cause, "the turn fails with its own cause")
    same(
        await end_of(stage),
        {"reply": "failed", "v": 1, "reason": "failed", "code": "turn.failed", "failure": "ValueError: no"},
        "and is stored as failed",
    )


@check("a turn that is interrupted has one failed reply and one end", "KIT-20", "TRN-22", "TRN-63", "TRN-57")
async def interruption(subject: TurnCompositionSubject) -> None:
    model = ScriptedModel(["never"])
    model.hold()
    stage = await subject.stage(model)

    async def use(turn: Turn) -> TurnOutcome:
        return TurnOutcome("completed", (await turn.run()).text)

    running = asyncio.create_task(stage.run(hello(), use))
    await model.started()
    running.cancel()
    require(isinstance(await outcome_of(running), asyncio.CancelledError), "the cancellation is raised")
    same(
        await end_of(stage),
        {"reply": "failed", "v": 1, "reason": "interrupted", "code": "turn.interrupted"},
        "and stored",
    )


@check("tasks of the body are joined before the reply is recorded", "KIT-21", "TRN-20")
async def tasks_joined(subject: TurnCompositionSubject) -> None:
    stage = await subject.stage(ScriptedModel([]))
    seen: list[list[str]] = []

    async def task() -> None:
        await asyncio.sleep(0.01)
        seen.append([r.kind for r in await stage.records()])

    async def use(turn: Turn) -> TurnOutcome:
        turn.tasks.fork("late", task())
        return turn.reply("ok")

    await stage.run(hello(), use)
    require(seen and "turn.reply" not in seen[0], "the task is done before the reply")


@check("a task that fails gives a failed reply, never a completed one", "KIT-21", "TRN-22")
async def failing_task(subject: TurnCompositionSubject) -> None:
    stage = await subject.stage(ScriptedModel([]))

    async def task() -> None:
        await asyncio.sleep(0.01)
        raise ValueError("late")

    async def use(turn: Turn) -> TurnOutcome:
        turn.tasks.fork("late", task())
        return turn.reply("ok")

    require(isinstance(await outcome_of(stage.run(hello(), use)), ValueError), "the task's failure is raised")
    same((await end_of(stage))["reply"], "failed", "and the reply is a failed one")


@check("a turn's usage is the sum of what its steps stored", "KIT-22", "TRN-15")
async def usage(subject: TurnCompositionSubject) -> None:
    answers = [ScriptedReply("a", usage=Usage(5, 1)), ScriptedReply("b", usage=Usage(7, 2))]
    stage = await subject.stage(ScriptedModel(answers))

    async def use(turn: Turn) -> TurnOutcome:
        await turn.run()
        return TurnOutcome("completed", (await turn.run()).text)

    result = await stage.run(hello(), use)
    stored = [r.data["usage"] for r in await stage.records() if r.kind == "step.usage"]
    sums = {name: sum(u[name] for u in stored) for name in ("input_tokens", "output_tokens")}
    same(sums, {"input_tokens": 12, "output_tokens": 3}, "each step stores what it used")
    same({name: result.usage[name] for name in sums}, sums, "the result says their sum")


@check(
    "a turn that it begins tells how many inbox items its end left waiting",
    *("KIT-25", "TRN-16", "INB-32"),
)
async def pending(subject: TurnCompositionSubject) -> None:
    stage = await subject.stage(ScriptedModel([]))

    async def use(turn: Turn) -> TurnOutcome:
        for item in ("a", "b"):
            await stage.deliver(item)
        return turn.reply("ok")

    same((await stage.run(hello(), use)).pending, 2, "what came while it ran")


@check(
    "a turn begun while another is open fails with that refusal itself, and runs and stores nothing",
    *("KIT-26", "TRN-28", "TRN-30"),
)
async def busy(subject: TurnCompositionSubject) -> None:
    stage = await subject.stage(ScriptedModel([]))
    await stage.begin_another()
    before = len(await stage.records())
    called: list[Turn] = []

    async def use(turn: Turn) -> TurnOutcome:
        called.append(turn)
        return turn.reply("no")

    require(
        isinstance(await outcome_of(stage.run(hello(), use)), SessionBusy), "SessionBusy itself is raised"
    )
    same((called, len(await stage.records())), ([], before), "nothing ran and nothing was stored")


@check(
    "an interrupted turn ends at once, whatever reaction to its reply never returns",
    *("KIT-27", "TRN-25"),
)
async def interrupted_at_once(subject: TurnCompositionSubject) -> None:
    model, reactions = ScriptedModel(["never"]), EndlessReactions()
    model.hold()
    stage = await subject.stage(model, reactions)

    async def use(turn: Turn) -> TurnOutcome:
        return TurnOutcome("completed", (await turn.run()).text)

    running = asyncio.create_task(stage.run(hello(), use))
    await model.started()
    running.cancel()
    done, _ = await asyncio.wait({running}, timeout=AT_ONCE_S)
    running.cancel()
    require(done, "it waits for no reaction")
    same((await end_of(stage))["reason"], "interrupted", "its end is stored")


CHECKS: Sequence[Any] = checks_of(globals())

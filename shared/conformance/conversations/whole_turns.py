"""The kit of whole-turn history: what a session log must show beneath a :class:`PersistentHistory` (THR-T15)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Literal, Protocol

from shared.conformance.check import ConformanceCheck, check, checks_of, outcomes, refused, require, same
from shared.conversations import (
    ConversationMessage,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from shared.conversations.persistent import (
    WHOLE_TURN_MAX_BYTES,
    LoadedSession,
    PersistentHistory,
    WholeTurn,
)
from shared.domain.errors import (
    HistoryConflict,
    HistoryEncoding,
    HistoryFull,
    HistoryMissing,
    HistoryModeConflict,
)
from shared.domain.ids import OwnerId, SessionId, WorkerId, new_run_id, new_session_id, new_turn_id
from shared.sessions.log import NewSession, SessionLog
from shared.sessions.records import draft, verify_log
from shared.sessions.vocabulary_whole import WHOLE_TURN_KINDS
from shared.turns.queue import Admission, AdmissionLimits, TurnQueue

#: Turns of the long session: more than two snapshots' worth.
LONG_TURNS: Final = 40
RACERS: Final = 12
USAGE: Final = {"input_tokens": 3, "output_tokens": 2}


class WholeTurnSubject(Protocol):
    """An adapter under test: a session log, and the turn queue that shares its store."""

    async def log(self) -> SessionLog:
        """Return a new handle over the same sessions; the subject closes it in the end."""
        ...

    async def open(self) -> TurnQueue:
        """Return a turn queue over the same sessions."""
        ...

    def new_owner(self) -> OwnerId:
        """Return an owner who has nothing yet."""
        ...


def whole_turn_conformance(subject: WholeTurnSubject) -> Sequence[ConformanceCheck]:
    """Return the checks of whole-turn history for this subject. Each uses owners and sessions of its own."""
    return [each.on(subject) for each in CHECKS]


def turn_of(text: str = "hi", reply: str = "hello", **given: Any) -> WholeTurn:
    """Return a turn with this input and reply."""
    made: dict[str, Any] = {
        "turn_id": new_turn_id(),
        "run_id": new_run_id(),
        "instructions": "Be brief.",
        "message": ConversationMessage.user(text),
        "model": "scripted",
        "messages": (ConversationMessage.assistant(reply),),
        "output": reply,
        "usage": USAGE,
    }
    return WholeTurn(**made | given)


async def _keep(
    history: PersistentHistory, session_id: SessionId, turn: WholeTurn | None = None
) -> WholeTurn:
    turn = turn if turn is not None else turn_of()
    await history.append(await history.begin(session_id, turn.message), turn)
    return turn


async def _stands(log: SessionLog, session_id: SessionId, owner: OwnerId, records: int) -> None:
    """Require that the log holds that many records, and verifies."""
    head = await log.head(session_id, owner)
    found = await log.read(session_id)
    same((head.seq, len(found)), (records, records), "the log holds so many records")
    verify_log(session_id, found, seq=head.seq, tail=head.tail)


@check(
    "a turn is kept as its three records in one append, and a load gives its messages",
    "THR-46",
    "THR-50",
    "THR-53",
    "THR-94",
    "THR-97",
)
async def keeps_whole(subject: WholeTurnSubject) -> None:
    log, owner, session = await subject.log(), subject.new_owner(), new_session_id()
    call = ConversationMessage(
        role="assistant",
        parts=(
            ReasoningPart(text="I look.", options={"signature": {"n": [1, 2.5, None]}}),
            TextPart(text="one moment"),
            ToolCallPart(call_id="c", name="look", arguments='{"b": 1,"a":2}'),
        ),
        options={"provider": {"id": "m-1"}},
    )
    result = ConversationMessage.tool(
        ToolResultPart(call_id="c", name="look", text="found ☕", status="error")
    )
    said = ConversationMessage.assistant("done")
    turn = turn_of(messages=[call, result, said], tools=[{"name": "look"}])
    history = PersistentHistory(log, owner)
    begun = await history.begin(session, turn.message)
    same(list(begun.prompt), [], "a session that is not there is an empty one")
    async with refused(HistoryMissing, "and stays absent until a turn is kept", session=session):
        await history.load(session)
    committed = await history.append(begun, turn)
    same((committed.seq, committed.revision), (3, 1), "it is one append of three records")
    records = await log.read(session)
    same([r.kind for r in records], list(WHOLE_TURN_KINDS), "input, messages and end, in order")
    same({r.turn for r in records}, {None}, "it is no turn of the queue")
    same(len({r.at for r in records}), 1, "they were stored at one time")
    loaded = await PersistentHistory(await subject.log(), owner).load(session)
    same(list(loaded.prompt), [turn.message, call, result, said], "every message is whole")
    last = loaded.last_turn
    require(last is not None and last.turn_id == turn.turn_id, "the newest turn is told by its id")
    assert last is not None
    same((last.instructions, list(last.tools)), ("Be brief.", [{"name": "look"}]), "instructions and tools")
    same((last.output, dict(last.usage)), ("hello", USAGE), "its output and usage")
    await _stands(log, session, owner, 3)


@check("sessions are apart, and another owner's is absent", "THR-47")
async def sessions_apart(subject: WholeTurnSubject) -> None:
    log, owner, other = await subject.log(), subject.new_owner(), subject.new_owner()
    history, theirs = PersistentHistory(log, owner), PersistentHistory(log, other)
    sessions = [new_session_id() for _ in range(3)]
    for n, session in enumerate(sessions):
        await _keep(history, session, turn_of(f"in {n}"))
    for n, session in enumerate(sessions):
        loaded = await history.load(session)
        same(loaded.prompt[0].text, f"in {n}", "each session has its own turn")
        same(len(loaded.prompt), 2, "and no other")
    async with refused(HistoryMissing, "another owner's load"):
        await theirs.load(sessions[0])
    begun = await theirs.begin(sessions[0], turn_of().message)
    same(list(begun.prompt), [], "another owner sees nothing of it")
    async with refused(HistoryMissing, "another owner's append"):
        await theirs.append(begun, turn_of())
    await _stands(log, sessions[0], owner, 3)


@check("a turn from a tail that moved is a conflict, and nothing of it is kept", "THR-70", "THR-71")
async def stale_tail(subject: WholeTurnSubject) -> None:
    log, owner, session = await subject.log(), subject.new_owner(), new_session_id()
    history = PersistentHistory(log, owner)
    early = await history.begin(session, turn_of().message)
    first = await _keep(history, session)
    async with refused(HistoryConflict, "a second first turn", session=session):
        await history.append(early, turn_of("late"))
    stale = await history.load(session)
    await log.commit(session, owner, [draft("note.added", {"n": 1})])
    async with refused(HistoryConflict, "a turn behind which a host's record came", session=session):
        await history.append(stale, turn_of("late"))
    loaded = await history.load(session)
    require(loaded.last_turn is not None and loaded.last_turn.turn_id == first.turn_id, "the winner stands")
    await _keep(history, session)
    await _stands(log, session, owner, 7)


@check("of many turns that began from one tail exactly one is kept", "THR-71")
async def one_winner(subject: WholeTurnSubject) -> None:
    handles, owner, session = (
        [await subject.log(), await subject.log()],
        subject.new_owner(),
        new_session_id(),
    )
    histories = [PersistentHistory(log, owner) for log in handles]
    for round_ in range(2):
        turns = [turn_of(f"{round_}.{n}") for n in range(RACERS)]
        begun = [await histories[n % 2].begin(session, t.message) for n, t in enumerate(turns)]
        answers = await outcomes([histories[n % 2].append(begun[n], turn) for n, turn in enumerate(turns)])
        won = [t for t, answer in zip(turns, answers, strict=True) if not isinstance(answer, Exception)]
        same(len(won), 1, "one of them is kept")
        lost = {type(answer) for answer in answers if isinstance(answer, Exception)}
        same(lost, {HistoryConflict}, "the others are conflicts")
        last = (await histories[0].load(session)).last_turn
        require(last is not None and last.turn_id == won[0].turn_id, "history is the winner's")
    await _stands(handles[0], session, owner, 6)


@check(
    "a repeated append answers the first one, also after later turns, and doubles nothing", "THR-59", "THR-60"
)
async def repeated(subject: WholeTurnSubject) -> None:
    log, owner, session = await subject.log(), subject.new_owner(), new_session_id()
    history = PersistentHistory(log, owner)
    turn = turn_of()
    begun = await history.begin(session, turn.message)
    first = await history.append(begun, turn)
    await _keep(history, session)
    again = await history.append(begun, turn)
    same((again.seq, again.revision), (first.seq, first.revision), "the first answer")
    async with refused(HistoryConflict, "the same turn with other content"):
        await history.append(begun, replace(turn, output="other"))
    await _stands(log, session, owner, 6)


def _message_of_bytes(role: Literal["user", "assistant"], size: int) -> ConversationMessage:
    """A message whose canonical JSON has exactly this size, not all of it ASCII."""
    empty = ConversationMessage(role=role, parts=(TextPart(text="é"),))
    return ConversationMessage(role=role, parts=(TextPart(text="é" + "a" * (size - len(empty.encoded))),))


def _of_size(part: str, size: int) -> dict[str, Any]:
    match part:
        case "input":
            return {"message": _message_of_bytes("user", size), "context": ()}
        case "output":
            return {"output": "é" + "a" * (size - 4)}
        case "messages":
            return {"messages": (_message_of_bytes("assistant", size - 2),), "context": ()}
        case _:
            return {"context": (_message_of_bytes("user", size - 2),)}


@check("each part of a turn may have 1 MiB, and not one byte more; a refused turn leaves nothing", "THR-61")
async def bounds(subject: WholeTurnSubject) -> None:
    log, owner = await subject.log(), subject.new_owner()
    history = PersistentHistory(log, owner, context_rule=lambda messages: messages[-1:])
    for part in ("input", "output", "messages", "context"):
        session = new_session_id()
        begun = await history.begin(session, turn_of().message)
        over = turn_of(**_of_size(part, WHOLE_TURN_MAX_BYTES + 1))
        async with refused(
            HistoryFull, f"{part} of one byte more", field=part, bound=f"<= {WHOLE_TURN_MAX_BYTES} bytes"
        ):
            await history.append(begun, over)
        async with refused(HistoryMissing, "nothing of it is kept"):
            await history.load(session)
        exact = turn_of(**_of_size(part, WHOLE_TURN_MAX_BYTES))
        await history.append(begun, exact)
        last = (await history.load(session)).last_turn
        require(last is not None and last.turn_id == exact.turn_id, f"{part} of exactly so much is kept")
        assert last is not None
        same(
            (last.output, last.source),
            (exact.output, (exact.message, *exact.messages)),
            "and comes back whole",
        )
        await _stands(log, session, owner, 3)
    async with refused(HistoryFull, "an input over its bound, before anything runs", field="input"):
        await history.begin(new_session_id(), _message_of_bytes("user", WHOLE_TURN_MAX_BYTES + 1))


@check("what no log can hold, or is half a tool batch, is refused as such, and nothing is kept", "THR-74")
async def encoding(subject: WholeTurnSubject) -> None:
    log, owner, session = await subject.log(), subject.new_owner(), new_session_id()
    history = PersistentHistory(log, owner)
    begun = await history.begin(session, turn_of().message)
    for bad in ("a\x00b", "\ud800"):
        async with refused(HistoryEncoding, f"messages with {bad!r}"):
            await history.append(begun, turn_of(messages=[ConversationMessage.user(bad)]))
        async with refused(HistoryEncoding, f"an output with {bad!r}"):
            await history.append(begun, turn_of(output=bad))
        async with refused(HistoryEncoding, f"an input with {bad!r}"):
            await history.begin(session, ConversationMessage.user(bad))
    call = ConversationMessage.assistant("", [ToolCallPart(call_id="c", name="look", arguments="{}")])
    async with refused(HistoryEncoding, "a call without its result"):
        await history.append(begun, turn_of(messages=[call]))
    async with refused(HistoryMissing, "nothing of it is kept"):
        await history.load(session)


def _admission(session: SessionId, owner: OwnerId) -> Admission:
    return Admission(new_turn_id(), new_run_id(), session, owner, {"text": "hi"})


@check(
    "a session of whole turns takes no turn of the queue, and one with turns no whole turn",
    "THR-76",
    "THR-77",
)
async def modes(subject: WholeTurnSubject) -> None:
    log, queue, owner, kept = await subject.log(), await subject.open(), subject.new_owner(), new_session_id()
    history, limits = PersistentHistory(log, owner), AdmissionLimits()
    await _keep(history, kept)
    async with refused(HistoryModeConflict, "an admission"):
        await queue.admit(_admission(kept, owner), limits)
    async with refused(HistoryModeConflict, "a host's begin"):
        await queue.begin(
            _admission(kept, owner), WorkerId("w"), lease_s=None, commit_id="c", drafts=(), limits=limits
        )
    await _keep(history, kept)
    await _stands(log, kept, owner, 6)
    queued = (await log.create(NewSession(new_session_id(), owner))).session_id
    early = await history.begin(queued, turn_of().message)
    receipt = await queue.admit(_admission(queued, owner), limits)
    async with refused(
        HistoryModeConflict, "a turn that began before the queue's was admitted", session=queued
    ):
        await history.append(early, turn_of())
    await queue.cancel(receipt.turn_id, owner)
    async with refused(HistoryModeConflict, "also once the queue's turn is finished", session=queued):
        await history.append(early, turn_of())
    await _stands(log, queued, owner, 0)
    await log.create(NewSession(empty := new_session_id(), owner, title="Tea"))
    await _keep(history, empty)
    same(
        (await log.head(empty, owner)).title, "Tea", "an empty session takes whole turns, and keeps its title"
    )


@check(
    "a context of its own is what is shown next, and the source stays as it was", "THR-54", "THR-63", "THR-64"
)
async def contexts(subject: WholeTurnSubject) -> None:
    log, owner, session = await subject.log(), subject.new_owner(), new_session_id()
    history = PersistentHistory(log, owner)
    first = await _keep(history, session, turn_of("one", "1"))
    summary = [ConversationMessage.user("so far: one, two")]
    second = await _keep(history, session, turn_of("two", "2", context=summary))
    same(list((await history.load(session)).prompt), summary, "only the context is shown")
    third = await _keep(history, session, turn_of("three", "3"))
    shown = [*summary, third.message, *third.messages]
    same(list((await history.load(session)).prompt), shown, "the next turn comes behind it")
    source = [turn.source for turn in await history.turns(session)]
    expected = [(turn.message, *turn.messages) for turn in (third, second, first)]
    same(source, expected, "every turn's own messages are there, newest first")


@check(
    "a long session loads what it holds, whatever its age, and all of its source is found", "THR-65", "THR-98"
)
async def long_session(subject: WholeTurnSubject) -> None:
    log, owner, session = await subject.log(), subject.new_owner(), new_session_id()
    history, kept, expected = PersistentHistory(log, owner), list[str](), list[str]()
    for n in range(LONG_TURNS):
        turn = await _keep(history, session, turn_of(f"in {n}", f"out {n}"))
        kept.insert(0, str(turn.turn_id))
        expected += [f"in {n}", f"out {n}"]
        if n % 7 == 0:
            await log.commit(session, owner, [draft("note.added", {"n": n})])
        same([m.text for m in (await history.load(session)).prompt], expected, "all of it, in order")
    found, before = list[str](), None
    while page := await history.turns(session, before=before):
        found += [str(turn.turn_id) for turn in page]
        before = page[-1].seq
    same(found, kept, "pages of the source meet without a gap or a double")


@check("a removed session keeps nothing, and no turn that began before brings it back")
async def removed(subject: WholeTurnSubject) -> None:
    log, owner, session = await subject.log(), subject.new_owner(), new_session_id()
    history = PersistentHistory(log, owner)
    turn = await _keep(history, session)
    stale = await history.load(session)
    await log.remove(session, owner)
    async with refused(HistoryMissing, "a load", session=session):
        await history.load(session)
    async with refused(HistoryMissing, "a turn that began before the removal", session=session):
        await history.append(stale, turn_of())
    async with refused(HistoryMissing, "nothing came back", session=session):
        await history.load(session)
    await history.append(LoadedSession(session, (await history.begin(session, turn.message)).tail), turn)
    await _stands(log, session, owner, 3)


@check("an interrupted append keeps the whole turn or nothing", "THR-58", "THR-59")
async def interrupted(subject: WholeTurnSubject) -> None:
    log, owner = await subject.log(), subject.new_owner()
    history = PersistentHistory(log, owner)
    for hops in range(4):
        session, turn = new_session_id(), turn_of()
        begun = await history.begin(session, turn.message)
        task = asyncio.create_task(history.append(begun, turn))
        for _ in range(hops):
            await asyncio.sleep(0)  # one step of the loop, so that each cancel meets another await
        task.cancel()
        await asyncio.wait({task})
        await history.append(await _again(history, session, begun), turn)
        await _stands(log, session, owner, 3)


async def _again(history: PersistentHistory, session: SessionId, begun: LoadedSession) -> LoadedSession:
    """What a caller that lost an answer repeats with: the same turn, from the same tail."""
    await history.begin(session, turn_of().message)
    return begun


CHECKS: Final = checks_of(globals())

"""What a turn records of itself: the message first and once, context entries after it, one reply, no run after that."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from shared.agents import TurnOutcome
from shared.domain.errors import StoreUnavailable, TurnClosed, TurnUnstarted
from shared.domain.ids import OwnerId, RunId, SessionId, new_turn_id
from shared.sessions.vocabulary import MemorySection, Payload, TurnReply, TurnStarted, UserMessage
from workers.context.transcript import Transcript
from workers.turns.body.memory import TurnMemory
from workers.turns.progress import Progress, TurnRef


class Journal:
    """Keeps what is written, after so many failures."""

    def __init__(self, failures: int = 0) -> None:
        self.stored: list[Payload] = []
        self.failures = failures

    async def append(self, payloads: Sequence[Payload], **how: Any) -> int:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("away")
        self.stored += payloads
        return len(self.stored)

    async def flush(self) -> int:
        return len(self.stored)

    async def write(self, op: Callable[[], Awaitable[Any]]) -> Any:
        return await op()


class Listener:
    """Keeps what is published, beside what was stored then."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.heard: list[tuple[str, list[str]]] = []

    async def __call__(self, name: str, payload: Payload) -> None:
        self.heard.append((name, [type(p).__name__ for p in self.journal.stored]))


def memory(journal: Journal, **given: Any) -> TurnMemory:
    started = TurnStarted(
        turn_id="t", run_id="r", entry="r:0", origin="user", user_message=UserMessage(text="hi")
    )
    ref = TurnRef(SessionId("ses_1"), OwnerId("o"), new_turn_id(), RunId("r"))
    return TurnMemory(ref, started, Progress(Transcript().with_user("r:0", "hi"), number=4), journal, **given)


@pytest.mark.behaviour("TRN-126", "TRN-130", "TRN-80")
async def test_runs_are_counted_from_0_after_the_message_and_there_is_none_after_the_reply() -> None:
    turn = memory(Journal())
    assert (turn.number, turn.turn.session_id) == (4, "ses_1")
    with pytest.raises(TurnUnstarted) as unstarted:
        turn.start_run()
    assert unstarted.value.code == "turn.unstarted"
    await turn.persist_message()
    assert [turn.start_run(), turn.start_run()] == [0, 1]
    await turn.persist_reply(TurnOutcome("completed", "done"))
    with pytest.raises(TurnClosed) as closed:
        turn.start_run()
    assert closed.value.code == "turn.closed"


@pytest.mark.behaviour("TRN-127", "TRN-128")
async def test_the_message_is_shown_to_memory_then_published_once_and_again_after_a_failure() -> None:
    journal, taken = Journal(), []
    listener = Listener(journal)

    async def take(started: TurnStarted) -> None:
        taken.append(started.user_message.text)
        if len(taken) == 1:
            raise ValueError("not yet")

    turn = memory(journal, take_message=take, publish=listener)
    with pytest.raises(ValueError, match="not yet"):
        await turn.persist_message()
    assert listener.heard == []
    await turn.persist_message()
    await turn.persist_message()
    assert (taken, listener.heard) == (["hi", "hi"], [("turn.started", [])])


@pytest.mark.behaviour("TRN-129", "TRN-130")
async def test_a_context_entry_before_the_message_waits_and_is_recorded_right_after_it() -> None:
    journal = Journal()
    listener = Listener(journal)
    turn = memory(journal, publish=listener)
    await turn.context("first")
    await turn.context("second")
    assert journal.stored == []
    await turn.persist_message()
    await turn.context("third")
    assert journal.stored == [
        MemorySection(entry=f"r:{n}", run_id="r", text=text)
        for n, text in enumerate(("first", "second", "third"), 1)
    ]
    assert listener.heard == [("turn.started", [])]
    assert [m.text for m in turn.progress.transcript.messages] == ["hi", "first", "second", "third"]


@pytest.mark.behaviour("TRN-131", "TRN-132", "TRN-133")
async def test_the_reply_is_recorded_then_published_once_and_never_without_a_message() -> None:
    journal = Journal(failures=1)
    listener = Listener(journal)
    turn = memory(journal, publish=listener)
    await turn.persist_reply(TurnOutcome("failed"))
    assert (journal.stored, listener.heard) == ([], [])
    await turn.persist_message()
    with pytest.raises(StoreUnavailable):
        await turn.persist_reply(TurnOutcome("completed", "done"))
    await turn.persist_reply(TurnOutcome("completed", "done"))
    await turn.persist_reply(TurnOutcome("failed"))
    assert journal.stored == [TurnReply(outcome="completed", text="done")]
    assert listener.heard[1:] == [("turn.ended", ["TurnReply"])]

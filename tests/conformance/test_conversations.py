"""The kits of conversation stores on the store in memory, and on broken ones, each found by exactly the check of its fault."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest

from shared.conformance import (
    ConformanceCheck,
    ConformanceFailure,
    bounded_conversations_conformance,
    conversation_store_conformance,
)
from shared.conversations import (
    CONVERSATION_MAX_MESSAGES,
    CONVERSATIONS_MAX,
    Conversation,
    ConversationMessage,
    InMemoryConversations,
    Prompt,
    ReasoningPart,
    in_memory_conversation_store,
)
from shared.conversations.messages import check_prefix, decode_message
from shared.conversations.persistent.history import PersistentHistory
from shared.conversations.persistent.whole_turn import WholeTurn
from shared.domain.bounds import clean_json
from shared.domain.errors import HistoryConflict, HistoryMissing, SessionHistoryDiverged
from shared.domain.ids import OwnerId, SessionId, new_run_id, new_turn_id
from shared.sessions.log import SessionLog
from tests.conformance.kits import cited_by, names_of, proved_by, run_check
from tests.conformance.subjects import InprocSessionLogSubject, PostgresSessionLogSubject
from tests.conformance.tampering import require_fault_for_each

Messages = Sequence[ConversationMessage]


@dataclass(frozen=True)
class Subject:
    """Stores in memory, made by ``make``."""

    make: Callable[[], InMemoryConversations] = in_memory_conversation_store

    async def open(self) -> InMemoryConversations:
        return self.make()


def kit_of(subject: Subject) -> list[ConformanceCheck]:
    return [*conversation_store_conformance(subject), *bounded_conversations_conformance(subject)]


CHECKS: Final = kit_of(Subject())


@pytest.mark.behaviour(
    "THR-01",
    "THR-07",
    "THR-12",
    "THR-14",
    "THR-17",
    "THR-18",
    "THR-19",
    "THR-20",
    "THR-21",
    "THR-22",
    "THR-27",
    "THR-28",
    "THR-29",
    "THR-30",
    "THR-34",
    "THR-35",
    "THR-39",
    "THR-41",
    "THR-43",
    "THR-74",
    "THR-86",
    "THR-87",
    "THR-88",
    "THR-T01",
    "THR-T02",
    "THR-T03",
    "THR-T04",
    "THR-T10",
)
@pytest.mark.parametrize("name", names_of(CHECKS))
async def test_the_store_in_memory_keeps_its_contract(name: str) -> None:
    await run_check(CHECKS, name)


def test_the_kits_are_cited_for_what_they_prove() -> None:
    assert cited_by(test_the_store_in_memory_keeps_its_contract) == proved_by(CHECKS)


# --- whole turns as a conversation: the contract that both histories share -------------------------------------------


class WholeTurnConversations:
    """A conversation store over whole-turn history: each update that brings something is one turn of its own."""

    def __init__(self, history: PersistentHistory) -> None:
        self._history = history

    async def snapshot(self, session_id: SessionId) -> Conversation:
        return _conversation(session_id, (await self._history.load(session_id)).prompt)

    async def update(
        self, session_id: SessionId, messages: Messages, *, create: bool = False
    ) -> Conversation:
        try:
            loaded = await self._history.load(session_id)
        except HistoryMissing:
            if not create:
                raise
            loaded = await self._history.begin(session_id, messages[0])
        check_prefix(session_id, loaded.prompt, messages)
        suffix = tuple(messages[len(loaded.prompt) :])
        if suffix:
            turn = WholeTurn(
                turn_id=new_turn_id(),
                run_id=new_run_id(),
                instructions="",
                message=suffix[0],
                model="m",
                messages=suffix[1:],
                usage={},
            )
            await self._history.append(loaded, turn)
        return _conversation(session_id, (*loaded.prompt, *suffix))


def _conversation(session_id: SessionId, prompt: Prompt) -> Conversation:
    return Conversation(session_id, prompt, sum(len(message.encoded) for message in prompt))


@dataclass(frozen=True)
class WholeTurnSubject:
    """Whole-turn history over one log."""

    log: SessionLog

    async def open(self) -> WholeTurnConversations:
        return WholeTurnConversations(PersistentHistory(self.log, OwnerId("whole-turn")))


@pytest.fixture
async def log(backend_url: str | None) -> AsyncIterator[SessionLog]:
    """A session log in memory, and one on Postgres."""
    if backend_url is None:
        yield await InprocSessionLogSubject().log()
        return
    async with PostgresSessionLogSubject(backend_url) as subject:
        yield await subject.log()


#: Their updates begin with calls; a whole turn begins with an input, so it cannot hold them.
NOT_COMMON: Final = {
    "a snapshot holds what the updates brought, in order, with every native part",
    "a tool batch is stored whole or not at all",
}
COMMON: Final = [
    name for name in names_of(conversation_store_conformance(Subject())) if name not in NOT_COMMON
]


@pytest.mark.behaviour("THR-02", "THR-22", "THR-74", "THR-T02", "THR-T10")
@pytest.mark.parametrize("name", COMMON)
async def test_whole_turns_keep_the_contract_that_is_common(name: str, log: SessionLog) -> None:
    await run_check(conversation_store_conformance(WholeTurnSubject(log)), name)


# --- broken ones ---------------------------------------------------------------------------------------------------


class Thoughtless(InMemoryConversations):
    """Forgets what a model thought."""

    async def snapshot(self, session_id: SessionId) -> Conversation:
        found = await super().snapshot(session_id)
        return Conversation(
            found.session_id, tuple(map(_without_reasoning, found.messages)), found.size_bytes
        )


def _without_reasoning(message: ConversationMessage) -> ConversationMessage:
    parts = tuple(part for part in message.parts if not isinstance(part, ReasoningPart))
    return message.model_copy(update={"parts": parts})


class _Changed(InMemoryConversations, ABC):
    """Asks the real store for other messages than it was given."""

    async def update(
        self, session_id: SessionId, messages: Messages, *, create: bool = False
    ) -> Conversation:
        recorded = self._recorded(session_id)
        return await super().update(session_id, self.changed(recorded, tuple(messages)), create=create)

    def _recorded(self, session_id: SessionId) -> Prompt:
        _, found = self._table.sessions.get(session_id, (None, None))
        return () if found is None else found.messages

    @abstractmethod
    def changed(self, recorded: Prompt, messages: Prompt) -> Messages: ...


class Repeating(_Changed):
    """Stores a second time what it has."""

    def changed(self, recorded: Prompt, messages: Prompt) -> Messages:
        return (*messages, messages[-1]) if messages and messages == recorded else messages


class Forgiving(_Changed):
    """Takes a prefix that is out of date for what is recorded."""

    def changed(self, recorded: Prompt, messages: Prompt) -> Messages:
        return recorded if messages == recorded[: len(messages)] else messages


class _Similar(_Changed):
    """Takes messages for the recorded ones that are only like them."""

    def changed(self, recorded: Prompt, messages: Prompt) -> Messages:
        head = messages[: len(recorded)]
        if [*map(self.key, head)] == [*map(self.key, recorded)]:
            return (*recorded, *messages[len(recorded) :])
        return messages

    @abstractmethod
    def key(self, message: ConversationMessage) -> object: ...


class Roleless(_Similar):
    """Looks at what was said, not at who said it."""

    def key(self, message: ConversationMessage) -> object:
        return message.model_copy(update={"role": "user"}).model_dump_json()


class Optionless(_Similar):
    """Looks past the options of providers."""

    def key(self, message: ConversationMessage) -> object:
        return message.role, [part.model_copy(update={"options": {}}) for part in message.parts]


class LastWins(InMemoryConversations):
    """Looks first and writes a moment later, over whatever was written meanwhile."""

    async def update(
        self, session_id: SessionId, messages: Messages, *, create: bool = False
    ) -> Conversation:
        before = self._table.sessions.get(session_id)
        await asyncio.sleep(0)
        if before is not None:
            self._table.sessions[session_id] = before
        return await super().update(session_id, messages, create=create)


class Beginning(InMemoryConversations):
    """Begins whatever session it does not know."""

    async def update(
        self, session_id: SessionId, messages: Messages, *, create: bool = False
    ) -> Conversation:
        return await super().update(session_id, messages, create=True)


class Trimming(_Changed):
    """Leaves an unfinished batch out instead of refusing it."""

    def changed(self, recorded: Prompt, messages: Prompt) -> Messages:
        opened = [n for n, message in enumerate(messages) if message.calls]
        if opened and opened[-1] == len(messages) - 1:
            return messages[:-1]
        return messages


class Cleaning(_Changed):
    """Replaces what cannot be stored instead of refusing it."""

    def changed(self, recorded: Prompt, messages: Prompt) -> Messages:
        return [
            message if message in recorded else decode_clean(message) for message in messages if message.parts
        ]


def decode_clean(message: ConversationMessage) -> ConversationMessage:
    try:
        return decode_message(message.encoded)
    except HistoryConflict:
        raise
    except Exception:
        return ConversationMessage.user(clean_json(message.text))


class Live(InMemoryConversations):
    """Gives out snapshots that change with the store."""

    async def update(
        self, session_id: SessionId, messages: Messages, *, create: bool = False
    ) -> Conversation:
        await super().update(session_id, messages, create=create)
        return _LiveConversation(self, session_id)  # type: ignore[return-value]  # that is the fault


class _LiveConversation:
    def __init__(self, store: InMemoryConversations, session_id: SessionId) -> None:
        self._store, self.session_id = store, session_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store._table.sessions[self.session_id][1], name)


class Evicting(InMemoryConversations):
    """Lets its oldest session make way for a new one."""

    async def update(
        self, session_id: SessionId, messages: Messages, *, create: bool = False
    ) -> Conversation:
        mine = [name for name, (owner, _) in self._table.sessions.items() if owner is self._owner]
        if len(mine) == CONVERSATIONS_MAX and session_id not in mine:
            _, gone = self._table.sessions.pop(mine[0])
            self._table.size_bytes -= gone.size_bytes
        return await super().update(session_id, messages, create=create)


class Truncating(_Changed):
    """Stores as many messages as fit."""

    def changed(self, recorded: Prompt, messages: Prompt) -> Messages:
        return messages[:CONVERSATION_MAX_MESSAGES]


class Uncounted(InMemoryConversations):
    """Does not count the bytes of a session."""

    def _check_bounds(
        self, session_id: SessionId, is_new: bool, count: int, size_bytes: int, added_bytes: int
    ) -> None:
        super()._check_bounds(session_id, is_new, count, 0, added_bytes)


class Favouring(InMemoryConversations):
    """Does not count what the application itself stores."""

    def _check_bounds(
        self, session_id: SessionId, is_new: bool, count: int, size_bytes: int, added_bytes: int
    ) -> None:
        owners = {id(owner) for owner, _ in self._table.sessions.values()} - {id(self._owner)}
        added_bytes = added_bytes if owners or not self._table.sessions else -self._table.size_bytes
        super()._check_bounds(session_id, is_new, count, size_bytes, added_bytes)


class Telling(InMemoryConversations):
    """Tells how much another owner's session holds."""

    def _find(self, session_id: SessionId) -> Conversation | None:
        try:
            return super()._find(session_id)
        except HistoryConflict as error:
            _, found = self._table.sessions[session_id]
            raise HistoryConflict(error.message, **error.fields, size_bytes=found.size_bytes) from error


class Unfenced(InMemoryConversations):
    """Goes on for a closed owner."""

    def _refuse_closed(self) -> None:
        pass


class Keeping(InMemoryConversations):
    """Gives no bytes back when an owner closes."""

    def close(self) -> None:
        held = self._table.size_bytes
        super().close()
        self._table.size_bytes = held


FAULTS: Final[Mapping[str, type[InMemoryConversations]]] = {
    "a snapshot holds what the updates brought, in order, with every native part": Thoughtless,
    "an update stores its new suffix only, and one that brings nothing changes nothing": Repeating,
    "an update that does not hold all that is recorded has diverged": Forgiving,
    "an update that rewrites what is recorded has diverged": Roleless,
    "options of another value have diverged, options with other order of keys have not": Optionless,
    "of concurrent extensions of one prefix exactly one is taken, whole": LastWins,
    "a session that nobody began is not found, and begins only when that is asked for": Beginning,
    "a tool batch is stored whole or not at all": Trimming,
    "a message that cannot be stored is refused, and nothing of its update is kept": Cleaning,
    "a snapshot and the list of an update are values of their own": Live,
    "256 sessions are held, the 257th is refused and none makes way": Evicting,
    "1,024 messages are held, and of an update with one more nothing is": Truncating,
    "4 MiB of a session are held to the byte": Uncounted,
    "64 MiB of all sessions are held to the byte": Favouring,
    "a session of another owner is a conflict that tells nothing of it": Telling,
    "once an owner closed its sessions are gone, and it is fenced": Unfenced,
    "owners share the bounds, and get back what they held when they close": Keeping,
}


def test_every_check_of_the_kits_is_tried_on_a_fault() -> None:
    require_fault_for_each(CHECKS, list(FAULTS))


@pytest.mark.behaviour("KIT-01")
@pytest.mark.parametrize("name", FAULTS)
async def test_a_broken_store_is_found_by_exactly_the_check_of_its_fault(name: str) -> None:
    failed = []
    for check in kit_of(Subject(FAULTS[name])):
        try:
            await check.run()
        except ConformanceFailure:
            failed.append(check.name)
    assert failed == [name]


async def test_a_diverged_update_is_a_conflict() -> None:
    assert issubclass(SessionHistoryDiverged, HistoryConflict)
    assert SessionHistoryDiverged("x").reason == "conflict"

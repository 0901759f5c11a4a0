"""What a bounded conversation store with owners must show: bounds met to the byte, owners apart, all given back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

from shared.conformance.check import Check, ConformanceCheck, check, refused, require, same
from shared.conformance.conversations.stores import ANSWER, HELLO, MORE
from shared.conversations.messages import (
    ConversationMessage,
)
from shared.conversations.port import (
    BYTES_MAX,
    CONVERSATION_MAX_BYTES,
    CONVERSATION_MAX_MESSAGES,
    CONVERSATIONS_MAX,
    ConversationStore,
    ScopedConversations,
)
from shared.domain.errors import (
    HistoryConflict,
    HistoryFenced,
    HistoryFull,
    HistoryMissing,
)
from shared.domain.ids import SessionId, new_session_id


class BoundedConversationsSubject(Protocol):
    """A bounded adapter with owners under test."""

    async def open(self) -> ScopedConversations:
        """Return the application's store over a table of its own, with nothing in it."""
        ...


def bounded_conversations_conformance(subject: BoundedConversationsSubject) -> Sequence[ConformanceCheck]:
    """Return the checks of bounds and owners for this subject. Each opens stores of its own."""
    return [each.on(subject) for each in CHECKS]


def message_of_size(size_bytes: int) -> ConversationMessage:
    """Return a message of exactly this encoded size, as much of it as fits in characters of two bytes each."""
    room = size_bytes - len(ConversationMessage.user("").encoded)
    return ConversationMessage.user("é" * (room // 2) + "e" * (room % 2))


@check(
    "256 sessions are held, the 257th is refused and none makes way", "THR-17", "THR-21", "THR-39", "THR-T01"
)
async def sessions_bound(subject: BoundedConversationsSubject) -> None:
    store = await subject.open()
    sessions = [new_session_id() for _ in range(CONVERSATIONS_MAX)]
    for session in sessions:
        await store.update(session, [HELLO, ANSWER], create=True)
    async with refused(HistoryFull, "a session too many", field="sessions", bound="<= 256"):
        await store.update(new_session_id(), [HELLO], create=True)
    for session in sessions:
        same((await store.snapshot(session)).messages, (HELLO, ANSWER), "every earlier session is whole")
    await store.update(sessions[0], [HELLO, ANSWER, MORE])


@check("1,024 messages are held, and of an update with one more nothing is", "THR-18", "THR-88", "THR-T01")
async def messages_bound(subject: BoundedConversationsSubject) -> None:
    store, session = await subject.open(), new_session_id()
    full = [HELLO, ANSWER] * (CONVERSATION_MAX_MESSAGES // 2)
    await store.update(session, full[:-1], create=True)
    async with refused(HistoryFull, "a message too many", field="messages", bound="<= 1024"):
        await store.update(session, [*full, MORE])
    same(len((await store.snapshot(session)).messages), len(full) - 1, "nothing of the update is kept")
    await store.update(session, full)


@check("4 MiB of a session are held to the byte", "THR-19", "THR-88", "THR-T01")
async def session_bytes_bound(subject: BoundedConversationsSubject) -> None:
    store, session = await subject.open(), new_session_id()
    half = message_of_size(CONVERSATION_MAX_BYTES // 2)
    await store.update(session, [half], create=True)
    async with refused(HistoryFull, "a byte too many", field="session bytes", bound="<= 4194304"):
        await store.update(session, [half, message_of_size(CONVERSATION_MAX_BYTES // 2 + 1)])
    same((await store.snapshot(session)).messages, (half,), "nothing of the update is kept")
    full = await store.update(session, [half, half])
    same(full.size_bytes, CONVERSATION_MAX_BYTES, "exactly as much as there may be is taken")


@check("64 MiB of all sessions are held to the byte", "THR-20", "THR-T01")
async def all_bytes_bound(subject: BoundedConversationsSubject) -> None:
    store, last = await subject.open(), new_session_id()
    whole = message_of_size(CONVERSATION_MAX_BYTES)
    for _ in range(BYTES_MAX // CONVERSATION_MAX_BYTES - 1):
        await store.update(new_session_id(), [whole], create=True)
    rest = CONVERSATION_MAX_BYTES - len(HELLO.encoded)
    await store.update(last, [message_of_size(rest)], create=True)
    async with refused(HistoryFull, "a byte too many", field="bytes", bound="<= 67108864"):
        await store.update(new_session_id(), [message_of_size(len(HELLO.encoded) + 1)], create=True)
    other = new_session_id()
    await store.update(other, [HELLO], create=True)
    async with refused(HistoryFull, "it is full now", field="bytes"):
        await store.update(other, [HELLO, ANSWER])
    same((await store.snapshot(other)).messages, (HELLO,), "what was there stays")


@check("a session of another owner is a conflict that tells nothing of it", "THR-29", "THR-T04")
async def other_owners(subject: BoundedConversationsSubject) -> None:
    application = await subject.open()
    first, second = application.open_owner(), application.open_owner()
    theirs: dict[SessionId, ConversationStore] = {}
    for store in (application, first, second):
        session = new_session_id()
        await store.update(session, [HELLO, ANSWER], create=True)
        theirs[session] = store
    for session, owner in theirs.items():
        for store in (application, first, second):
            if store is not owner:
                await _is_closed_to(store, session)
        same((await owner.snapshot(session)).messages, (HELLO, ANSWER), "the owner's history is untouched")


async def _is_closed_to(store: ConversationStore, session: SessionId) -> None:
    for attempt in (
        partial(store.snapshot, session),
        partial(store.update, session, [HELLO, ANSWER, MORE]),
        partial(store.update, session, [MORE], create=True),
    ):
        try:
            await attempt()
        except HistoryConflict as error:
            same(type(error), HistoryConflict, "whether the content fits is not told")
            same(error.fields, {"session": session}, "nor how much of it there is")
        else:
            require(False, "another owner's session is not had")


@check("once an owner closed its sessions are gone, and it is fenced", "THR-30", "THR-35", "THR-T03")
async def closed_owner(subject: BoundedConversationsSubject) -> None:
    application, session = await subject.open(), new_session_id()
    owner = application.open_owner()
    await owner.update(session, [HELLO], create=True)
    owner.close()
    owner.close()
    for attempt in (
        partial(owner.snapshot, session),
        partial(owner.update, session, [HELLO, ANSWER]),
        partial(owner.update, new_session_id(), [HELLO], create=True),
    ):
        async with refused(HistoryFenced, "a closed owner has nothing"):
            await attempt()
    async with refused(HistoryMissing, "and the session leads nowhere", session=session):
        await application.snapshot(session)
    async with refused(HistoryMissing, "for any other owner too", session=session):
        await application.open_owner().snapshot(session)


@check("owners share the bounds, and get back what they held when they close", "THR-27", "THR-28", "THR-T03")
async def shared_bounds(subject: BoundedConversationsSubject) -> None:
    application = await subject.open()
    kept = new_session_id()
    await application.update(kept, [HELLO], create=True)
    whole = message_of_size(CONVERSATION_MAX_BYTES)
    for _ in range(2):
        owner = application.open_owner()
        for _ in range(BYTES_MAX // CONVERSATION_MAX_BYTES - 1):
            await owner.update(new_session_id(), [whole], create=True)
        async with refused(HistoryFull, "an owner has no budget of its own", field="bytes"):
            await application.open_owner().update(new_session_id(), [whole], create=True)
        owner.close()
    for _ in range(2):
        owner = application.open_owner()
        for _ in range(CONVERSATIONS_MAX - 1):
            await owner.update(new_session_id(), [HELLO], create=True)
        async with refused(HistoryFull, "nor a count of its own", field="sessions"):
            await application.update(new_session_id(), [HELLO], create=True)
        owner.close()
    same((await application.snapshot(kept)).messages, (HELLO,), "others' sessions stay")


CHECKS: Final[tuple[Check[BoundedConversationsSubject], ...]] = (
    sessions_bound,
    messages_bound,
    session_bytes_bound,
    all_bytes_bound,
    other_owners,
    closed_owner,
    shared_bounds,
)

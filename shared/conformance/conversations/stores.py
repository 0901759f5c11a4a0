"""What every conversation store must show: order, whole messages, prefixes, one winner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from shared.conformance.check import Check, ConformanceCheck, check, outcomes, refused, same
from shared.conversations.messages import (
    ConversationMessage,
    FilePart,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from shared.conversations.port import (
    ConversationStore,
    to_prompt,
)
from shared.domain.errors import (
    HistoryConflict,
    HistoryEncoding,
    HistoryMissing,
    SessionHistoryDiverged,
)
from shared.domain.ids import new_session_id

HELLO: Final = ConversationMessage.user("hello")
ANSWER: Final = ConversationMessage.assistant("Good day.")
MORE: Final = ConversationMessage.user("and?")


class ConversationStoreSubject(Protocol):
    """An adapter under test; the subject closes in the end what it opened."""

    async def open(self) -> ConversationStore:
        """Return a store, empty as far as this kit's fresh session ids go."""
        ...


def conversation_store_conformance(subject: ConversationStoreSubject) -> Sequence[ConformanceCheck]:
    """Return the checks of any conversation store for this subject. Each uses sessions of its own."""
    return [each.on(subject) for each in CHECKS]


@check(
    "a snapshot holds what the updates brought, in order, with every native part",
    "THR-01",
    "THR-41",
    "THR-43",
)
async def native_messages(subject: ConversationStoreSubject) -> None:
    store, session = await subject.open(), new_session_id()
    asked = ConversationMessage(
        role="user",
        parts=(
            TextPart(text="what is this? ☕"),
            FilePart(media_type="image/png", data="aGk=", name="a.png"),
        ),
    )
    called = ConversationMessage(
        role="assistant",
        parts=(
            ReasoningPart(text="I look.", options={"sig": {"n": [1, 2.5, None, "é"]}}),
            ToolCallPart(call_id="c1", name="look", arguments='{"b": 1,"a":2}'),
            ToolCallPart(call_id="c2", name="look", arguments="no json"),
        ),
        options={"provider": {"id": "m-1"}},
    )
    looked = ConversationMessage.tool(
        ToolResultPart(call_id="c2", name="look", text="failed", status="error"),
        ToolResultPart(call_id="c1", name="look", text="a cup"),
    )
    order = ConversationMessage(role="system", parts=(TextPart(text="Be brief."),))
    await store.update(session, [order, asked], create=True)
    await store.update(session, [order, asked, called, looked])
    updated = await store.update(session, [order, asked, called, looked, ANSWER])
    found = await store.snapshot(session)
    same(
        [m.encoded for m in to_prompt(found)],
        [m.encoded for m in (order, asked, called, looked, ANSWER)],
        "the snapshot is what was brought",
    )
    same(found.session_id, session, "and names its session")
    same(found.size_bytes, sum(len(m.encoded) for m in found.messages), "and counts its encoded content")
    same(updated.messages, found.messages, "and so is what the update answers")


@check("an update stores its new suffix only, and one that brings nothing changes nothing", "THR-86")
async def suffix_only(subject: ConversationStoreSubject) -> None:
    store, session = await subject.open(), new_session_id()
    await store.update(session, [HELLO], create=True)
    for _ in range(2):
        updated = await store.update(session, [HELLO, ANSWER])
        same(updated.messages, (HELLO, ANSWER), "what is recorded is not stored a second time")
        same(updated.size_bytes, len(HELLO.encoded) + len(ANSWER.encoded), "nor counted")


@check("an update that does not hold all that is recorded has diverged", "THR-87")
async def stale_prefix(subject: ConversationStoreSubject) -> None:
    store, session = await subject.open(), new_session_id()
    await store.update(session, [HELLO, ANSWER], create=True)
    for stale in ([], [HELLO]):
        async with refused(SessionHistoryDiverged, "a prefix is out of date", session=session):
            await store.update(session, stale)
    same((await store.snapshot(session)).messages, (HELLO, ANSWER), "nothing is taken back")


@check("an update that rewrites what is recorded has diverged", "THR-87")
async def rewritten_prefix(subject: ConversationStoreSubject) -> None:
    store, session = await subject.open(), new_session_id()
    await store.update(session, [HELLO, ANSWER], create=True)
    for rewritten in (
        [HELLO, ConversationMessage.assistant("Good night."), MORE],
        [ANSWER, HELLO, MORE],
        [ConversationMessage.assistant("hello"), ANSWER],
    ):
        async with refused(SessionHistoryDiverged, "a prefix is rewritten", session=session):
            await store.update(session, rewritten, create=True)
    same((await store.snapshot(session)).messages, (HELLO, ANSWER), "nothing is overwritten")


@check("options of another value have diverged, options with other order of keys have not", "THR-T10")
async def provider_options(subject: ConversationStoreSubject) -> None:
    store, session = await subject.open(), new_session_id()

    def said(options: Mapping[str, object]) -> ConversationMessage:
        return ConversationMessage(role="user", parts=(TextPart(text="x", options=options),), options=options)

    await store.update(session, [said({"a": 1, "b": {"c": [1], "d": "é"}})], create=True)
    updated = await store.update(session, [said({"b": {"d": "é", "c": [1]}, "a": 1}), ANSWER])
    same(len(updated.messages), 2, "the order of keys says nothing")
    for other in ({"a": 2, "b": {"c": [1], "d": "é"}}, {"a": 1}, {}, {"a": 1.0, "b": {"c": [1], "d": "é"}}):
        async with refused(SessionHistoryDiverged, f"{other} are other options"):
            await store.update(session, [said(other), ANSWER, MORE])
    same(len((await store.snapshot(session)).messages), 2, "nothing is overwritten")


@check("of concurrent extensions of one prefix exactly one is taken, whole", "THR-22", "THR-T02")
async def one_winner(subject: ConversationStoreSubject) -> None:
    store, session = await subject.open(), new_session_id()
    await store.update(session, [HELLO], create=True)
    offers = [(HELLO, ConversationMessage.assistant(f"answer {n}"), MORE) for n in range(8)]
    answers = await outcomes([store.update(session, offer) for offer in offers])
    won = [n for n, answer in enumerate(answers) if not isinstance(answer, Exception)]
    same(len(won), 1, "one extension wins")
    lost = [answer for answer in answers if isinstance(answer, HistoryConflict)]
    same([(len(lost), {e.reason for e in lost})], [(7, {"conflict"})], "the others are told of the conflict")
    same((await store.snapshot(session)).messages, offers[won[0]], "the history is the winner's")


@check("a session that nobody began is not found, and begins only when that is asked for", "THR-07")
async def beginnings(subject: ConversationStoreSubject) -> None:
    store, session = await subject.open(), new_session_id()
    async with refused(HistoryMissing, "nothing is there", session=session):
        await store.snapshot(session)
    async with refused(HistoryMissing, "an update begins nothing by itself", session=session):
        await store.update(session, [HELLO])
    async with refused(HistoryMissing, "and a refused one leaves nothing", session=session):
        await store.snapshot(session)
    await store.update(session, [HELLO], create=True)
    same((await store.snapshot(session)).messages, (HELLO,), "one that was asked to begin is there")


@check("a tool batch is stored whole or not at all", "THR-12", "THR-14")
async def whole_batches(subject: ConversationStoreSubject) -> None:
    store, session = await subject.open(), new_session_id()
    calls = [ToolCallPart(call_id=f"c{n}", name="t", arguments="{}") for n in (1, 2)]
    results = [ToolResultPart(call_id=f"c{n}", name="t", text="r") for n in (1, 2)]
    asked = ConversationMessage.assistant("", calls)
    one, both = ConversationMessage.tool(results[0]), ConversationMessage.tool(*results)
    await store.update(session, [HELLO], create=True)
    for broken in (
        [asked],
        [asked, one],
        [asked, one, MORE],
        [both],
        [asked, both, both],
        [asked, MORE, both],
    ):
        async with refused(HistoryEncoding, "a call and its result stay together"):
            await store.update(session, [HELLO, *broken])
        same((await store.snapshot(session)).messages, (HELLO,), "nothing of a broken batch is kept")
    await store.update(session, [HELLO, asked, one, ConversationMessage.tool(results[1]), ANSWER])


@check("a message that cannot be stored is refused, and nothing of its update is kept", "THR-74")
async def unstorable(subject: ConversationStoreSubject) -> None:
    store, session = await subject.open(), new_session_id()
    await store.update(session, [HELLO], create=True)
    for text in ("a\x00b", "a\ud800b"):
        async with refused(HistoryEncoding, "the text cannot be stored"):
            await store.update(session, [HELLO, ANSWER, ConversationMessage.user(text)])
    async with refused(HistoryEncoding, "a message without content is none"):
        await store.update(session, [HELLO, ConversationMessage(role="user", parts=())])
    same((await store.snapshot(session)).messages, (HELLO,), "not even what was well in it")


@check("a snapshot and the list of an update are values of their own", "THR-34")
async def values(subject: ConversationStoreSubject) -> None:
    store, session = await subject.open(), new_session_id()
    given = [HELLO]
    before = await store.update(session, given, create=True)
    given.append(MORE)
    same((await store.snapshot(session)).messages, (HELLO,), "the caller's list is not the store's")
    await store.update(session, [HELLO, ANSWER])
    same(before.messages, (HELLO,), "a snapshot stays what it was")


CHECKS: Final[tuple[Check[ConversationStoreSubject], ...]] = (
    native_messages,
    suffix_only,
    stale_prefix,
    rewritten_prefix,
    provider_options,
    one_winner,
    beginnings,
    whole_batches,
    unstorable,
    values,
)

"""The kit of the document store: what any adapter of :class:`memory_pipeline.store.port.MemoryStore` must show.

Conditional writes and their receipts are here; reading and searching, and bounds, are in the files beside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from memory_pipeline.store import conformance_bounds, conformance_reading
from memory_pipeline.store.conformance_stage import MemoryStoreSubject, put, said, stage, withdraw
from memory_pipeline.store.documents import Command, Document, encode
from shared.conformance.check import ConformanceCheck, check, checks_of, outcomes, refused, require, same
from shared.domain.errors import (
    MemoryConflict,
    MemoryCorrupt,
    MemoryMissing,
    MemoryOperationConflict,
    MemoryWithdrawn,
)

WRITERS: Final = 50


def memory_store_conformance(subject: MemoryStoreSubject) -> Sequence[ConformanceCheck]:
    """Return the checks of the document store for this subject. Each uses a namespace of its own."""
    checks = [*CHECKS, *conformance_reading.CHECKS, *conformance_bounds.CHECKS]
    return [each.on(subject) for each in checks]


@check("a put without an expected revision creates the first generation", "MEM-24", "MEM-26", "MEM-29")
async def creation(subject: MemoryStoreSubject) -> None:
    at = await stage(subject)
    made = await at.put("blue")
    same((made.generation, made.source.revision, made.predecessor), (1, "1", None), "it is generation 1")
    same((made.source.id, made.source.locator, made.scopes), ("d", "memory/d", ("private",)), "as it was put")
    same(made.content, said("blue"), "times and attributions are left as they were given")
    require(made.modified_at > 10**12, "the store's clock says when, in epoch milliseconds")
    same(await at.now(), made, "the answer is what is read")


@check("each replacement names its predecessor and moves only its own time", "MEM-27", "MEM-28", "MEM-29")
async def replacement(subject: MemoryStoreSubject) -> None:
    at = await stage(subject)
    first = await at.put("blue")
    second = await at.put("green", "1", locator="memory/moved", scopes=())
    same((second.generation, second.predecessor), (2, first.source), "the second follows the first")
    same((second.source.locator, second.scopes), ("memory/moved", ()), "locator and scopes are the command's")
    require(second.modified_at >= first.modified_at, "modified_at follows the update")
    same(second.content, said("green"), "recorded_at and extracted_at are left alone")


@check("a competing edit is told both revisions and changes nothing", "MEM-27", "MEM-36")
async def competing_edit(subject: MemoryStoreSubject) -> None:
    at = await stage(subject)
    await at.put("blue")
    stands = await at.put("green", "1")
    for expected in ("1", "3", None, "02", "two", "-2", "9" * 30):
        async with refused(MemoryConflict, f"{expected} does not stand", expected=expected, actual="2"):
            await at.put("red", expected)
        async with refused(MemoryConflict, f"{expected} is not withdrawn", expected=expected, actual="2"):
            await at.withdraw(expected)
    same(await at.now(), stands, "the winning edit stays")
    same(len(await at.store.history(at.key())), 2, "nothing was written")


@check("of 50 writers at one revision exactly one wins", "MEM-03", "MEM-T03")
async def one_winner(subject: MemoryStoreSubject) -> None:
    at = await stage(subject)
    await at.put("start")
    handles = [at.store, await subject.open()]
    commands = [put(at.key(), f"text {n}", "1") for n in range(WRITERS)]
    answers = await outcomes([handles[n % 2].write(c, owner=at.owner) for n, c in enumerate(commands)])
    winners = [n for n, a in enumerate(answers) if isinstance(a, Document)]
    losers = [a for a in answers if isinstance(a, MemoryConflict)]
    same((len(winners), len(losers)), (1, WRITERS - 1), "one wins, all others conflict")
    same({(a.fields["expected"], a.fields["actual"]) for a in losers}, {("1", "2")}, "each is told why")
    same(await at.now(), answers[winners[0]], "the winner's content is intact")
    chain = [
        (d.generation, d.predecessor and d.predecessor.revision) for d in await at.store.history(at.key())
    ]
    same(chain, [(2, "1"), (1, None)], "the chain of predecessors is unbroken")


@check("of many creations at once exactly one creates", "MEM-26")
async def one_creation(subject: MemoryStoreSubject) -> None:
    at = await stage(subject)
    commands = [put(at.key(), f"text {n}") for n in range(16)]
    answers = await outcomes([at.store.write(c, owner=at.owner) for c in commands])
    same(sum(isinstance(a, Document) for a in answers), 1, "one creates it")
    same(sum(isinstance(a, MemoryConflict) for a in answers), 15, "the others find it created")


@check("one operation submitted twice at once is done once and answered twice", "MEM-32", "MEM-T04")
async def one_operation_twice(subject: MemoryStoreSubject) -> None:
    at = await stage(subject)
    handles = [at.store, await subject.open()]
    commands: list[Command] = [put(at.key(), "blue"), put(at.key(), "green", "1"), withdraw(at.key(), "2")]
    for command in commands:
        answers = await outcomes([handles[n % 2].write(command, owner=at.owner) for n in range(8)])
        require(all(answer == answers[0] for answer in answers), "each gets the same document")
        same(answers[0], await at.now(), "which is the one that is stored")
    same(len(await at.store.history(at.key())), 3, "each operation made one generation")


@check("one operation id with other content is a conflict, also at once", "MEM-34", "MEM-T04")
async def operation_conflict(subject: MemoryStoreSubject) -> None:
    at = await stage(subject)
    commands = [put(at.key(), text, operation_id="op") for text in ("blue", "red")]
    answers = await outcomes([at.store.write(command, owner=at.owner) for command in commands])
    same(sum(isinstance(a, Document) for a in answers), 1, "one is done")
    same(sum(type(a) is MemoryOperationConflict for a in answers), 1, "the other is refused")
    for other in (
        put(at.key(), "green", "1", operation_id="op"),
        put(at.key(), "blue", scopes=(), operation_id="op"),
        withdraw(at.key(), "1", operation_id="op"),
        put(at.key("other"), "blue", operation_id="op"),
    ):
        async with refused(MemoryOperationConflict, "the id is taken", operation_id="op"):
            await at.store.write(other, owner=at.owner)
    same(len(await at.store.history(at.key())), 1, "nothing more was written")
    same(await at.store.read(at.key("other")), None, "nor elsewhere")


@check("one operation id on two documents at once is done on one of them", "MEM-34")
async def operation_on_two_documents(subject: MemoryStoreSubject) -> None:
    at = await stage(subject)
    handles = [at.store, await subject.open()]
    ids = [f"d{n}" for n in range(8)]
    commands = [put(at.key(name), "blue", operation_id="op") for name in ids]
    answers = await outcomes([handles[n % 2].write(c, owner=at.owner) for n, c in enumerate(commands)])
    same(sum(isinstance(a, Document) for a in answers), 1, "one is done")
    same(sum(type(a) is MemoryOperationConflict for a in answers), 7, "the others are refused")
    found = await at.store.read_many([at.key(name) for name in ids])
    same([f for f in found if f], [a for a in answers if isinstance(a, Document)], "and wrote nothing")


@check("a replay returns the first document and undoes no later edit", "MEM-32", "MEM-33", "MEM-T05")
async def replay_after_edit(subject: MemoryStoreSubject) -> None:
    at = await stage(subject)
    command = put(at.key(), "blue")
    first = await at.store.write(command, owner=at.owner)
    same(await at.store.write(command, owner=at.owner), first, "a lost acknowledgement is had again")
    edited = await at.put("green", "1")
    again = await (await subject.open()).write(command, owner=at.owner)
    same(again, first, "the receipt's document, an older revision by now")
    same(await at.now(), edited, "the edit stays")
    same(len(await at.store.history(at.key())), 2, "a replay is no generation")


@check("a replay after a withdrawal returns the first document and revives nothing", "MEM-33", "MEM-T05")
async def replay_after_withdrawal(subject: MemoryStoreSubject) -> None:
    at = await stage(subject)
    command = put(at.key(), "blue")
    first = await at.store.write(command, owner=at.owner)
    end = withdraw(at.key(), "1")
    gone = await at.store.write(end, owner=at.owner)
    same(await at.store.write(command, owner=at.owner), first, "the receipt's document")
    same(await at.store.write(end, owner=at.owner), gone, "and the withdrawal's")
    same(await at.now(), gone, "it stays withdrawn")


@check(
    "a withdrawal is final: no put revives the id, whatever revision it names", "MEM-25", "MEM-39", "MEM-T06"
)
async def withdrawal_is_final(subject: MemoryStoreSubject) -> None:
    at = await stage(subject)
    await at.put("blue", locator="memory/kept")
    gone = await at.withdraw("1", reason="was wrong")
    same(
        (gone.content, gone.scopes, gone.reason), (None, (), "was wrong"), "no content is left, but a reason"
    )
    same((gone.generation, gone.source.locator), (2, "memory/kept"), "and the locator it had")
    for expected in (None, "1", "2"):
        async with refused(MemoryWithdrawn, f"a put at {expected}", id="d", revision="2"):
            await at.put("again", expected)
        async with refused(MemoryWithdrawn, f"a withdrawal at {expected}", id="d", revision="2"):
            await at.withdraw(expected)
    same(await at.now(), gone, "nothing was written")


@check("what is not there can be neither replaced nor withdrawn", "MEM-26", "MEM-27")
async def nothing_there(subject: MemoryStoreSubject) -> None:
    at = await stage(subject)
    async with refused(MemoryConflict, "there is no revision 1", expected="1", actual=None):
        await at.put("blue", "1")
    for expected in (None, "1"):
        async with refused(MemoryMissing, "there is nothing to withdraw", id="d"):
            await at.withdraw(expected)
    same(await at.store.read(at.key()), None, "nothing was written")
    await at.put("blue")


@check("another owner's document takes no write and tells nothing, its receipts included")
async def another_owner(subject: MemoryStoreSubject) -> None:
    at = await stage(subject)
    command, stranger = put(at.key(), "blue"), subject.new_owner()
    stands = await at.store.write(command, owner=at.owner)
    for attempt in (command, put(at.key(), "red"), put(at.key(), "red", "1")):
        expected = attempt.expected_revision
        async with refused(MemoryConflict, "it reads as none", expected=expected, actual=None):
            await at.store.write(attempt, owner=stranger)
    async with refused(MemoryMissing, "nor can it be withdrawn", id="d"):
        await at.store.write(withdraw(at.key(), "1"), owner=stranger)
    same(await at.now(), stands, "nothing was written")
    await at.withdraw("1")
    async with refused(MemoryConflict, "withdrawn reads the same", expected=None, actual=None):
        await at.store.write(put(at.key(), "red"), owner=stranger)


@check("a receipt that does not match its command is corrupt, in every part", "MEM-37", "MEM-38", "MEM-T09")
async def corrupt_receipts(subject: MemoryStoreSubject) -> None:
    at = await stage(subject)
    commands: list[Command] = [put(at.key(), "a"), put(at.key(), "b", "1"), withdraw(at.key(), "2")]
    stored = [await at.store.write(command, owner=at.owner) for command in commands]
    source = stored[1].source
    wrong: list[tuple[int, str, dict[str, Any]]] = [
        (1, "key", {"key": at.key("other")}),
        (1, "predecessor", {"predecessor": source.model_copy(update={"revision": "7"})}),
        (0, "predecessor", {"predecessor": source}),
        (1, "generation", {"source": source.model_copy(update={"revision": "7"})}),
        (1, "kind", {"content": None, "scopes": (), "reason": "x"}),
        (1, "locator", {"source": source.model_copy(update={"locator": "memory/x"})}),
        (2, "locator", {"source": stored[2].source.model_copy(update={"locator": "memory/x"})}),
        (1, "scopes", {"scopes": ("private", "team")}),
        (1, "content", {"content": said("c")}),
        (1, "reason", {"reason": "x"}),
        (2, "reason", {"reason": "x"}),
    ]
    for place, part, changes in wrong:
        text = encode(stored[place].model_copy(update=changes))
        await subject.tamper(at.key(), place + 1, text)
        async with refused(MemoryCorrupt, f"a wrong {part} is seen", part=part):
            await at.store.write(commands[place], owner=at.owner)
        await subject.tamper(at.key(), place + 1, encode(stored[place]))
    await subject.tamper(at.key(), 2, encode(stored[1]).replace(":", ": ", 1))
    async with refused(MemoryCorrupt, "a text that is not canonical is seen"):
        await at.store.write(commands[1], owner=at.owner)


CHECKS: Final = checks_of(globals())

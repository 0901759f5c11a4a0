"""The kit's checks of reading, searching and history."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from memory_pipeline.store.conformance_stage import (
    SCOPE,
    MemoryStoreSubject,
    Stage,
    put,
    said,
    stage,
    withdraw,
)
from memory_pipeline.store.documents import MemoryKey, Passage, encode
from memory_pipeline.store.forget import forget_namespace
from shared.conformance.check import check, checks_of, refused, require, same
from shared.domain.errors import InvalidInput, MemoryCorrupt, MemoryWithdrawn

#: What JSON escapes, what PostgreSQL and Python might escape differently, and what is longer than one unit.
AWKWARD = "\b\f\n\r\t\x01\x1f\x7f\"\\/'%s{}\u00a0\u2028\ufffe\U0001f600 e\u0301"


async def store_texts(at: Stage, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        await at.store.write(put(at.key(name), text), owner=at.owner)


def ids_of(passages: Iterable[Passage]) -> list[str]:
    return [passage.source.id for passage in passages]


@check("documents are read in the order asked for, absent and repeated ones too")
async def reading_many(subject: MemoryStoreSubject) -> None:
    at = await stage(subject)
    await store_texts(at, {"a": "1", "b": "2"})
    await at.store.write(withdraw(at.key("b"), "1"), owner=at.owner)
    found = await at.store.read_many([at.key(name) for name in ("b", "none", "a", "b")])
    same([f and f.key.id for f in found], ["b", None, "a", "b"], "one answer a key, in order")
    same([f and f.withdrawn for f in found], [True, None, False, True], "withdrawn ones included")
    same(await at.store.read_many([]), [], "no keys, no documents")
    async with refused(InvalidInput, "too many keys are refused", field="keys"):
        await at.store.read_many([at.key()] * 1_025)


@check("every text comes back as it was put")
async def awkward_texts(subject: MemoryStoreSubject) -> None:
    at = await stage(subject)
    key = MemoryKey(namespace=at.namespace, id=f"id {AWKWARD}")
    content = said(AWKWARD, metadata={AWKWARD: [1, 2.5, -0.0, None, True, {"x": AWKWARD}, 10**30]})
    first = put(key, content=content, locator=f"at {AWKWARD}", scopes=(AWKWARD, "b", "a"))
    made = await at.store.write(first, owner=at.owner)
    same((made.key, made.source.id, made.source.locator), (key, key.id, first.locator), "names are kept")
    same((made.scopes, encode(content)), (first.scopes, encode(made.content or said("x"))), "and contents")
    moved = await at.store.write(put(key, AWKWARD, "1", locator="elsewhere"), owner=at.owner)
    same(moved.predecessor, made.source, "the predecessor is as it was")
    gone = await at.store.write(withdraw(key, "2", reason=AWKWARD), owner=at.owner)
    same((gone.reason, gone.source.locator), (AWKWARD, "elsewhere"), "a reason is kept too")
    same(await at.store.read(key), gone, "and all of it is read back")


@check("the same id in two namespaces is two documents", "MEM-39")
async def one_id_in_two_namespaces(subject: MemoryStoreSubject) -> None:
    one, other = await stage(subject), await stage(subject)
    await one.put("blue")
    kept = await other.put("green", operation_id="op")
    await one.store.write(put(one.key("x"), "blue", operation_id="op"), owner=one.owner)
    await one.withdraw("1")
    same(await other.now(), kept, "the other one is untouched")
    await other.put("still green", "1")
    same(ids_of(await other.store.search(other.namespace, SCOPE, "blue")), [], "and finds its own only")


@check("forgetting everything of one namespace leaves the others as they were", "MEM-39", "MEM-40")
async def forget_everything(subject: MemoryStoreSubject) -> None:
    one, other = await stage(subject), await stage(subject)
    names = [f"profile-{n}" for n in range(5)]
    for at in (one, other):
        await store_texts(at, dict.fromkeys(names, "likes blue"))
    await one.store.write(withdraw(one.key(names[0]), "1"), owner=one.owner)
    before = await other.store.list(other.namespace)
    same(
        await forget_namespace(one.store, one.namespace, owner=one.owner, reason="asked"), 4, "four were left"
    )
    same(await forget_namespace(one.store, one.namespace, owner=one.owner, reason="asked"), 0, "none is left")
    require(all(d.withdrawn for d in await one.store.list(one.namespace)), "all are withdrawn")
    same(list(await one.store.search(one.namespace, SCOPE, "blue")), [], "nothing of them is found")
    same(await other.store.list(other.namespace), before, "the other namespace is as it was")
    same(len(await other.store.search(other.namespace, SCOPE, "blue")), 5, "and found as before")
    async with refused(MemoryWithdrawn, "no id comes back"):
        await one.store.write(put(one.key(names[1]), "again"), owner=one.owner)


@check("a document is found by any word of a question, most words first, with its attribution")
async def search_by_words(subject: MemoryStoreSubject) -> None:
    at = await stage(subject)
    await store_texts(
        at,
        {
            "a": "Has a green bicycle.",
            "b": "The favourite colour is Blue.",
            "c": "Owns a blue boat, and is called Ada.",
        },
    )
    found = await at.store.search(at.namespace, SCOPE, "What is my favourite BLUE thing?")
    same(ids_of(found), ["b", "c"], "b holds two of the words, c one, a none")
    whole = found[0]
    same((whole.passage_id, whole.content), ("document", said("The favourite colour is Blue.")), "as put")
    same((whole.source.revision, whole.authority), ("1", at.namespace), "with source and private authority")
    same(len(await at.store.search(at.namespace, SCOPE, "blue", limit=1)), 1, "no more than asked for")


@check("a query without a word finds nothing, and none of its signs is an operator")
async def search_by_nothing(subject: MemoryStoreSubject) -> None:
    at = await stage(subject)
    await store_texts(at, {"a": "is it what the ! & | <-> :* thing"})
    for query in ("", "  ", "what is it?", "! & | <-> :* ''", "\x00", "zzz", "%", "'"):
        same(list(await at.store.search(at.namespace, SCOPE, query)), [], f"{query!r} finds nothing")
    for query in (
        "!thing",
        "thing:*",
        "'thing' & zzz",
        "thing \x00 \ud800",
        "zzz " * 60 + "thing",
        "\\thing",
    ):
        same(ids_of(await at.store.search(at.namespace, SCOPE, query)), ["a"], f"{query!r} finds it")
    same(list(await at.store.search(at.namespace, SCOPE, "thi")), [], "a part of a word is no word")


@check("a search answers active documents of this namespace and scope only", "MEM-07", "MEM-40", "MEM-41")
async def search_is_confined(subject: MemoryStoreSubject) -> None:
    at, other = await stage(subject), await stage(subject)
    await store_texts(at, {"gone": "blue", "edited": "blue", "kept": "blue"})
    for name, scopes in (("team", ("team",)), ("both", ("team", SCOPE)), ("nobody", ())):
        await at.store.write(put(at.key(name), "blue", scopes=scopes), owner=at.owner)
    await other.store.write(put(other.key("theirs"), "blue"), owner=at.owner)
    await at.store.write(withdraw(at.key("gone"), "1"), owner=at.owner)
    await at.store.write(put(at.key("edited"), "green", "1"), owner=at.owner)
    found = await at.store.search(at.namespace, SCOPE, "blue")
    same(sorted(ids_of(found)), ["both", "kept"], "private ones that say blue now")
    same(sorted(ids_of(await at.store.search(at.namespace, "team", "blue"))), ["both", "team"], "of the team")
    same(list(await at.store.search(at.namespace, "", "blue")), [], "an unknown scope finds nothing")
    await at.store.write(put(at.key("kept"), "blue", "1", scopes=("team",)), owner=at.owner)
    same(ids_of(await at.store.search(at.namespace, SCOPE, "blue")), ["both"], "a revoked scope ends at once")


@check("of a long document the runs of lines with words of the query are found, most words first")
async def search_in_long_documents(subject: MemoryStoreSubject) -> None:
    at = await stage(subject)
    lines = [f"line {n} says nothing much at all" for n in range(200)]
    lines[3] = "The boat is blue."
    lines[99:101] = ["The favourite colour is blue.", "Another colour is green."]
    text = "\n".join(lines)
    await store_texts(at, {"a": text})
    found = await at.store.search(at.namespace, SCOPE, "favourite colour blue")
    same([p.passage_id for p in found], ["lines:100-101", "lines:4-4"], "two runs")
    same([p.content.text for p in found], ["\n".join(lines[99:101]), lines[3]], "their text")
    require(all(p.content.text in text for p in found), "each occurs in the document literally")
    same(
        len(await at.store.search(at.namespace, SCOPE, "colour blue", limit=1)),
        1,
        "the limit counts passages",
    )


@check("history has every generation, the newest first, and a withdrawn one keeps it", "MEM-28", "MEM-45")
async def history(subject: MemoryStoreSubject) -> None:
    at = await stage(subject)
    made = [await at.put("1"), await at.put("2", "1"), await at.put("3", "2"), await at.withdraw("3")]
    same(list(await at.store.history(at.key())), made[::-1], "all four")
    same(list(await at.store.history(at.key(), limit=2)), made[:1:-1], "the newest two")
    same(list(await at.store.history(at.key("none"))), [], "none of what never was")


@check("the documents of a namespace are listed in pages by id")
async def listing(subject: MemoryStoreSubject) -> None:
    at, other = await stage(subject), await stage(subject)
    names = ["A", "B10", "B2", "a", "b", "\u00e9", "\ue000", "\U0001f600"]
    await store_texts(at, dict.fromkeys(reversed(names), "text"))
    await store_texts(other, {"elsewhere": "text"})
    await at.store.write(withdraw(at.key("a"), "1"), owner=at.owner)
    seen: list[str] = []
    while page := await at.store.list(at.namespace, limit=3, after=seen[-1] if seen else None):
        seen += [document.key.id for document in page]
    same(seen, names, "by code points, withdrawn ones included")
    same([d.key.id for d in await at.store.list(at.namespace)], names, "and of this namespace only")
    for limit in (0, -1, 129):
        async with refused(InvalidInput, f"a limit of {limit} is refused", field="limit"):
            await at.store.list(at.namespace, limit=limit)


@check("a stored document that does not decode is corrupt, not skipped")
async def corrupt_documents(subject: MemoryStoreSubject) -> None:
    at = await stage(subject)
    stored = await at.put("blue")
    for text in ("{}", encode(stored).replace("blue", "blue\\u0061"), encode(stored)[:-1], ""):
        await subject.tamper(at.key(), 1, text)
        async with refused(MemoryCorrupt, "reading says so"):
            await at.store.read(at.key())
        async with refused(MemoryCorrupt, "history too"):
            await at.store.history(at.key())


@check("a key, a scope or an id that no store can hold is refused")
async def unstorable_names(subject: MemoryStoreSubject) -> None:
    at = await stage(subject)
    for text in ("a\x00", "\ud800"):
        async with refused(InvalidInput, "in a key", field="id"):
            await at.store.read(at.key().model_copy(update={"id": text}))
        async with refused(InvalidInput, "in a scope", field="scope"):
            await at.store.search(at.namespace, text, "blue")
        async with refused(InvalidInput, "in a cursor", field="after"):
            await at.store.list(at.namespace, after=text)


CHECKS: Final = checks_of(globals())

"""The kit's checks of bounds: what is too large or cannot be stored is refused, and nothing is written."""

from __future__ import annotations

from typing import Any, Final

from memory_pipeline.store.conformance_stage import MemoryStoreSubject, Stage, put, said, stage, withdraw
from memory_pipeline.store.documents import STORED_MAX_BYTES, Content, Put, encode
from memory_pipeline.store.transition import next_document
from shared.conformance.check import check, checks_of, refused, same
from shared.domain.errors import InputTooLarge, InvalidInput

#: A time of 13 digits, as clocks show until the year 2286.
_NOW_MS: Final = 10**12


async def refuses(at: Stage, field: str, error: type[InvalidInput] = InvalidInput, **given: Any) -> None:
    """Require that a put is refused for a field, with nothing written."""
    command = put(at.key(), **given)
    async with refused(error, f"{field} is refused", field=field):
        await at.store.write(command, owner=at.owner)
    same(await at.store.read(at.key()), None, "nothing was written")
    same(list(await at.store.history(at.key())), [], "no generation either")
    await at.store.write(put(at.key("free"), operation_id=command.operation_id), owner=at.owner)


@check("a command of 16 MiB is stored, one of a byte more writes nothing", "MEM-53", "MEM-T10")
async def command_bytes(subject: MemoryStoreSubject) -> None:
    for extra in (0, 1):
        at = await stage(subject)
        command = _filled(put(at.key(), operation_id="o" * 1_024), extra, of_document=False)
        await _stored_or_refused(at, command, "command" if extra else "")


@check("a document of 16 MiB is stored, one of a byte more writes nothing", "MEM-53", "MEM-T10")
async def document_bytes(subject: MemoryStoreSubject) -> None:
    for extra in (0, 1):
        at = await stage(subject)
        key = at.key("i" * 1_024)
        command = _filled(put(key, operation_id="o"), extra, of_document=True)
        await _stored_or_refused(at, command, "document" if extra else "")


@check("metadata has at most 8 KiB of JSON, 64 keys and keys of 128 characters", "MEM-53")
async def metadata_bounds(subject: MemoryStoreSubject) -> None:
    room = 8_192 - len('{"k":""}') - 1
    fitting = [
        {"k": "\u754c" * (room // 3) + "." * (room % 3 + 1)},
        {str(n): n for n in range(64)},
        {"k" * 128: 1},
    ]
    for metadata in fitting:
        at = await stage(subject)
        made = await at.put(content=said("text", metadata=metadata))
        same(made.content and made.content.metadata, metadata, "metadata within its bounds is kept")
    at = await stage(subject)
    larger = {"k": "\u754c" * (room // 3) + "." * (room % 3 + 2)}
    await refuses(at, "content/metadata", InputTooLarge, content=said("text", metadata=larger))
    await refuses(await stage(subject), "content/metadata", content=said("text", metadata={"k" * 129: 1}))


@check("metadata is JSON and nothing else")
async def metadata_values(subject: MemoryStoreSubject) -> None:
    for value in (float("nan"), float("inf"), b"x", {1, 2}, object()):
        given = said("text").model_copy(update={"metadata": {"k": value}})
        await refuses(await stage(subject), "content/metadata/k", content=given)
    await refuses(await stage(subject), "content/metadata", content=said("text", metadata={"\ud800": 1}))


@check("scopes and observers are named once each")
async def unique_names(subject: MemoryStoreSubject) -> None:
    await refuses(await stage(subject), "scopes", scopes=("a", "b", "a"))
    [attribution] = said("text").attributions
    twice = attribution.model_copy(update={"observers": ("x", "x")})
    content = said("text", attributions=(attribution, twice))
    await refuses(await stage(subject), "content/attributions/1/observers", content=content)


@check("text that no store can hold is refused wherever it stands")
async def unstorable_text(subject: MemoryStoreSubject) -> None:
    for bad in ("a\x00b", "a\ud800"):
        # Copied, since a value is not validated again then: an adapter is handed what a caller may have made so.
        text = said("text").model_copy(update={"text": bad})
        wrong: dict[str, dict[str, Any]] = {
            "command/content/text": {"content": text},
            "command/locator": {"locator": bad},
            "command/scopes/0": {"scopes": (bad,)},
            "command/operation_id": {"operation_id": bad},
        }
        for field, changes in wrong.items():
            at = await stage(subject)
            async with refused(InvalidInput, f"{field} is refused", field=field):
                await at.store.write(put(at.key()).model_copy(update=changes), owner=at.owner)
            same(await at.store.read(at.key()), None, "nothing was written")
        at = await stage(subject)
        await at.put("text")
        end = withdraw(at.key(), "1").model_copy(update={"reason": bad})
        async with refused(InvalidInput, "in a reason too", field="command/reason"):
            await at.store.write(end, owner=at.owner)
        same((await at.now()).generation, 1, "nothing was written")


@check("the longest text is stored, though it has more words than a search can hold")
async def longest_text(subject: MemoryStoreSubject) -> None:
    at = await stage(subject)
    words = " ".join(f"w{n:x}-{n:x}.example/x{n:x}" for n in range(60_000))
    text = f"first {words}"[:1_048_576].ljust(1_048_576, "\u754c")
    await at.put(text)
    [found, *_] = await at.store.search(at.namespace, "private", "first")
    same(found.content.text == text, True, "it is found by a word of its beginning")


def _filled(command: Put, extra: int, *, of_document: bool) -> Put:
    """Return the command grown until it, or the document it leads to, has the bound's bytes and ``extra`` more."""
    names = tuple(f"{n:03d}" + "\u754c" * 1_021 for n in range(128))
    attributions = [
        said("x").attributions[0].model_copy(update={"observers": names, "origin_id": str(n)})
        for n in range(42)
    ]
    content = command.content.model_copy(update={"attributions": tuple(attributions)})
    grown = command.model_copy(update={"content": content})
    short = STORED_MAX_BYTES + extra - _size(grown, of_document=of_document)
    text = content.text + "x" * short
    return command.model_copy(
        update={"content": Content.model_validate(content.model_dump() | {"text": text})}
    )


def _size(command: Put, *, of_document: bool) -> int:
    value = next_document(command, None, _NOW_MS) if of_document else command
    return len(encode(value).encode())


async def _stored_or_refused(at: Stage, command: Put, field: str) -> None:
    if not field:
        made = await at.store.write(command, owner=at.owner)
        same(made.generation, 1, "it is stored")
        return
    async with refused(InputTooLarge, "it is refused", field=field):
        await at.store.write(command, owner=at.owner)
    same(await at.store.read(command.key), None, "nothing was written")
    await at.store.write(put(at.key("free"), operation_id=command.operation_id), owner=at.owner)


CHECKS: Final = checks_of(globals())

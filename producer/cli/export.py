"""``turnkeeper export``: one session as a transfer file, in short reads beside live traffic (OPS-06, THR-103)."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import typer

from producer.cli.progress import Show, showing
from producer.cli.transferring import JsonOption, OwnerOption, Stores, owner_id, session_of, stores
from shared.domain.errors import InvalidInput, SourceMoved
from shared.transfer.export import Cursor, begin_export, stream_export
from shared.transfer.resuming import cursor_of

#: A source that changes under an export to a file is begun anew this often.
TRIES: Final = 3
PART: Final = ".part"


def command(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="The file; without it the lines go to stdout.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with FILE.part of a cut export.")] = False,
    owner: OwnerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a session with its log, turns, keys and tool ledger as JSON lines, all as of one moment.

    FILE appears when it is whole; until then its lines are in FILE.part.
    """
    if out is None and (resume or as_json):
        raise InvalidInput("--resume and --json need --out", field="--out", bound="a file")
    if out is not None and out.exists():
        raise InvalidInput(f"{out} exists", field="--out", bound="a file that is not there yet")
    done = asyncio.run(_export(session, owner, out, resume=resume))
    if out is None:
        return
    print(json.dumps(done) if as_json else f"{done['session']}: {done['records']} records to {out}")


async def _export(session: str, owner: str | None, out: Path | None, *, resume: bool) -> dict[str, Any]:
    async with stores("export") as found:
        begun = session_of(session, field="SESSION"), owner_id(owner)
        with showing(f"export {session}", "lines") as show:
            if out is None:
                return await _write(
                    found, await begin_export(found.transfer, *begun), sys.stdout.buffer, show
                )
            part = out.with_name(out.name + PART)
            kept = _cut(part, session) if resume else None
            for tries_left in reversed(range(TRIES)):
                cursor = kept if kept is not None else await begin_export(found.transfer, *begun)
                try:
                    with part.open("ab" if kept is not None else "wb") as file:
                        done = await _write(found, cursor, file, show)
                        os.fsync(file.fileno())
                except SourceMoved:
                    kept = None
                    if not tries_left:
                        raise
                    continue
                part.rename(out)
                return done
    raise AssertionError("the last try raises or returns")


def _cut(part: Path, session: str) -> Cursor | None:
    """The cursor behind what a cut export has written whole; what was written in part is taken away."""
    if not part.exists():
        return None
    with part.open("r+b") as file:
        found = cursor_of(file)
        if found is None:
            return None
        cursor, size = found
        if cursor.snapshot.session.id != session:
            raise InvalidInput(f"{part} is of another session", field="--resume", bound=session)
        file.truncate(size)
    return cursor


async def _write(found: Stores, cursor: Cursor, file: BinaryIO, show: Show) -> dict[str, Any]:
    async for page in stream_export(found.log, found.transfer, _id(cursor), cursor=cursor):
        file.write(page.lines)
        file.flush()
        show(page.done, page.total)
        await found.failpoints.hit("export.page-written")
    return {"session": _id(cursor), "tail": cursor.snapshot.tail} | cursor.snapshot.counts.model_dump()


def _id(cursor: Cursor) -> Any:
    return cursor.snapshot.session.id

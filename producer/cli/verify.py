"""``turnkeeper verify``: recheck the digest chain of a session, of all, or of a transfer file (OPS-06)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from producer.cli.progress import showing
from producer.cli.transferring import (
    DAMAGED_STATUS,
    JsonOption,
    OwnerOption,
    Stores,
    owner_id,
    session_of,
    stores,
)
from shared.domain.errors import InvalidInput, SessionCorrupt, SessionMissing, TransferInvalid
from shared.domain.ids import OwnerId, SessionId
from shared.transfer.verify import verify_file, verify_session

_PAGE = 200
_ALWAYS = datetime.max.replace(tzinfo=UTC)


def command(
    what: Annotated[
        str | None,
        typer.Argument(metavar="SESSION|FILE", help="A session's id, or the path of a transfer file."),
    ] = None,
    all_of_them: Annotated[bool, typer.Option("--all", help="Every session of the database.")] = False,
    owner: OwnerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check every digest and the chain to the end, and name the first record that is wrong. Exit status 1: damaged."""
    if (what is None) != all_of_them:
        raise InvalidInput(
            "name a session or a file, or say --all", field="SESSION|FILE", bound="one of both"
        )
    if what is not None and _is_path(what):
        found = _of_file(Path(what))
    elif what is not None:
        found = asyncio.run(_of_session(session_of(what, field="SESSION"), owner_id(owner)))
    else:
        found = asyncio.run(_of_all(owner_id(owner), as_json=as_json))
    if as_json:
        print(json.dumps(found))
    else:
        print(_said(found))
    if not found["ok"]:
        raise SystemExit(DAMAGED_STATUS)


def _is_path(what: str) -> bool:
    return "/" in what or Path(what).exists()


def _of_file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file, showing(f"verify {path.name}", "lines") as show:
            checked = verify_file(file, progress=show)
    except TransferInvalid as error:
        return {"ok": False, "file": str(path), "code": error.code, "message": error.message} | error.fields
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be read: {error.strerror}", field="FILE", bound="a readable file"
        ) from error
    manifest = checked.manifest
    return {
        "ok": True,
        "file": str(path),
        "session": manifest.session.id,
        "records": manifest.seq,
        "tail": manifest.tail,
    }


async def _of_session(session_id: SessionId, owner: OwnerId | None) -> dict[str, Any]:
    async with stores("verify") as found:
        with showing(f"verify {session_id}", "records") as show:
            return await _checked(found, session_id, owner, show)


async def _of_all(owner: OwnerId | None, *, as_json: bool) -> dict[str, Any]:
    sessions, damaged = 0, []
    async with stores("verify") as found:
        with showing("verify all", "sessions") as show:
            async for session_id in _ids(found, owner):
                try:
                    one = await _checked(found, session_id, None, None)
                except SessionMissing:
                    continue  # removed since it was listed
                sessions += 1
                if not one["ok"]:
                    damaged.append(one)
                    if not as_json:
                        print(_said(one))
                show(sessions, None)
    return {"ok": not damaged, "sessions": sessions, "damaged": damaged}


async def _ids(found: Stores, owner: OwnerId | None) -> AsyncIterator[SessionId]:
    after: SessionId | None = None
    while page := await found.archives.created_before(_ALWAYS, owner=owner, after=after, limit=_PAGE):
        for session_id, _ in page:
            yield session_id
        after = page[-1][0]


async def _checked(found: Stores, session_id: SessionId, owner: OwnerId | None, show: Any) -> dict[str, Any]:
    try:
        sound = await verify_session(
            found.log, found.transfer, found.archives, session_id, owner, progress=show
        )
    except SessionCorrupt as error:
        return {"ok": False, "code": error.code, "message": error.message} | error.fields
    return {
        "ok": True,
        "session": session_id,
        "records": sound.seq,
        "tail": sound.tail.hex(),
        "archived_through": sound.archived_through,
    }


def _said(found: dict[str, Any]) -> str:
    if "sessions" in found:
        return f"{found['sessions']} sessions verified, {len(found['damaged'])} damaged"
    name = found.get("file") or found.get("session")
    if not found["ok"]:
        return f"{name}: damaged: {found['message']} [{found['code']}]"
    return f"{name}: sound, {found['records']} records"

"""``turnkeeper import``: a session from a transfer file, whole or not at all (OPS-06, THR-107)."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from producer.cli.progress import showing
from producer.cli.transferring import JsonOption, owner_id, session_of, stores
from shared.domain.errors import InvalidInput
from shared.transfer.importing import Imported, import_session


def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `turnkeeper export` wrote.")],
    session: Annotated[str | None, typer.Option("--session", help="Another id for the session.")] = None,
    owner: Annotated[str | None, typer.Option("--owner", help="Another owner for it.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a session that is not there yet from a file; the file is checked to its end before anything is written.

    Repeating a cut import finishes it, and repeating a finished one changes nothing.
    """
    done = asyncio.run(_import(file, session, owner))
    if as_json:
        print(json.dumps(asdict(done)))
    else:
        before = " (it was imported before)" if done.duplicate else ""
        print(f"{done.session_id}: {done.seq} records, owner {done.owner}{before}")


async def _import(path: Path, session: str | None, owner: str | None) -> Imported:
    target = None if session is None else session_of(session, field="--session")
    try:
        file = path.open("rb")
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be read: {error.strerror}", field="FILE", bound="a readable file"
        ) from error
    with file:
        if not file.seekable():
            raise InvalidInput(
                f"{path} is read twice and cannot be a pipe", field="FILE", bound="a regular file"
            )
        async with stores("import") as found:
            with showing(f"import {path.name}", "lines") as show:
                return await import_session(
                    found.transfer,
                    file,
                    session_id=target,
                    owner=owner_id(owner),
                    failpoints=found.failpoints,
                    progress=show,
                )

"""``turnkeeper prune``: take away what is old and owed to nobody, or move old records to the archive (OPS-12, THR-104)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from producer.cli.progress import Show, showing
from producer.cli.transferring import JsonOption, Stores, age_of, owner_id, stores
from shared.domain.errors import ArchiveRefused, SessionCorrupt, SessionMissing
from shared.domain.ids import OwnerId, SessionId
from shared.transfer.archiving import archive_session, plan_ranges
from shared.transfer.retention import Policy, Pruned, Retention

_PAGE = 200


def command(
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than", help="Finished turns, keys, receipts and completed intents of this age."
        ),
    ] = "90d",
    sessions_older_than: Annotated[
        str | None,
        typer.Option("--sessions-older-than", help="Also remove sessions that were idle this long."),
    ] = None,
    archive_older_than: Annotated[
        str | None, typer.Option("--archive-older-than", help="Also move records of this age to the archive.")
    ] = None,
    owner: Annotated[str | None, typer.Option("--owner", help="Only what this owner has.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count it and change nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Prune once. What is unfinished, undelivered or still read by others stays, however old it is."""
    policy = Policy(
        rows_after=age_of(older_than, field="--older-than"),
        sessions_after=None
        if sessions_older_than is None
        else age_of(sessions_older_than, field="--sessions-older-than"),
        owner=owner_id(owner),
    )
    age = None if archive_older_than is None else age_of(archive_older_than, field="--archive-older-than")
    found = asyncio.run(_prune(policy, age, dry=dry_run))
    if as_json:
        print(json.dumps(found | {"dry_run": dry_run}))
        return
    what = "would go" if dry_run else "gone"
    counts = ", ".join(f"{found[name]} {name}" for name in Pruned.__dataclass_fields__)
    print(f"{what}: {counts}")
    if age is not None:
        print(f"{'to archive' if dry_run else 'archived'}: {found['archived']} records")
    for one in found["damaged"]:
        print(f"damaged, left as it is: {one}")


async def _prune(policy: Policy, archive_after: timedelta | None, *, dry: bool) -> dict[str, Any]:
    async with stores("prune") as found:
        retention = Retention(found.database, found.failpoints)
        with showing("prune", "rows") as show:
            gone = await retention.prune(policy, dry=dry, progress=lambda so_far: show(so_far.all, None))
        archived = 0
        damaged: list[str] = []
        if archive_after is not None:
            before = await retention.now() - archive_after
            with showing("archive", "records") as show:
                archived, damaged = await _archive(found, before, policy.owner, show, dry=dry)
        return asdict(gone) | {"archived": archived, "damaged": damaged}


async def _archive(
    found: Stores, before: datetime, owner: OwnerId | None, show: Show, *, dry: bool
) -> tuple[int, list[str]]:
    done = 0
    damaged: list[str] = []
    async for session_id, holder in _sessions(found, before, owner):
        try:
            done += await _archive_one(found, session_id, holder, before, dry=dry)
        except SessionCorrupt as error:
            damaged.append(error.message)  # never buried in an archive
        except (SessionMissing, ArchiveRefused):
            continue  # removed, or archived by another meanwhile
        show(done, None)
    return done, damaged


async def _archive_one(
    found: Stores, session_id: SessionId, owner: OwnerId, before: datetime, *, dry: bool
) -> int:
    parts = (found.log, found.transfer, found.archives, session_id, owner)
    if not dry:
        return await archive_session(*parts, before=before, failpoints=found.failpoints)
    return sum([one.last_seq - one.first_seq + 1 async for one in plan_ranges(*parts, before=before)])


async def _sessions(
    found: Stores, before: datetime, owner: OwnerId | None
) -> AsyncIterator[tuple[SessionId, OwnerId]]:
    after: SessionId | None = None
    while page := await found.archives.created_before(before, owner=owner, after=after, limit=_PAGE):
        for one in page:
            yield one
        after = page[-1][0]

"""Archiving of a session's old records: verify first, then move range by range between anchors that were found (THR-104)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime

from shared.domain.canonical import first_tail
from shared.domain.failpoints import Failpoints
from shared.domain.ids import OwnerId, SessionId
from shared.sessions.log import SessionLog
from shared.transfer.port import RANGE_MAX_BYTES, RANGE_MAX_RECORDS, Anchor, Archives, TransferStore
from shared.transfer.values import PAGE_MAX_BYTES, PAGE_MAX_RECORDS
from shared.transfer.verify import ChainCheck


async def plan_ranges(
    log: SessionLog,
    store: TransferStore,
    archives: Archives,
    session_id: SessionId,
    owner: OwnerId,
    *,
    before: datetime,
) -> AsyncIterator[Anchor]:
    """Yield the ranges of live records older than ``before``, in order; the last may be short.

    Two passes over the live log, each in constant memory: the first checks that it leads from the last archived range to the
    head (``SessionCorrupt``), the second cuts it. The newest record, and what an open turn has written, stay live.
    """
    limit = await archives.limit(session_id, owner)
    await _verify_live(log, store, archives, session_id)
    check = await _after_archives(archives, session_id)
    anchor, size = _empty_after(check), 0
    while check.seq < limit:
        wanted = min(PAGE_MAX_RECORDS, limit - check.seq)
        page = await log.read(session_id, after=check.seq, limit=wanted, max_bytes=PAGE_MAX_BYTES)
        for record in page:
            count, more, is_young = (
                record.seq - anchor.first_seq,
                len(record.text.encode()),
                record.at >= before,
            )
            if count and (is_young or count == RANGE_MAX_RECORDS or size + more > RANGE_MAX_BYTES):
                yield anchor
                anchor, size = _empty_after(check), 0
            if is_young:
                return
            check.take(record)
            anchor = Anchor(anchor.first_seq, check.seq, anchor.tail_before, check.tail)
            size += more
        if not page:
            return
    if anchor.last_seq >= anchor.first_seq:
        yield anchor


async def archive_session(
    log: SessionLog,
    store: TransferStore,
    archives: Archives,
    session_id: SessionId,
    owner: OwnerId,
    *,
    before: datetime,
    failpoints: Failpoints | None = None,
) -> int:
    """Archive the records older than ``before``, as far as they may be; returns how many that were.

    Each range is one transaction; whatever stops between two leaves a log that is whole. A turn that opens meanwhile is not
    in its way: it writes behind what was planned. Raises ``SessionMissing`` and ``SessionCorrupt``.
    """
    done = 0
    async for anchor in plan_ranges(log, store, archives, session_id, owner, before=before):
        await archives.archive(session_id, owner, anchor)
        done += anchor.last_seq - anchor.first_seq + 1
        if failpoints is not None:
            await failpoints.hit("archive.range-moved")
    return done


def _empty_after(check: ChainCheck) -> Anchor:
    return Anchor(check.seq + 1, check.seq, check.tail, check.tail)


async def _verify_live(
    log: SessionLog, store: TransferStore, archives: Archives, session_id: SessionId
) -> None:
    snapshot = await store.capture(session_id)
    check = await _after_archives(archives, session_id)
    while check.seq < snapshot.seq and (
        page := await log.read(
            session_id,
            after=check.seq,
            limit=min(PAGE_MAX_RECORDS, snapshot.seq - check.seq),
            max_bytes=PAGE_MAX_BYTES,
        )
    ):
        for record in page:
            check.take(record)
    check.require(bytes.fromhex(snapshot.tail))


async def _after_archives(archives: Archives, session_id: SessionId) -> ChainCheck:
    """The chain as it stands behind the last archived range."""
    seq, tail = 0, first_tail(session_id)
    while found := await archives.anchors(session_id, after=seq):
        seq, tail = found[-1].last_seq, found[-1].tail_after
    return ChainCheck(session_id, seq, tail, anchored=seq)

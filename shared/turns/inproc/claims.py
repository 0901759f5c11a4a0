"""The twin's claim: lost rows first, then ready and due ones in fair order over the owners."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import uuid4

from shared.domain.ids import OwnerId
from shared.turns.inproc.rows import TurnRow, TurnTables
from shared.turns.queue import PRIORITIES, ClaimRequest
from shared.turns.rules import OWNERS_SERVED_MAX, count_loss, even_share, may_take_over, rotate_owners

BACKGROUND: Final = PRIORITIES["background"]


def take_over_lost(
    tables: TurnTables, request: ClaimRequest, now: datetime, started_at: datetime
) -> Sequence[TurnRow]:
    """Take rows past their lease, oldest first, and count their losses; outside the owners' caps."""
    if not request.takeovers:
        return []
    lost = sorted(
        (
            row
            for row in _served(tables, request)
            if may_take_over(row, now, request.attempts_max, started_at)
        ),
        key=lambda row: row.expires_at or now,
    )[: min(request.places, max(0, request.suspects_left))]
    for row in lost:
        losses = count_loss(row, holder_is_gone=_is_gone(tables, row, request, now, started_at))
        row.attempts, row.suspect, row.alive_losses = losses.attempts, losses.suspect, losses.alive_losses
        _hold(row, request, now)
    return lost


def take_ready(
    tables: TurnTables, request: ClaimRequest, lost: Sequence[TurnRow], now: datetime
) -> Sequence[TurnRow]:
    """Take ready and due rows: an even share to each owner in turn, then what is left, in the same order.

    Lost rows of the background that the same claim took over leave less for the waiting ones.
    """
    places = request.places - len(lost)
    bound = request.places if request.background_places is None else request.background_places
    background = bound - sum(row.priority == BACKGROUND for row in lost)
    oldest = _oldest(tables, request, background, now)
    owners = _owners_in_order(tables, request, background, oldest, now) if places > 0 else []
    taken: list[TurnRow] = []
    for is_first_pass in (True, False):
        for n, owner in enumerate(owners):
            left = places - len(taken)
            share = even_share(left, len(owners) - n) if is_first_pass else left
            room = max(0, min(share, _room(tables, owner, request)))
            for row in _picked(tables, request, owner, room, background, oldest, now):
                row.status = "running"
                _hold(row, request, now)
                taken.append(row)
                background -= row.priority == BACKGROUND
    return taken


def _picked(
    tables: TurnTables,
    request: ClaimRequest,
    owner: OwnerId,
    room: int,
    background: int,
    oldest: TurnRow | None,
    now: datetime,
) -> list[TurnRow]:
    """One owner's rows that are taken next: the oldest of all if it is its, then by priority, due time and id."""
    due = [row for row in _due(tables, request, now) if row.owner == owner]
    due.sort(key=lambda row: (row is not oldest, row.priority, row.due_at, row.id))
    picked: list[TurnRow] = []
    for row in due:
        if row.priority == BACKGROUND:
            if background <= 0:
                continue
            background -= 1
        picked.append(row)
    return picked[:room]


def _oldest(tables: TurnTables, request: ClaimRequest, background: int, now: datetime) -> TurnRow | None:
    """The due row that waits longest, of whatever owner with room and priority that may be taken."""
    if not request.oldest_first:
        return None
    fit = [
        row
        for row in _due(tables, request, now)
        if _room(tables, row.owner, request) > 0 and (background > 0 or row.priority != BACKGROUND)
    ]
    return min(fit, key=lambda row: (row.due_at, row.id), default=None)


def _served(tables: TurnTables, request: ClaimRequest) -> list[TurnRow]:
    return [
        row
        for row in tables.turns.values()
        if row.pool == request.pool and row.agent_revision in request.revisions
    ]


def _due(tables: TurnTables, request: ClaimRequest, now: datetime) -> list[TurnRow]:
    return [row for row in _served(tables, request) if row.status == "ready" and row.due_at <= now]


def _owners_in_order(
    tables: TurnTables, request: ClaimRequest, background: int, oldest: TurnRow | None, now: datetime
) -> list[OwnerId]:
    """The owners to serve, the oldest row's first, then a hinted one; a hint never moves a row before earlier ones."""
    owners_of_ready = {row.owner for row in _served(tables, request) if row.status == "ready"}
    due = _due(tables, request, now)
    owners_of_due = {row.owner for row in due if background > 0 or row.priority != BACKGROUND}
    fit = [
        OwnerId(owner)
        for owner in rotate_owners(owners_of_ready, request.cursor)
        if owner in owners_of_due and _room(tables, OwnerId(owner), request) > 0
    ][:OWNERS_SERVED_MAX]
    hinted = next((row.owner for row in due if row.id in request.hints), None)
    first = [owner for owner in (oldest.owner if oldest else None, hinted) if owner is not None]
    return list(dict.fromkeys([*first, *fit]))


def _room(tables: TurnTables, owner: OwnerId, request: ClaimRequest) -> int:
    bounds = tables.bounds.get(owner)
    own = bounds.running_max if bounds is not None else None
    return (own if own is not None else request.running_per_owner) - tables.count("running", owner=owner)


def _hold(row: TurnRow, request: ClaimRequest, now: datetime) -> None:
    row.epoch += 1
    row.token, row.lease_owner = uuid4(), request.worker
    row.expires_at = now + timedelta(seconds=request.lease_s)


def _is_gone(
    tables: TurnTables, row: TurnRow, request: ClaimRequest, now: datetime, started_at: datetime
) -> bool:
    """Whether the holder's process was silent for one lease, counted from the later of last seen and the store's start."""
    silent_since = now - timedelta(seconds=request.lease_s)
    holder = tables.workers.get(row.lease_owner) if row.lease_owner is not None else None
    is_there = holder is not None and max(holder.last_seen, started_at) > silent_since
    return not is_there and started_at < silent_since

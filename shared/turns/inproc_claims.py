"""The twin's claim: lost rows first, then ready and due ones in fair order over the owners."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import uuid4

from shared.domain.ids import OwnerId
from shared.turns.inproc_rows import TurnRow, TurnTables
from shared.turns.queue import ClaimRequest
from shared.turns.rules import OWNERS_SERVED_MAX, count_loss, even_share, may_take_over, rotate_owners


def take_over_lost(
    tables: TurnTables, request: ClaimRequest, now: datetime, started_at: datetime
) -> Sequence[TurnRow]:
    """Take rows past their lease, oldest first, and count their losses; outside the owners' caps."""
    if not request.takeovers:
        return []
    lost = sorted(
        (row for row in _served(tables, request) if may_take_over(row, now, request.attempts_max)),
        key=lambda row: row.expires_at or now,
    )[: min(request.places, max(0, request.suspects_left))]
    for row in lost:
        losses = count_loss(row, holder_is_gone=_is_gone(tables, row, request, now, started_at))
        row.attempts, row.suspect, row.alive_losses = losses.attempts, losses.suspect, losses.alive_losses
        _hold(row, request, now)
    return lost


def take_ready(tables: TurnTables, request: ClaimRequest, places: int, now: datetime) -> Sequence[TurnRow]:
    """Take ready and due rows: an even share to each owner in turn, then what is left, in the same order."""
    owners = _owners_in_order(tables, request, now) if places > 0 else []
    taken: list[TurnRow] = []
    for is_first_pass in (True, False):
        for n, owner in enumerate(owners):
            left = places - len(taken)
            share = even_share(left, len(owners) - n) if is_first_pass else left
            due = [row for row in _due(tables, request, now) if row.owner == owner]
            due.sort(key=lambda row: (row.priority, row.due_at, row.id))
            for row in due[: max(0, min(share, _room(tables, owner, request)))]:
                row.status = "running"
                _hold(row, request, now)
                taken.append(row)
    return taken


def _served(tables: TurnTables, request: ClaimRequest) -> list[TurnRow]:
    return [
        row
        for row in tables.turns.values()
        if row.pool == request.pool and row.agent_revision in request.revisions
    ]


def _due(tables: TurnTables, request: ClaimRequest, now: datetime) -> list[TurnRow]:
    return [row for row in _served(tables, request) if row.status == "ready" and row.due_at <= now]


def _owners_in_order(tables: TurnTables, request: ClaimRequest, now: datetime) -> list[OwnerId]:
    """The owners to serve, a hinted one first; a hint never moves a row before its owner's earlier ones."""
    owners_of_ready = {row.owner for row in _served(tables, request) if row.status == "ready"}
    due = _due(tables, request, now)
    owners_of_due = {row.owner for row in due}
    fit = [
        OwnerId(owner)
        for owner in rotate_owners(owners_of_ready, request.cursor)
        if owner in owners_of_due and _room(tables, OwnerId(owner), request) > 0
    ][:OWNERS_SERVED_MAX]
    hinted = next((row.owner for row in due if row.id in request.hints), None)
    return fit if hinted is None else [hinted, *(owner for owner in fit if owner != hinted)]


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

"""The turn queue on Postgres: one statement, one transaction, one round trip an operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from shared.database.pool import Database, Row
from shared.database.statements import Statement, load_statements
from shared.domain.canonical import canonical_json
from shared.domain.errors import RevisionConflict, StoreBusy, TurnMissing, TurnRefused
from shared.domain.ids import OwnerId, SessionId, TurnId, WorkerId
from shared.leases.fence import Fence
from shared.sessions.records import Draft
from shared.turns.admission import OpenAdmission, TurnAdmission
from shared.turns.grouping.postgres import GroupUnit, TurnGroups
from shared.turns.hooked import Repeated, admit_through, claim_to_admit, turn_to_admit
from shared.turns.postgres_pools import PostgresPools
from shared.turns.postgres_rows import (
    NEWLY_STORED,
    admit_params,
    begun_of,
    claim_of,
    draft_params,
    fenced_params,
    held_params,
    ledger_text,
    opened_of,
    receipt_of,
    refusal_of,
    refused_params,
    view_of,
)
from shared.turns.queue import (
    INBOX_RETRY_S,
    Admission,
    AdmissionLimits,
    Begun,
    CallEntry,
    Cancelled,
    Claim,
    ClaimRequest,
    Ended,
    Ending,
    Opened,
    Receipt,
    Renewal,
    Standing,
    TurnView,
    Watched,
)
from shared.turns.resume import require_nameable

#: How often a turn that the host is asked about is looked at, when the session moves on meanwhile.
OPEN_TRIES_MAX = 3

_SQL = load_statements(Path(__file__).with_name("queries.sql"))


class PostgresTurnQueue(PostgresPools):
    """Implements :class:`shared.turns.queue.TurnQueue`.

    ``polls`` is a second, small pool for renewals, polls and claims, so that a hot path that uses up its connections never
    costs a lease, and who comes new is not claimed behind all that is running; it may be the same database object where
    nothing is held (the producer). ``inbox_retry_s`` is when the sweep may insert an inbox turn again whose last one the
    host refused. With ``groups`` units of work of several sessions share statements where they come at once; the caller
    owns them.
    """

    def __init__(
        self,
        database: Database,
        *,
        polls: Database | None = None,
        attempts_max: int = 3,
        inbox_retry_s: float = INBOX_RETRY_S,
        groups: TurnGroups | None = None,
    ) -> None:
        super().__init__(database, polls if polls is not None else database)
        self._groups = groups
        self._attempts_max = attempts_max
        self._inbox_retry_s = inbox_retry_s

    async def admit(
        self, admission: Admission, limits: AdmissionLimits, *, admit: TurnAdmission | None = None
    ) -> Receipt:
        """See the port."""
        require_nameable(admission)
        params = admit_params(admission, limits)
        if admit is None or isinstance(admit, OpenAdmission):
            row = await self._send("admit", params, may_share=admission.on_busy != "interrupt")
        else:
            row = await self._through(admit, admission, "admit", params, partial(receipt_of, admission))
        return receipt_of(admission, row)

    async def begin(
        self,
        admission: Admission,
        holder: WorkerId,
        *,
        lease_s: float | None,
        commit_id: str,
        drafts: Sequence[Draft],
        limits: AdmissionLimits,
        title: str | None = None,
        admit: TurnAdmission | None = None,
    ) -> Begun:
        """See the port."""
        require_nameable(admission)
        params = admit_params(admission, limits) | draft_params(drafts)
        params |= {"holder": holder, "lease_s": lease_s, "commit": commit_id, "title": title}
        if admit is None or isinstance(admit, OpenAdmission):
            [row] = await self._db.call("turn.begin", _SQL["begin"], params, repeatable=True)
        else:
            row = await self._through(admit, admission, "begin", params, partial(begun_of, admission))
        return begun_of(admission, row)

    async def _send(self, unit: GroupUnit, params: Mapping[str, Any], *, may_share: bool = True) -> Row:
        """Send a unit of work of one session: together with others where it may and they come at once, or by itself."""
        if self._groups is not None and may_share:
            return await self._groups.send(unit, _SQL[unit], params)
        [row] = await self._db.call(f"turn.{unit}", _SQL[unit], params, repeatable=True)
        return row

    async def _through(
        self,
        hook: TurnAdmission,
        admission: Admission,
        door: Literal["admit", "begin"],
        params: Mapping[str, Any],
        answer: Callable[[Row], object],
    ) -> Row:
        """Store a turn in a transaction that the host's hook wraps; a repeat is answered, and counts nothing."""
        unit, rows = f"turn.{door}", list[Row]()

        async def store() -> None:
            rows.extend(await opened.run(_SQL[door], params))
            answer(rows[0])
            if rows[0]["result"] not in NEWLY_STORED:
                raise Repeated("an earlier try stored the turn", turn_id=str(admission.turn_id))

        with suppress(Repeated):
            async with self._db.transaction(unit) as opened:
                await admit_through(hook, turn_to_admit(admission, door, opened), store)
        return rows[0]

    async def abandon(self, turn_id: TurnId, fence: Fence) -> bool:
        """See the port."""
        params = {"id": turn_id, "epoch": fence.epoch, "token": fence.token}
        [row] = await self._db.call("turn.abandon", _SQL["abandon"], params, repeatable=True)
        return bool(row["abandoned"])

    async def claim(self, request: ClaimRequest) -> Sequence[Claim]:
        """See the port."""
        rows = await self._polls.call(
            "turn.claim",
            _SQL["claim"],
            {
                "worker": request.worker,
                "pool": request.pool,
                "revisions": list(request.revisions),
                "places": request.places,
                "lease_s": request.lease_s,
                "cursor": request.cursor,
                "hints": list(request.hints),
                "background": request.background_places,
                "oldest_first": request.oldest_first,
                "takeovers": request.takeovers,
                "suspects": max(0, request.suspects_left),
                "attempts_max": request.attempts_max,
                "running_max": request.running_per_owner,
            },
        )
        return [claim_of(row) for row in rows]

    async def open(
        self,
        claim: Claim,
        commit_id: str,
        drafts: Sequence[Draft],
        *,
        title: str | None = None,
        claims: Sequence[str] = (),
        admit: TurnAdmission | None = None,
    ) -> Opened:
        """See the port."""
        params = fenced_params(claim, commit_id) | draft_params(drafts)
        params |= {"title": title, "claims": list(claims), "look": False}
        if admit is None or isinstance(admit, OpenAdmission) or claim.origin == "user":
            return opened_of(claim, await self._send("open", params))
        return await self._open_through(admit, claim, params)

    async def _open_through(self, hook: TurnAdmission, claim: Claim, params: dict[str, Any]) -> Opened:
        """Open a turn of the inbox or of a task that the host is asked about first.

        What can only be ended or taken over is, without asking; what opens, opens in the hook's transaction.
        """
        for _ in range(OPEN_TRIES_MAX):
            look = params | {"look": True}
            [row] = await self._db.call("turn.open", _SQL["open"], look, repeatable=True)
            if row["result"] != "openable":
                return opened_of(claim, row)
            try:
                row = await self._opened_in(hook, claim, params)
            except TurnRefused as error:
                await self._refuse(claim, error)
                raise
            if row["result"] == "opened":
                return opened_of(claim, row)
        raise StoreBusy("the session moved on each time the turn was to open", session=claim.session_id)

    async def _opened_in(self, hook: TurnAdmission, claim: Claim, params: dict[str, Any]) -> Row:
        """Open a turn in a transaction that the host's hook wraps; anything but its opening is undone."""
        rows = list[Row]()

        async def store() -> None:
            rows.extend(await opened.run(_SQL["open"], params))
            if rows[0]["result"] != "opened":
                raise Repeated("the turn does not open now", turn_id=str(claim.turn_id))

        with suppress(Repeated):
            async with self._db.transaction("turn.open") as opened:
                await admit_through(hook, claim_to_admit(claim, opened), store)
        return rows[0]

    async def _refuse(self, claim: Claim, error: TurnRefused) -> None:
        params = fenced_params(claim, "") | refused_params(error) | {"retry_s": self._inbox_retry_s}
        [row] = await self._db.call("turn.refuse", _SQL["refuse"], params, repeatable=True)
        if row["result"] != "refused":
            raise refusal_of(row["result"], claim.turn_id, claim.fence.epoch) from error

    async def append(
        self,
        claim: Claim,
        commit_id: str,
        drafts: Sequence[Draft],
        *,
        stepped: bool = False,
        calls: Sequence[CallEntry] = (),
        expect: int | None = None,
        extend_s: float | None = None,
    ) -> int:
        """See the port."""
        params = (
            fenced_params(claim, commit_id)
            | draft_params(drafts)
            | {"stepped": stepped, "calls": ledger_text(calls), "expect": expect, "extend_s": extend_s}
        )
        row = await self._send("append", params)
        if row["result"] == "revision":
            raise RevisionConflict("the session moved on", expected=expect, actual=row["revision"])
        if row["result"] != "appended":
            raise refusal_of(row["result"], claim.turn_id, claim.fence.epoch)
        return int(row["seq"])

    async def end(
        self,
        claim: Claim,
        commit_id: str,
        drafts: Sequence[Draft],
        ending: Ending,
        *,
        calls: Sequence[CallEntry] = (),
    ) -> Ended:
        """See the port."""
        params = fenced_params(claim, commit_id) | draft_params(drafts) | {"calls": ledger_text(calls)}
        params |= {
            "outcome": ending.outcome,
            "code": ending.code,
            "failure": ending.failure,
            "usage": canonical_json(dict(ending.usage)),
            "counts": ending.counts_attempt,
        }
        row = await self._send("end", params)
        if row["result"] != "stored":
            raise refusal_of(row["result"], claim.turn_id, claim.fence.epoch)
        promoted = None if row["promoted"] is None else TurnId(row["promoted"])
        return Ended(row["seq"], promoted, row["pending"])

    async def cancel(self, turn_id: TurnId, owner: OwnerId) -> Cancelled:
        """See the port."""
        params = {"id": turn_id, "owner": owner, "attempts_max": self._attempts_max}
        [row] = await self._db.call("turn.cancel", _SQL["cancel"], params, repeatable=True)
        if row["result"] == "missing":
            raise TurnMissing("no such turn", turn=str(turn_id))
        return Cancelled(
            took_effect=row["result"] == "cancelled",
            reason=row["result"],
            status=row["status"],
            outcome=row["outcome"],
            code=row["code"],
            holder=None if row["holder"] is None else WorkerId(row["holder"]),
            session_id=SessionId(row["session_id"]),
            after=row["after_seq"],
        )

    async def release(self, turn_id: TurnId, fence: Fence, *, due_in_s: float = 0.0) -> bool:
        """See the port."""
        params = {
            "id": turn_id,
            "epoch": fence.epoch,
            "token": fence.token,
            "due_in_s": due_in_s,
        }
        [row] = await self._db.call("turn.release", _SQL["release"], params, repeatable=True)
        return bool(row["released"])

    async def renew(self, fences: Mapping[TurnId, Fence], lease_s: float) -> Renewal:
        """See the port."""
        rows = await self._polls.call("turn.renew", _SQL["renew"], held_params(fences) | {"lease_s": lease_s})
        by_result: dict[str, set[TurnId]] = {"renewed": set(), "skipped": set(), "lost": set()}
        for row in rows:
            by_result[row["result"]].add(TurnId(row["turn_id"]))
        return Renewal(*(frozenset(by_result[name]) for name in ("renewed", "skipped", "lost")))

    async def watch(self, worker: WorkerId, fences: Mapping[TurnId, Fence]) -> Watched:
        """See the port."""
        params = held_params(fences) | {"worker": worker}
        rows = await self._polls.read("turn.watch", _SQL["watch"], params)
        lost = {TurnId(r["turn_id"]): str(r["result"]) for r in rows if r["result"] != "orphan"}
        orphans = {
            TurnId(r["turn_id"]): Fence(r["epoch"], r["token"]) for r in rows if r["result"] == "orphan"
        }
        return Watched(lost, orphans)

    async def reap(self, *, limit: int = 50) -> Sequence[TurnView]:
        """See the port."""
        bound = {"attempts_max": self._attempts_max}
        ids = await self._found("turn.reap.find", _SQL["find_dead"], bound | {"limit": limit})
        if not ids:
            return []
        done = await self._db.call("turn.reap", _SQL["reap"], bound | {"ids": ids}, repeatable=True)
        touched = {"ids": [row["id"] for row in done]}
        return [view_of(row) for row in await self._db.read("turn.reap.view", _SQL["get_many"], touched)]

    async def expire(self, *, limit: int = 50) -> int:
        """See the port."""
        ids = await self._found("turn.expire.find", _SQL["find_late"], {"limit": limit})
        if not ids:
            return 0
        return len(await self._db.call("turn.expire", _SQL["expire"], {"ids": ids}, repeatable=True))

    async def _found(self, unit: str, statement: Statement, params: Mapping[str, Any]) -> list[UUID]:
        return [row["id"] for row in await self._db.read(unit, statement, params)]

    async def get(self, turn_id: TurnId, owner: OwnerId) -> TurnView:
        """See the port."""
        rows = await self._db.read("turn.get", _SQL["get"], {"id": turn_id, "owner": owner})
        if not rows:
            raise TurnMissing("no such turn", turn=str(turn_id))
        return view_of(rows[0])

    async def standings(self, turn_ids: Sequence[TurnId]) -> Mapping[TurnId, Standing]:
        """See the port."""
        rows = await self._db.read("turn.standings", _SQL["standings"], {"ids": list(turn_ids)})
        return {TurnId(row.pop("id")): Standing(**row) for row in rows}

    async def calls(self, session_id: SessionId, turn_id: TurnId) -> Sequence[CallEntry]:
        """See the port."""
        params = {"session": session_id, "id": turn_id}
        rows = await self._db.read("turn.calls", _SQL["calls"], params)
        return [CallEntry(**row) for row in rows]

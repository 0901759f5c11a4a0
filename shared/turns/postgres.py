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
from shared.domain.errors import RevisionConflict, SessionBusy, TurnClosed, TurnMissing
from shared.domain.ids import OwnerId, SessionId, TurnId, WorkerId
from shared.leases.fence import Fence
from shared.sessions.records import Draft
from shared.turns.admission import OpenAdmission, TurnAdmission
from shared.turns.hooked import Repeated, admit_through, turn_to_admit
from shared.turns.postgres_rows import (
    NEWLY_STORED,
    admit_params,
    begun_of,
    claim_of,
    draft_params,
    fenced_params,
    held_params,
    ledger_text,
    receipt_of,
    refusal_of,
    view_of,
)
from shared.turns.queue import (
    Admission,
    AdmissionLimits,
    Backlog,
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
    WorkerSeen,
)

_SQL = load_statements(Path(__file__).with_name("queries.sql"))


class PostgresTurnQueue:
    """Implements :class:`shared.turns.queue.TurnQueue`.

    ``polls`` is a second, small pool for renewals and polls, so that a hot path that uses up its connections never
    costs a lease; it may be the same database object where nothing is held (the producer).
    """

    def __init__(self, database: Database, *, polls: Database | None = None, attempts_max: int = 3) -> None:
        self._db = database
        self._polls = polls if polls is not None else database
        self._attempts_max = attempts_max

    async def admit(
        self, admission: Admission, limits: AdmissionLimits, *, admit: TurnAdmission | None = None
    ) -> Receipt:
        """See the port."""
        params = admit_params(admission, limits)
        if admit is None or isinstance(admit, OpenAdmission):
            [row] = await self._db.call("turn.admit", _SQL["admit"], params, repeatable=True)
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
        params = admit_params(admission, limits) | draft_params(drafts)
        params |= {"holder": holder, "lease_s": lease_s, "commit": commit_id, "title": title}
        if admit is None or isinstance(admit, OpenAdmission):
            [row] = await self._db.call("turn.begin", _SQL["begin"], params, repeatable=True)
        else:
            row = await self._through(admit, admission, "begin", params, partial(begun_of, admission))
        return begun_of(admission, row)

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
        rows = await self._db.call(
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
        self, claim: Claim, commit_id: str, drafts: Sequence[Draft], *, title: str | None = None
    ) -> Opened:
        """See the port."""
        params = fenced_params(claim, commit_id) | draft_params(drafts) | {"title": title}
        [row] = await self._db.call("turn.open", _SQL["open"], params, repeatable=True)
        match row["result"]:
            case "opened" | "adopted" | "took-over" as result:
                return Opened(result, row["number"], row["seq"], row["started_seq"])
            case "busy":
                raise SessionBusy("another turn of the session is open", session=claim.session_id)
            case "expired":
                raise TurnClosed(
                    "the turn's deadline passed before it opened", turn=str(claim.turn_id), reason="ended"
                )
            case result:
                raise refusal_of(result, claim.turn_id, claim.fence.epoch)

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
        [row] = await self._db.call("turn.append", _SQL["append"], params, repeatable=True)
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
        }
        [row] = await self._db.call("turn.end", _SQL["end_turn"], params, repeatable=True)
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

    async def seen(self, worker: WorkerSeen) -> None:
        """See the port."""
        params = {
            "id": worker.worker,
            "host": worker.host,
            "pid": worker.pid,
            "queues": list(worker.queues),
            "revisions": list(worker.revisions),
            "capacity": worker.capacity,
            "held": worker.held,
            "version": worker.version,
            "draining": worker.draining,
            "lag_s": worker.lag_s,
            "overloaded": worker.overloaded,
        }
        await self._polls.call("worker.seen", _SQL["seen"], params, repeatable=True)

    async def gone(self, worker: WorkerId) -> None:
        """See the port."""
        await self._polls.call("worker.gone", _SQL["gone"], {"id": worker}, repeatable=True)

    async def forget_silent(self, older_than_s: float) -> int:
        """See the port."""
        params = {"older_s": older_than_s}
        return len(await self._db.call("worker.forget", _SQL["forget_silent"], params, repeatable=True))

    async def workers(self) -> Sequence[Mapping[str, Any]]:
        """See the port."""
        return await self._db.read("worker.list", _SQL["workers"], {})

    async def backlog(self, pool: str, revisions: Sequence[str] = ()) -> Backlog:
        """See the port."""
        [row] = await self._db.read("turn.backlog", _SQL["backlog"], {"pool": pool})
        unserved: dict[str, int] = {}
        if revisions:
            rows = await self._db.read("turn.unserved", _SQL["unserved"], {"pool": pool})
            unserved = {r["revision"]: r["ready"] for r in rows if r["revision"] not in revisions}
        return Backlog(row["ready"], row["queued"], row["running"], float(row["oldest_due_s"]), unserved)

    async def move_revision(self, old: str, new: str, *, limit: int = 1_000) -> int:
        """See the port."""
        params = {"old": old, "new": new, "limit": limit}
        [row] = await self._db.call("turn.move_revision", _SQL["move_revision"], params, repeatable=True)
        return int(row["moved"])

    async def count_waiting(self, limit: int) -> int:
        """See the port."""
        [row] = await self._db.read("turn.waiting", _SQL["waiting"], {"limit": limit})
        return int(row["waiting"])

    async def has_overdue(self, pool: str, older_than_s: float) -> bool:
        """See the port."""
        params = {"pool": pool, "older_s": older_than_s}
        [row] = await self._db.read("turn.overdue", _SQL["overdue"], params)
        return bool(row["overdue"])

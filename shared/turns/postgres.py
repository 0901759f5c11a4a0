"""The turn queue on Postgres: one statement, one transaction, one round trip an operation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from shared.database.pool import Database, Row
from shared.database.statements import load_statements
from shared.domain.canonical import canonical_json
from shared.domain.errors import (
    FenceLost,
    KeyConflict,
    QueueFull,
    RunIdReused,
    SessionBusy,
    SessionMissing,
    StoreDefect,
    TurnClosed,
    TurnMissing,
)
from shared.domain.ids import OwnerId, RunId, SessionId, TurnId, WorkerId
from shared.leases.fence import Fence
from shared.sessions.records import Draft, check_commit_size
from shared.turns.fingerprint import fingerprint_of
from shared.turns.queue import (
    Admission,
    AdmissionLimits,
    Backlog,
    CallEntry,
    Cancelled,
    Claim,
    ClaimRequest,
    Ended,
    Ending,
    Opened,
    Receipt,
    Renewal,
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

    async def admit(self, admission: Admission, limits: AdmissionLimits) -> Receipt:
        """See the port."""
        [row] = await self._db.call(
            "turn.admit", _SQL["admit"], _admit_params(admission, limits), repeatable=True
        )
        return _receipt(admission, row)

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
                "takeovers": request.takeovers,
                "suspects": max(0, request.suspects_left),
                "attempts_max": request.attempts_max,
                "running_max": request.running_per_owner,
            },
        )
        return [_claim(row) for row in rows]

    async def open(
        self, claim: Claim, commit_id: str, drafts: Sequence[Draft], *, title: str | None = None
    ) -> Opened:
        """See the port."""
        params = _fenced(claim, commit_id) | _drafts(drafts) | {"title": title}
        [row] = await self._db.call("turn.open", _SQL["open"], params, repeatable=True)
        match row["result"]:
            case "opened" | "adopted" | "took-over" as result:
                return Opened(result, row["number"], row["seq"])
            case "busy":
                raise SessionBusy("another turn of the session is open", session=claim.session_id)
            case "expired":
                raise TurnClosed(
                    "the turn's deadline passed before it opened", turn=str(claim.turn_id), reason="ended"
                )
            case result:
                raise _refusal(result, claim)

    async def append(
        self,
        claim: Claim,
        commit_id: str,
        drafts: Sequence[Draft],
        *,
        stepped: bool = False,
        calls: Sequence[CallEntry] = (),
    ) -> int:
        """See the port."""
        params = _fenced(claim, commit_id) | _drafts(drafts) | {"stepped": stepped, "calls": _ledger(calls)}
        [row] = await self._db.call("turn.append", _SQL["append"], params, repeatable=True)
        if row["result"] != "appended":
            raise _refusal(row["result"], claim)
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
        params = _fenced(claim, commit_id) | _drafts(drafts) | {"calls": _ledger(calls)}
        params |= {
            "outcome": ending.outcome,
            "code": ending.code,
            "failure": ending.failure,
            "usage": canonical_json(dict(ending.usage)),
        }
        [row] = await self._db.call("turn.end", _SQL["end_turn"], params, repeatable=True)
        if row["result"] != "stored":
            raise _refusal(row["result"], claim)
        return Ended(row["seq"], None if row["promoted"] is None else TurnId(row["promoted"]))

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
        rows = await self._polls.call("turn.renew", _SQL["renew"], _held(fences) | {"lease_s": lease_s})
        by_result: dict[str, set[TurnId]] = {"renewed": set(), "skipped": set(), "lost": set()}
        for row in rows:
            by_result[row["result"]].add(TurnId(row["turn_id"]))
        return Renewal(*(frozenset(by_result[name]) for name in ("renewed", "skipped", "lost")))

    async def watch(self, worker: WorkerId, fences: Mapping[TurnId, Fence]) -> Watched:
        """See the port."""
        params = _held(fences) | {"worker": worker}
        rows = await self._polls.read("turn.watch", _SQL["watch"], params)
        lost = {TurnId(r["turn_id"]): str(r["result"]) for r in rows if r["result"] != "orphan"}
        orphans = {
            TurnId(r["turn_id"]): Fence(r["epoch"], r["token"]) for r in rows if r["result"] == "orphan"
        }
        return Watched(lost, orphans)

    async def reap(self, *, limit: int = 50) -> Sequence[TurnView]:
        """See the port."""
        bound = {"attempts_max": self._attempts_max}
        found = await self._db.read("turn.reap.find", _SQL["find_dead"], bound | {"limit": limit})
        touched = []
        for row in found:
            for done in await self._db.call(
                "turn.reap", _SQL["reap"], bound | {"id": row["id"]}, repeatable=True
            ):
                touched.append(await self.get(TurnId(row["id"]), OwnerId(done["owner"])))
        return touched

    async def expire(self, *, limit: int = 50) -> int:
        """See the port."""
        found = await self._db.read("turn.expire.find", _SQL["find_late"], {"limit": limit})
        done = 0
        for row in found:
            done += len(
                await self._db.call("turn.expire", _SQL["expire"], {"id": row["id"]}, repeatable=True)
            )
        return done

    async def get(self, turn_id: TurnId, owner: OwnerId) -> TurnView:
        """See the port."""
        rows = await self._db.read("turn.get", _SQL["get"], {"id": turn_id, "owner": owner})
        if not rows:
            raise TurnMissing("no such turn", turn=str(turn_id))
        return _view(rows[0])

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

    async def has_overdue(self, pool: str, older_than_s: float) -> bool:
        """See the port."""
        params = {"pool": pool, "older_s": older_than_s}
        [row] = await self._db.read("turn.overdue", _SQL["overdue"], params)
        return bool(row["overdue"])


def _admit_params(admission: Admission, limits: AdmissionLimits) -> dict[str, Any]:
    return {
        "id": admission.turn_id,
        "session": admission.session_id,
        "owner": admission.owner,
        "key": admission.key,
        "print": fingerprint_of(admission),
        "run": admission.run_id,
        "message": canonical_json(dict(admission.message)),
        "command": _optional_json(admission.command),
        "meta": _optional_json(admission.meta),
        "agent": admission.agent,
        "revision": admission.agent_revision,
        "on_busy": admission.on_busy,
        "on_worker_loss": admission.on_worker_loss,
        "priority": admission.priority,
        "deadline": admission.deadline,
        "max_duration_s": admission.max_duration_s,
        "session_max": limits.queued_per_session,
        "owner_max": limits.queued_per_owner,
        "attempts_max": limits.attempts_max,
    }


def _receipt(admission: Admission, row: Row) -> Receipt:
    match row["result"]:
        case "admitted" | "duplicate":
            return Receipt(
                TurnId(row["turn_id"]),
                RunId(row["run_id"]),
                admission.session_id,
                row["turn_position"],
                row["status"],
                row["after_seq"],
                # Our own earlier try whose answer was lost is no duplicate to the caller.
                duplicate=row["result"] == "duplicate" and row["turn_id"] != admission.turn_id,
            )
        case "missing":
            raise SessionMissing("no such session", session=admission.session_id)
        case "key-conflict":
            raise KeyConflict(
                "the key was used with other content", key=admission.key, turn=str(row["turn_id"])
            )
        case "run-reused":
            raise RunIdReused("the run id was used before", run=admission.run_id)
        case "busy":
            raise SessionBusy("a turn of the session is unfinished", turn=str(row["detail"]))
        case "session-full":
            raise QueueFull("too many turns of the session are queued", bound="queued turns a session")
        case "owner-full":
            raise QueueFull("too many turns of the owner are queued", bound="queued turns an owner")
        case other:
            raise StoreDefect("unknown answer of an admission", answer=other)


def _refusal(result: str, claim: Claim) -> FenceLost:
    turn = str(claim.turn_id)
    if result == "lost":
        return FenceLost(
            "another worker owns the turn, or its lease passed", turn=turn, epoch=claim.fence.epoch
        )
    return TurnClosed(f"the turn was closed: {result}", turn=turn, reason=result, epoch=claim.fence.epoch)


def _fenced(claim: Claim, commit_id: str) -> dict[str, Any]:
    return {
        "id": claim.turn_id,
        "session": claim.session_id,
        "epoch": claim.fence.epoch,
        "token": claim.fence.token,
        "commit": commit_id,
    }


def _drafts(drafts: Sequence[Draft]) -> dict[str, Any]:
    check_commit_size(drafts)
    return {
        "kinds": [d.kind for d in drafts],
        "texts": [d.text for d in drafts],
        "digests": [d.digest for d in drafts],
    }


def _ledger(calls: Sequence[CallEntry]) -> str | None:
    if not calls:
        return None
    return orjson.dumps([{name: getattr(c, name) for name in CallEntry.__slots__} for c in calls]).decode()


def _held(fences: Mapping[TurnId, Fence]) -> dict[str, Any]:
    return {"ids": list(fences), "tokens": [f.token for f in fences.values()]}


def _optional_json(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else canonical_json(dict(value))


def _parsed(text: str | None) -> Mapping[str, Any] | None:
    # Not orjson: it reads an integer of more than 64 bits as a float, and a host's integers keep their digits.
    return None if text is None else json.loads(text)


def _claim(row: Row) -> Claim:
    return Claim(
        turn_id=TurnId(row["turn_id"]),
        session_id=SessionId(row["session_id"]),
        owner=OwnerId(row["owner"]),
        fence=Fence(row["epoch"], row["token"]),
        number=row["number"],
        origin=row["origin"],
        run_id=RunId(row["run_id"]),
        key=row["key"],
        message=_parsed(row["message"]),
        command=_parsed(row["command"]),
        meta=_parsed(row["meta"]),
        agent=row["agent"],
        agent_revision=row["agent_revision"],
        on_worker_loss=row["on_worker_loss"],
        attempts=row["attempts"],
        suspect=row["suspect"],
        lost=row["lost"],
        max_duration_s=row["max_duration_s"],
        open_for_s=row["open_for_s"],
    )


def _view(row: Row) -> TurnView:
    return TurnView(
        turn_id=TurnId(row["id"]),
        session_id=SessionId(row["session_id"]),
        owner=OwnerId(row["owner"]),
        run_id=RunId(row["run_id"]),
        position=row["position"],
        number=row["number"],
        origin=row["origin"],
        status=row["status"],
        outcome=row["outcome"],
        code=row["code"],
        failure=row["last_failure"],
        agent=row["agent"],
        agent_revision=row["agent_revision"],
        priority=row["priority"],
        attempts=row["attempts"],
        epoch=row["epoch"],
        recovering=bool(row["unheld"]) and row["on_worker_loss"] == "continue",
        is_open=bool(row["is_open"]) and not (row["unheld"] and row["on_worker_loss"] == "interrupt"),
        usage=_parsed(row["usage"]) or {},
        key=row["key"],
        after=row["admitted_seq"],
        started=row["started_seq"],
        admitted_at=row["admitted_at"],
        opened_at=row["opened_at"],
        ended_at=row["ended_at"],
        deadline=row["deadline"],
        now=row["now"],
    )

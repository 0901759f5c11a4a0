"""The turn queue's rows on Postgres: what statements are given, and what their answers mean."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal

import orjson

from shared.database.pool import Row
from shared.domain.canonical import canonical_json
from shared.domain.errors import (
    FenceLost,
    InboxMoved,
    KeyConflict,
    NothingPending,
    QueueFull,
    RunIdReused,
    SessionBusy,
    SessionMissing,
    StoreDefect,
    TurnClosed,
    TurnDuplicate,
    TurnkeeperError,
    TurnRefused,
)
from shared.domain.ids import OwnerId, RunId, SessionId, TurnId, WorkerId
from shared.leases.fence import Fence
from shared.sessions.records import Draft, check_commit_size
from shared.turns.fingerprint import fingerprint_of
from shared.turns.hooked import reason_of
from shared.turns.queue import (
    Admission,
    AdmissionLimits,
    Begun,
    CallEntry,
    Claim,
    Opened,
    Receipt,
    TurnView,
)
from shared.turns.resume import not_resumable

_MANY_DIGITS: Final = re.compile(r"\d{19}")
#: The answers of a statement that stored a new turn; every other one stored nothing.
NEWLY_STORED = frozenset({"admitted", "opened"})
#: What the answer begins with for a turn that cannot be resumed; the reason follows.
UNRESUMABLE = "resume-"


def admit_params(admission: Admission, limits: AdmissionLimits) -> dict[str, Any]:
    """Return the parameters of an admission."""
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
        "resumes": admission.resumes,
        "session_max": limits.queued_per_session,
        "owner_max": limits.queued_per_owner,
        "is_full": limits.is_full,
        "attempts_max": limits.attempts_max,
        "origin": admission.origin,
        "claims": list(admission.claims),
    }


def receipt_of(admission: Admission, row: Row) -> Receipt:
    """Return the receipt that an admission answered, or raise why there is none."""
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
                superseded={
                    TurnId(turn): WorkerId(holder)
                    for turn, holder in zip(row["held"] or (), row["holders"] or (), strict=True)
                },
            )
        case "session-full":
            raise QueueFull("too many turns of the session are queued", bound="queued turns a session")
        case "owner-full":
            raise QueueFull("too many turns of the owner are queued", bound="queued turns an owner")
        case "all-full":
            raise QueueFull("too many turns are queued in all", bound="queued turns in all")
        case "key-conflict":
            raise _not_admitted(admission, row["result"], row["turn_id"])
        case result:
            raise _not_admitted(admission, result, row["detail"])


def _not_admitted(admission: Admission, result: str, turn_id: Any) -> TurnkeeperError:
    match result:
        case "missing":
            return SessionMissing("no such session", session=admission.session_id)
        case "key-conflict":
            return KeyConflict("the key was used with other content", key=admission.key, turn=str(turn_id))
        case "run-reused":
            return RunIdReused("the run id was used before", run=admission.run_id)
        case "busy":
            return SessionBusy("a turn of the session is unfinished", turn=str(turn_id))
        case unresumable if unresumable.startswith(UNRESUMABLE):
            reason = unresumable.removeprefix(UNRESUMABLE)
            return not_resumable(admission.session_id, admission.resumes, reason)
        case other:
            return StoreDefect("unknown answer of an admission", answer=other)


def begun_of(admission: Admission, row: Row) -> Begun:
    """Return the turn that a begin opened or adopted, or raise why it did not."""
    match row["result"]:
        case "opened" | "adopted" as result:
            opened = Opened(result, row["number"], row["seq"], row["started_seq"])
            return Begun(_begun_claim(admission, row), opened)
        case "duplicate" | "duplicate-open" as result:
            raise TurnDuplicate(
                "the key already began a turn",
                turn_id=str(row["turn_id"]),
                number=row["number"],
                open=result == "duplicate-open",
            )
        case "missing" | "key-conflict" | "run-reused" | "busy" as result:
            raise _not_admitted(admission, result, row["turn_id"])
        case "empty" | "moved" as result:
            raise inbox_error_of(result, admission.session_id)
        case "lost" | "cancelled" | "interrupted" | "ended" | "removed" as result:
            raise refusal_of(result, admission.turn_id, row["epoch"])
        case other:
            raise _not_admitted(admission, other, None)


def opened_of(claim: Claim, row: Row) -> Opened:
    """Return how a claimed turn stands open, or raise why it does not."""
    match row["result"]:
        case "opened" | "adopted" | "took-over" as result:
            return Opened(result, row["number"], row["seq"], row["started_seq"])
        case "busy":
            raise SessionBusy("another turn of the session is open", session=claim.session_id)
        case "empty" | "moved" as result:
            raise inbox_error_of(result, claim.session_id)
        case "expired":
            raise TurnClosed(
                "the turn's deadline passed before it opened", turn=str(claim.turn_id), reason="ended"
            )
        case result if result.startswith(UNRESUMABLE):
            raise not_resumable(claim.session_id, claim.resumes, result.removeprefix(UNRESUMABLE))
        case result:
            raise refusal_of(result, claim.turn_id, claim.fence.epoch)


def inbox_error_of(result: Literal["empty", "moved"], session_id: SessionId) -> NothingPending | InboxMoved:
    """Return the error of an inbox turn that names other items than those that wait."""
    if result == "empty":
        return NothingPending("no item waits", session=session_id)
    return InboxMoved("other items wait than the turn names", session=session_id)


def refusal_of(result: str, turn_id: TurnId, epoch: int) -> FenceLost:
    """Return the error of a write whose fence does not hold."""
    turn = str(turn_id)
    if result == "lost":
        return FenceLost("another worker owns the turn, or its lease passed", turn=turn, epoch=epoch)
    return TurnClosed(f"the turn was closed: {result}", turn=turn, reason=result, epoch=epoch)


def fenced_params(claim: Claim, commit_id: str) -> dict[str, Any]:
    """Return the parameters that every write of a holder begins with."""
    return {
        "id": claim.turn_id,
        "session": claim.session_id,
        "epoch": claim.fence.epoch,
        "token": claim.fence.token,
        "commit": commit_id,
    }


def draft_params(drafts: Sequence[Draft]) -> dict[str, Any]:
    """Return records as parameters; raises ``InputTooLarge`` for more than a commit holds."""
    check_commit_size(drafts)
    return {
        "kinds": [d.kind for d in drafts],
        "texts": [d.text for d in drafts],
        "digests": [d.digest for d in drafts],
    }


def ledger_text(calls: Sequence[CallEntry]) -> str | None:
    """Return ledger lines as JSON, or None without any."""
    if not calls:
        return None
    return orjson.dumps([{name: getattr(c, name) for name in CallEntry.__slots__} for c in calls]).decode()


def refused_params(error: TurnRefused) -> dict[str, Any]:
    """Return what is kept of a refusal: the error's code, and the host's reason."""
    return {"code": error.code, "failure": reason_of(error)}


def held_params(fences: Mapping[TurnId, Fence]) -> dict[str, Any]:
    """Return the fences that a process holds as parameters."""
    return {"ids": list(fences), "tokens": [f.token for f in fences.values()]}


def _optional_json(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else canonical_json(dict(value))


def _parsed(text: str | None) -> Mapping[str, Any] | None:
    if text is None:
        return None
    # orjson reads an integer of more than 64 bits as a float, and a host's integers keep their digits.
    if _MANY_DIGITS.search(text) is None:
        with suppress(ValueError):
            parsed: Mapping[str, Any] = orjson.loads(text)
            return parsed
    return json.loads(text)  # type: ignore[no-any-return]  # what was stored was a mapping


def claim_of(row: Row) -> Claim:
    """Return the claim of a row that was handed out."""
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
        priority=row["priority"],
        attempts=row["attempts"],
        suspect=row["suspect"],
        lost=row["lost"],
        max_duration_s=row["max_duration_s"],
        open_for_s=row["open_for_s"],
        parent=None if row["parent"] is None else SessionId(row["parent"]),
        deadline_in_s=row["deadline_in_s"],
        resumes=row["resumes"],
        inherits=row.get("inherits"),
        tail=row.get("tail"),
    )


def _begun_claim(admission: Admission, row: Row) -> Claim:
    return Claim(
        turn_id=admission.turn_id,
        session_id=admission.session_id,
        owner=admission.owner,
        fence=Fence(row["epoch"], row["token"]),
        number=row["number"],
        origin=admission.origin,
        run_id=admission.run_id,
        key=admission.key,
        message=admission.message,
        command=admission.command,
        meta=admission.meta,
        agent=admission.agent,
        agent_revision=admission.agent_revision,
        on_worker_loss=admission.on_worker_loss,
        priority=admission.priority,
        attempts=row["attempts"],
        suspect=False,
        lost=False,
        max_duration_s=admission.max_duration_s,
        open_for_s=row["open_for_s"],
        resumes=admission.resumes,
    )


def view_of(row: Row) -> TurnView:
    """Return a turn as anyone may see it."""
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
        holder=None if row["lease_owner"] is None else WorkerId(row["lease_owner"]),
        leased=row["leased"],
        usage=_parsed(row["usage"]) or {},
        key=row["key"],
        resumes=None if row["resumes"] is None else TurnId(row["resumes"]),
        after=row["admitted_seq"],
        started_seq=row["started_seq"],
        admitted_at=row["admitted_at"],
        opened_at=row["opened_at"],
        ended_at=row["ended_at"],
        deadline=row["deadline"],
        now=row["now"],
    )

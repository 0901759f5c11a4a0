"""The machine finds what it is there for: with a rule taken out, of Postgres or of the twin, it fails within its examples."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import pytest

import shared.turns
from shared.database.statements import load_statements
from shared.domain.ids import OwnerId, TurnId
from shared.leases.fence import Fence
from shared.sessions.inproc import InprocStore
from shared.sessions.records import Draft
from shared.turns.inproc import InprocTurnQueue
from shared.turns.inproc.rows import TurnTables
from shared.turns.queue import Admission, AdmissionLimits, Claim, Ended, Ending, Opened, Receipt
from tests.stateful.queue_machine import TurnQueueMachine
from tests.stateful.resuming_machine import ResumingMachine
from tests.stateful.searching import search
from tests.stateful.sides import InprocWorks, Side
from tests.support.mutations import Mutation, apply, mutation

SQL: Final = load_statements(Path(shared.turns.__file__).with_name("queries.sql"))


def function_of(statement: str) -> str:
    """The function that a statement of the turn queue calls now."""
    [name] = re.findall(r"turn_\w+_v\d+", SQL[statement].text)
    return str(name)


HEAD_FENCE = "v_head.open_turn = p_id AND v_head.open_epoch = p_epoch AND v_head.open_token = p_token"
ROW_FENCE = "AND turn_fence_holds_v1(v_turn, p_epoch, p_token, v_now)"
CLEARED = "UPDATE sessions SET open_turn = NULL, open_epoch = NULL, open_token = NULL WHERE id = p_session;"
TOKEN = " AND ((p_turn).token = p_token)"

PLANTED: Final[Sequence[Mutation]] = [
    mutation("append without a fence", function_of("append"), (HEAD_FENCE, "true"), (ROW_FENCE, "")),
    mutation("end without a fence", function_of("end"), (HEAD_FENCE, "true"), (ROW_FENCE, "")),
    mutation("a fence by the head alone", function_of("append"), (ROW_FENCE, "")),
    mutation("a fence of any token", "turn_fence_holds_v1", (TOKEN, "")),
    mutation(
        "a fence of any epoch", "turn_fence_holds_v1", (" AND ((p_turn).epoch = p_epoch)", ""), (TOKEN, "")
    ),
    mutation("a fence of any time", "turn_fence_holds_v1", (" AND ((p_turn).expires_at >= p_now)", "")),
    mutation("an end promotes nothing", function_of("end"), ("turn_promote_v1(p_session)", "NULL::uuid")),
    mutation("a cancel promotes nothing", "turn_cancel_v1", ("PERFORM turn_promote_v1(v_session);", "")),
    mutation(
        "an end leaves the head open",
        function_of("end"),
        ("NULL, NULL, NULL, 0, NULL, true)", "p_id, p_epoch, p_token, 0, NULL, true)"),
    ),
    mutation(
        "a close leaves the head open",
        "turn_close_open_v2",
        (CLEARED.replace("p_session", "p_turn.session_id"), ""),
    ),
    mutation("an end forgets its commit", function_of("end"), ("end_commit = p_commit, ", "")),
    mutation(
        "an append that was stored is stored again",
        function_of("append"),
        ("v_repeated := coalesce(v_head.last_commit = p_commit, false);", "v_repeated := false;"),
    ),
    mutation(
        "a takeover leaves the head to the older holder",
        function_of("open"),
        ("SET open_epoch = p_epoch, open_token = p_token, last", "SET last"),
    ),
    mutation(
        "a key is not looked up",
        function_of("admit"),
        ("key = coalesce(p_key, p_id::text);", "key = p_id::text;"),
        ("'turn', coalesce(p_key, p_id::text), p_print", "'turn', p_id::text, p_print"),
    ),
    mutation("a claim keeps the epoch", "turn_take_over_v2", ("epoch = t.epoch + 1,", "epoch = t.epoch,")),
    mutation(
        "a begin beside an unfinished turn",
        function_of("begin"),
        ("IF FOUND THEN result := 'busy'", "IF false THEN result := 'busy'"),
    ),
    mutation(
        "an interrupt leaves the open turn",
        "turn_supersede_v1",
        (
            "SELECT * INTO v_open FROM turns t WHERE t.id = p_head.open_turn;",
            "SELECT * INTO v_open FROM turns t WHERE false;",
        ),
    ),
    mutation(
        "an interrupt leaves what waits",
        "turn_supersede_v1",
        (
            "AND t.id IS DISTINCT FROM p_head.open_turn;",
            "AND t.status = 'running' AND t.id IS DISTINCT FROM p_head.open_turn;",
        ),
    ),
    mutation("a renewal after the end of the lease", "turn_renew_v1", ("AND t.expires_at >= v_now", "")),
]

#: What it takes a turn that came far, or that stopped and was resumed, to be wrong about.
PLANTED_FAR: Final[Sequence[Mutation]] = [
    mutation(
        "a settled call is settled again",
        "turn_ledger_v1",
        ("WHERE tool_calls.state IN ('planned', 'started')", ""),
    ),
    mutation(
        "a resume of an answered turn",
        "turn_resume_refusal_v1",
        ("IF v_outcome IN ('completed', 'partial') THEN RETURN 'superseded'; END IF;", ""),
    ),
]


class BrokenTwin(InprocTurnQueue):
    """A twin that reaches into its own rows."""

    def __init__(self, store: InprocStore, *, attempts_max: int = 3) -> None:
        super().__init__(store, attempts_max=attempts_max)
        self.store, self.tables = store, store.part(TurnTables)


class Fenceless(BrokenTwin):
    """Takes any claim of the open turn for the present one."""

    async def append(self, claim: Claim, commit_id: str, drafts: Sequence[Draft], **how: Any) -> int:
        row = self.tables.turns.get(claim.turn_id)
        fence = row.fence if row is not None and row.token is not None else claim.fence
        return await super().append(replace(claim, fence=fence), commit_id, drafts, **how)


class Tokenless(BrokenTwin):
    """Compares epochs alone."""

    async def release(self, turn_id: TurnId, fence: Fence, *, due_in_s: float = 0.0) -> bool:
        row = self.tables.turns.get(turn_id)
        token: UUID | None = row.token if row is not None and row.epoch == fence.epoch else None
        return await super().release(turn_id, replace(fence, token=token or fence.token), due_in_s=due_in_s)


class Clockless(BrokenTwin):
    """Lets a holder write past its lease for as long as nobody else took the turn."""

    async def append(self, claim: Claim, commit_id: str, drafts: Sequence[Draft], **how: Any) -> int:
        row = self.tables.turns.get(claim.turn_id)
        if row is not None and row.token == claim.fence.token:
            row.expires_at = self.store.now() + timedelta(hours=1)
        return await super().append(claim, commit_id, drafts, **how)


class Unpromoting(BrokenTwin):
    """Leaves the next turn queued when one is cancelled."""

    async def cancel(self, turn_id: TurnId, owner: OwnerId) -> Any:
        waiting = [row for row in self.tables.turns.values() if row.status == "queued"]
        answer = await super().cancel(turn_id, owner)
        for row in waiting:
            row.status = "queued" if row.status == "ready" else row.status
        return answer


class Unclosing(BrokenTwin):
    """Leaves the head open at an end."""

    async def end(
        self, claim: Claim, commit_id: str, drafts: Sequence[Draft], ending: Ending, **how: Any
    ) -> Ended:
        session = self.store.sessions.get(claim.session_id)
        opened = None if session is None else session.open
        answer = await super().end(claim, commit_id, drafts, ending, **how)
        if session is not None:
            session.open = opened
        return answer


class Keyless(BrokenTwin):
    """Looks up no key."""

    async def admit(self, admission: Admission, limits: AdmissionLimits, **how: Any) -> Receipt:
        return await super().admit(replace(admission, key=None), limits, **how)


class Amnesiac(BrokenTwin):
    """Forgets which commits it stored."""

    async def append(self, claim: Claim, commit_id: str, drafts: Sequence[Draft], **how: Any) -> int:
        return await super().append(claim, uuid4().hex, drafts, **how)


class Reopening(BrokenTwin):
    """Opens again what is open."""

    async def open(self, claim: Claim, commit_id: str, drafts: Sequence[Draft], **how: Any) -> Opened:
        session = self.store.sessions.get(claim.session_id)
        if session is not None and session.open is not None and session.open.turn_id == claim.turn_id:
            session.open = None
        return await super().open(claim, commit_id, drafts, **how)


@pytest.mark.mutation
@pytest.mark.parametrize("change", [pytest.param(change, id=change.name) for change in PLANTED])
def test_a_bug_in_the_database_is_found(database_url: str, postgres: Side, change: Mutation) -> None:
    apply(database_url, change)
    with pytest.raises(AssertionError):
        search(TurnQueueMachine, postgres, examples=60, steps=50, shrinks=False)


@pytest.mark.mutation
@pytest.mark.parametrize("change", [pytest.param(change, id=change.name) for change in PLANTED_FAR])
def test_a_bug_that_shows_late_is_found(database_url: str, postgres: Side, change: Mutation) -> None:
    apply(database_url, change)
    with pytest.raises(AssertionError):
        search(ResumingMachine, postgres, examples=60, steps=50, shrinks=False)


@pytest.mark.mutation
@pytest.mark.parametrize(
    "broken", [Fenceless, Tokenless, Clockless, Unpromoting, Unclosing, Keyless, Amnesiac, Reopening]
)
def test_a_bug_in_the_twin_is_found(broken: type[BrokenTwin]) -> None:
    with pytest.raises(AssertionError):
        search(TurnQueueMachine, Side(InprocWorks(broken)), examples=200, steps=50, shrinks=False)

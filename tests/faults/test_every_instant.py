"""Core 1's two sentences, and what the inbox and tasks add to them, hold at every instant of 10 s of random load."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Final

import pytest

from shared.domain.ids import OwnerId, SessionId
from shared.sessions.records import Record
from tests.faults.load import RUNNING_MAX, Load
from tests.faults.world import World, world
from tests.support.mutations import Mutation, apply, mutation

LOAD_S: Final = 10.0
DRAIN_S: Final = 30.0
SESSIONS: Final = 6
OWNERS: Final = 3

#: One statement, so one snapshot: sessions without exactly one live row in front, heads that name a finished row,
#: owners above their cap; waiting items that are miscounted or that no row will answer, claims of a turn that is over;
#: tasks that are over without a debt or a notice, or with both.
BROKEN_NOW: Final = """
WITH unfinished AS (
  SELECT session_id, count(*) FILTER (WHERE status <> 'queued') AS live, min(position) AS first,
         min(position) FILTER (WHERE status <> 'queued') AS first_live
    FROM turns WHERE status IN ('queued', 'ready', 'running', 'waiting') GROUP BY session_id)
SELECT 'live rows' AS broken, session_id AS id FROM unfinished WHERE live <> 1 OR first <> first_live
UNION ALL
SELECT 'open', s.id FROM sessions s LEFT JOIN turns t ON t.id = s.open_turn
  WHERE s.open_turn IS NOT NULL AND (t.id IS NULL OR t.status NOT IN ('ready', 'running', 'waiting'))
UNION ALL
SELECT 'cap', t.owner FROM turns t JOIN owners o ON o.id = t.owner
  WHERE t.status = 'running' GROUP BY t.owner, o.running_max HAVING count(*) > o.running_max
UNION ALL
SELECT 'waiting items', s.id FROM sessions s
  WHERE s.inbox_waiting <> (SELECT count(*) FROM inbox_items i WHERE i.session_id = s.id AND i.turn_id IS NULL)
UNION ALL
SELECT 'no inbox turn', s.id FROM sessions s WHERE s.inbox_waiting > 0 AND NOT EXISTS (
  SELECT 1 FROM turns t WHERE t.session_id = s.id AND t.origin = 'inbox' AND t.status IN ('queued', 'ready', 'running', 'waiting'))
UNION ALL
SELECT 'claimed item', i.session_id FROM inbox_items i LEFT JOIN turns t ON t.id = i.turn_id
  WHERE i.turn_id IS NOT NULL AND (t.origin = 'inbox' AND t.number IS NOT NULL AND t.status IN ('ready', 'running', 'waiting')) IS NOT TRUE
UNION ALL
SELECT 'task', t.session_id FROM turns t WHERE t.origin = 'task'
  AND (t.status IN ('ended', 'cancelled', 'refused', 'expired'))::int
      <> (SELECT count(*) FROM deliveries d WHERE d.child = t.session_id)
         + (SELECT count(*) FROM session_keys k WHERE k.session_id = t.parent AND k.space = 'inbox' AND k.key = 'task:' || t.session_id)
"""
UNFINISHED: Final = """
SELECT id::text FROM turns WHERE status IN ('queued', 'ready', 'running', 'waiting') UNION ALL SELECT child FROM deliveries LIMIT 5
"""
#: How often each item that was ever delivered, notices too, was answered, and how often it was given up.
ANSWERS: Final = """
SELECT k.session_id, k.key,
       (SELECT count(*) FROM records r JOIN turns t ON t.session_id = r.session_id AND t.number = r.turn
          WHERE r.session_id = k.session_id AND r.kind = 'turn.started' AND r.data::jsonb -> 'claimed' ? k.key
            AND t.outcome IN ('completed', 'partial', 'cancelled')) AS answered,
       (SELECT count(*) FROM records r
          WHERE r.session_id = k.session_id AND r.kind = 'inbox.dropped' AND r.data::jsonb ->> 'id' = k.key) AS dropped
  FROM session_keys k WHERE k.space = 'inbox'
"""


async def prepare(w: World, seed: int) -> Load:
    """Make the sessions and the owners' caps."""
    owners = [OwnerId(f"owner {n}") for n in range(OWNERS)]
    sessions = [(await w.session(owners[n % OWNERS]), owners[n % OWNERS]) for n in range(SESSIONS)]
    await w.rows("UPDATE owners SET running_max = %s", RUNNING_MAX)
    return Load(w, seed, sessions)


async def watch_while(w: World, load: Load, load_s: float) -> int:
    """Look at snapshots for the load's time and until it has drained; return how many were looked at."""
    loop = asyncio.get_running_loop()
    started_at = loop.time()
    snapshots = 0
    while True:
        broken = await w.rows(BROKEN_NOW)
        assert broken == [], load.noted.counts
        snapshots += 1
        if loop.time() - started_at > load_s:
            load.makes_trouble = False
            left = await w.rows(UNFINISHED)
            if not left:
                return snapshots
            assert loop.time() - started_at < load_s + DRAIN_S, (left, load.noted.counts)
        await asyncio.sleep(0.005)


async def scenario_load(url: str, seed: int, load_s: float) -> Counter[str]:
    """Run the load, then hold what is stored against what was told; return what happened, counted."""
    async with world(url, connections=10) as w:
        load = await prepare(w, seed)
        try:
            async with load.running():
                load.noted.counts["snapshots"] = await watch_while(w, load, load_s)
        except* AssertionError as group:
            raise group.exceptions[0] from None
        stored = {row["id"] for row in await w.rows("SELECT id FROM sessions")}
        for session, owner in load.owners.items():
            if session in stored:  # a task whose start was refused is none
                await check_session(w, load, session, owner)
        await check_told(w, load)
        await check_items(w, load)
        return load.noted.counts


async def check_session(w: World, load: Load, session: SessionId, owner: OwnerId) -> None:
    """Require a verified log in which each opened turn starts once, replies at most once, and ends once, in order."""
    head = await w.head(session, owner)
    assert head.open is None
    records = await w.records(session, owner)
    rows = await w.rows("SELECT * FROM turns WHERE session_id = %s ORDER BY position", session)
    numbers = [row["number"] for row in rows if row["number"] is not None]
    first = numbers[0] if numbers and session in load.noted.tasks else 1  # a fork counts on
    assert numbers == list(range(first, first + len(numbers)))
    of_turns = [record.turn for record in records if record.turn is not None]
    assert of_turns == sorted(of_turns)
    for number in numbers:
        check_turn([record for record in records if record.turn == number])
    for taken, number, seq, epoch in load.noted.takeovers:
        if taken == session:
            late = [r for r in records if r.turn == number and r.seq > seq and r.kind != "turn.ended"]
            assert all(r.data["epoch"] >= epoch for r in late)


def check_turn(records: Sequence[Record]) -> None:
    """Require that one turn's records are whole, and none of them is doubled."""
    kinds = [record.kind for record in records]
    assert (kinds[0], kinds[-1]) == ("turn.started", "turn.ended")
    assert (kinds.count("turn.started"), kinds.count("turn.ended")) == (1, 1)
    assert kinds.count("turn.reply") <= 1
    steps = [record.data["step"] for record in records if record.kind == "step.started"]
    assert steps == list(range(1, len(steps) + 1))


async def check_told(w: World, load: Load) -> None:
    """Require that every receipt is kept: acknowledged turns are terminal, keys name one turn, cancels stay cancels."""
    rows = {row["id"]: row for row in await w.rows("SELECT * FROM turns")}
    assert set(load.noted.admitted) <= set(rows)
    finished = {"ended", "cancelled", "refused", "expired"}
    assert [row["id"] for row in rows.values() if row["status"] not in finished] == []
    assert [key for key, turns in load.noted.keys.items() if len(turns) != 1] == []
    for turn, after in load.noted.cancelled.items():
        row = rows[turn]
        assert "cancelled" in (row["status"], row["outcome"])
        if row["number"] is not None:
            later = await w.log.read(row["session_id"], after=after, turn=row["number"])
            assert [record.kind for record in later] == []


async def check_items(w: World, load: Load) -> None:
    """Require that each item and each task's notice was answered once or given up once, and none was lost."""
    answers = await w.rows(ANSWERS)
    assert [row for row in answers if row["answered"] + row["dropped"] != 1] == []
    load.noted.counts["answered"] = sum(row["answered"] for row in answers)
    told = {(row["session_id"], row["key"]) for row in answers}
    assert load.noted.items <= told
    assert {(parent, f"task:{task}") for task, parent in load.noted.tasks.items()} <= told
    assert await w.rows("SELECT 1 FROM inbox_items") == []


PLANTED: Final[list[Mutation]] = [
    mutation(
        "append without a fence",
        "turn_append_v2",
        ("IF NOT coalesce(v_head.open_turn = p_id", "IF false AND NOT coalesce(v_head.open_turn = p_id"),
    ),
    mutation("an end promotes nothing", "turn_end_v3", ("turn_promote_v1(p_session)", "NULL::uuid")),
    mutation(
        "a reaped turn stays open",
        "turn_close_open_v2",
        (
            "UPDATE sessions SET open_turn = NULL, open_epoch = NULL, open_token = NULL WHERE id = p_turn.session_id;",
            "",
        ),
    ),
    mutation(
        "an end leaves items without a turn", "turn_promote_v1", ("PERFORM inbox_follow_v1(p_session);", "")
    ),
    mutation(
        "a result that was told stays owed",
        "task_deliver_v1",
        (
            "DELETE FROM deliveries WHERE child = p_child AND parent = p_parent AND md5(body) = p_version"
            " RETURNING body::jsonb INTO v_debt;",
            "SELECT body::jsonb INTO v_debt FROM deliveries WHERE child = p_child AND parent = p_parent AND md5(body) = p_version;",
        ),
    ),
]


@pytest.mark.behaviour("DST-09", "DST-14")
@pytest.mark.parametrize("seed", [1])
async def test_every_instant_of_random_load_is_whole_and_so_is_what_it_leaves(
    database_url: str, seed: int
) -> None:
    counts = await scenario_load(database_url, seed, LOAD_S)
    # The load was one: everything that it is there for happened.
    for what in (
        *("snapshots", "ended", "killed", "crashed", "stalled", "turn.fence-lost", "session.busy"),
        *("told", "failed", "answered"),
    ):
        assert counts[what] > 0, (what, counts)


@pytest.mark.mutation
@pytest.mark.parametrize("change", [pytest.param(m, id=m.name) for m in PLANTED])
async def test_load_finds_a_planted_bug(database_url: str, change: Mutation) -> None:
    apply(database_url, change)
    with pytest.raises(AssertionError):
        await scenario_load(database_url, 1, LOAD_S)

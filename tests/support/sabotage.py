"""Takes whole rules out of a database, for proofs that an instrument sees it."""

from __future__ import annotations

import re
from typing import Final

import psycopg

from tests.support.mutations import apply, mutation

#: The fence as every function of a holder's write asks for it: the row's own, and the head's.
_ROW_FENCE: Final = """
CREATE OR REPLACE FUNCTION turn_fence_holds_v1(p_turn turns, p_epoch bigint, p_token uuid, p_now timestamptz) RETURNS bool
LANGUAGE sql IMMUTABLE RETURN p_turn.status = 'running'
"""
_HEAD_FENCE: Final = re.compile(
    r"v_head\.open_turn = p_id\s+AND v_head\.open_epoch = p_epoch\s+AND v_head\.open_token = p_token"
)


def take_out_fences(database_url: str) -> None:
    """Let anyone write who once held a turn, as long as it is open. Raises ``LookupError`` when there is no such check."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(_ROW_FENCE.encode())
        rows = connection.execute(
            "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE prosrc LIKE '%open_token%' AND proname LIKE 'turn_%'"
        ).fetchall()
        changed = 0
        for (definition,) in rows:
            text, count = _HEAD_FENCE.subn("v_head.open_turn = p_id", str(definition))
            if count:
                connection.execute(text.encode())
                changed += count
    if changed == 0:
        raise LookupError("no function compares the head's fence")


def undo_groups(database_url: str) -> None:
    """Undo half of the group commits after their members were answered: as if these were acknowledged before COMMIT answers.

    Admissions take as long as on a slow disk, so that others come meanwhile and share a commit at all.
    """
    undone = """  END LOOP;
  IF random() < 0.5 THEN RAISE EXCEPTION 'undone'; END IF;
EXCEPTION WHEN OTHERS THEN NULL;"""
    judged = "  v_now := clock_timestamp();"
    apply(database_url, mutation("groups that are undone", "turn_group_v1", ("  END LOOP;", undone)))
    slow = (judged, f"  PERFORM pg_sleep(0.2);\n{judged}")
    apply(database_url, mutation("admissions that take their time", "turn_admit_v3", slow))

"""What must be true of stored state after every durable step, whatever came before it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from shared.domain.errors import CorruptRecord
from shared.domain.ids import SessionId, TurnId
from shared.sessions.records import Record, verify_log
from tests.stateful.values import HeadState, RowState, Stored

FINISHED = frozenset({"ended", "cancelled", "refused", "expired"})
LIVE = frozenset({"ready", "running", "waiting"})
_THEN = datetime(2030, 1, 1, tzinfo=UTC)


def require_whole_state(stored: Stored) -> None:
    """Require the core's two "at every instant" sentences, the order of turns, one end a turn, and logs that verify."""
    rows: dict[SessionId, list[RowState]] = defaultdict(list)
    for row in stored.rows:
        rows[row.session].append(row)
    records = _records(stored)
    tails = dict(stored.tails)
    for head in stored.heads:
        _require_one_live_row(rows[head.id])
        _require_open_is_unfinished(head, rows[head.id])
        _require_order(head, rows[head.id])
        _require_verified(head, records[head.id], tails[head.id])
        for row in rows[head.id]:
            of_turn = [r.kind for r in records[head.id] if row.number is not None and r.turn == row.number]
            _require_turn(row, of_turn, is_open=head.open is not None and head.open[0] == row.id)
    _require_one_result_a_call(stored.ledger)


def _records(stored: Stored) -> Mapping[SessionId, list[Record]]:
    found: dict[SessionId, list[Record]] = defaultdict(list)
    for (session, seq, turn, kind, text), digest in zip(stored.records, stored.digests, strict=True):
        found[session].append(Record(session, seq, turn, kind, _THEN, text, digest))
    return found


def _require_one_live_row(rows: Sequence[RowState]) -> None:
    """A session with any unfinished row has exactly one live row, and it is the first by position."""
    unfinished = [row.status for row in rows if row.status not in FINISHED]
    if unfinished:
        assert unfinished[0] in LIVE, f"the first unfinished row is live, not {unfinished}"
        assert set(unfinished[1:]) <= {"queued"}, f"the others wait, not {unfinished}"


def _require_open_is_unfinished(head: HeadState, rows: Sequence[RowState]) -> None:
    """A head's open never names a finished row."""
    if head.open is not None:
        [row] = [row for row in rows if row.id == head.open[0]]
        assert row.status not in FINISHED, f"an open turn is unfinished, not {row.status}"
        assert row.number is not None, "an open turn has a number"


def _require_order(head: HeadState, rows: Sequence[RowState]) -> None:
    """Positions are dense as given, and numbers dense in the order of opening, which is that of positions."""
    assert [row.position for row in rows] == list(range(1, head.next_position)), "no admitted row is missing"
    numbers = [row.number for row in rows if row.number is not None]
    assert numbers == list(range(1, head.next_number)), f"numbers are dense by position, not {numbers}"


def _require_verified(head: HeadState, records: Sequence[Record], tail: bytes) -> None:
    """Seqs are dense, and every digest and the chain are right."""
    try:
        verify_log(head.id, records, seq=head.seq, tail=tail)
    except CorruptRecord as error:
        raise AssertionError(f"the log verifies, not: {error}") from error


def _require_turn(row: RowState, kinds: Sequence[str], *, is_open: bool) -> None:
    """An opened turn starts once, first, and is closed once, last, exactly when its row is ended."""
    if row.number is None:
        assert row.status != "ended" or row.code == "turn.lease", "an unopened row ends only as spent"
        return
    assert row.status not in ("cancelled", "refused", "expired"), "an opened turn ends as ended"
    assert kinds[:1] == ["turn.started"], f"a turn starts first, not {kinds}"
    assert kinds.count("turn.started") == 1, "once"
    assert kinds.count("turn.ended") == int(row.status == "ended"), f"{row.status} with {kinds}"
    assert is_open == (row.status != "ended"), "a numbered turn is open until it ended"
    if row.status == "ended":
        assert kinds[-1] == "turn.ended", "nothing comes after its end"


def _require_one_result_a_call(ledger: Sequence[tuple[TurnId, str, str, str | None]]) -> None:
    lines = [(turn, call) for turn, call, *_ in ledger]
    assert len(lines) == len(set(lines)), "a call has one line"
    for _, call, state, result in ledger:
        assert (result is not None) == (state in ("done", "failed", "unknown")), (
            f"{call} is {state}: {result}"
        )

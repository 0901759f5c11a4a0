"""Reading back into what a session inherits: own records first, then the parent's up to the fork, and no head in vain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from shared.domain.ids import OwnerId, SessionId
from shared.sessions.records import Head, Record
from workers.context.history import HISTORY_PAGE_RECORDS
from workers.context.lineage import LineageReader

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def record(session: str, seq: int, turn: int) -> Record:
    return Record(SessionId(session), seq, turn, "memory.section", NOW, "{}", b"")


class Logs:
    """Logs of sessions, and from which parent each was forked, up to which seq."""

    def __init__(self, logs: Mapping[str, Sequence[Record]], parents: Mapping[str, tuple[str, int]]) -> None:
        self.logs = logs
        self.parents = parents
        self.heads: list[str] = []

    async def read_back(self, session: SessionId, before: int | None) -> Sequence[Record]:
        found = [r for r in self.logs[session] if before is None or r.seq < before]
        return found[::-1][:HISTORY_PAGE_RECORDS]

    async def head(self, session: SessionId) -> Head:
        self.heads.append(session)
        parent, through = self.parents.get(session, (None, None))
        blank: Any = dict.fromkeys(Head.__dataclass_fields__)
        return replace(
            Head(**blank),
            id=session,
            owner=OwnerId("o"),
            parent=None if parent is None else SessionId(parent),
            inherited=through,
        )

    def reader(self, session: str, *, may_inherit: bool) -> LineageReader:
        return LineageReader(SessionId(session), self.read_back, self.head, may_inherit=may_inherit)


def places(records: Sequence[Record]) -> list[tuple[str, int]]:
    return [(str(r.session_id), r.seq) for r in records]


async def test_a_session_that_inherits_nothing_reads_no_head() -> None:
    logs = Logs({"s": [record("s", 1, 1), record("s", 2, 2)]}, {})
    assert places(await logs.reader("s", may_inherit=False)(None)) == [("s", 2), ("s", 1)]
    assert logs.heads == []


@pytest.mark.behaviour("SES-72", "TSK-01")
async def test_a_childs_first_turn_reads_its_parent_up_to_the_fork_and_not_beyond() -> None:
    logs = Logs({"p": [record("p", n, 1) for n in (1, 2, 3)], "c": []}, {"c": ("p", 2)})
    assert places(await logs.reader("c", may_inherit=True)(None)) == [("p", 2), ("p", 1)]


async def test_a_later_turn_of_a_fork_reads_its_own_records_and_then_what_it_inherits() -> None:
    logs = Logs({"p": [record("p", 1, 1)], "c": [record("c", 1, 2), record("c", 5, 3)]}, {"c": ("p", 1)})
    assert places(await logs.reader("c", may_inherit=False)(5)) == [("c", 1), ("p", 1)]
    assert logs.heads == ["c", "p"]


async def test_a_child_that_was_spawned_inherits_nothing() -> None:
    logs = Logs({"p": [record("p", 1, 1)], "c": [record("c", 1, 1)]}, {})
    assert places(await logs.reader("c", may_inherit=True)(None)) == [("c", 1)]


async def test_pages_go_on_over_the_border_of_two_logs() -> None:
    own = [record("c", n, 9) for n in range(1, HISTORY_PAGE_RECORDS + 2)]
    parents = [record("p", n, 1) for n in range(1, 4)]
    logs = Logs({"p": parents, "c": own}, {"c": ("p", 3)})
    reader = logs.reader("c", may_inherit=False)
    first, second = await reader(None), await reader(7)
    assert len(first) == HISTORY_PAGE_RECORDS
    assert places(second) == [("c", 1), ("p", 3), ("p", 2), ("p", 1)]

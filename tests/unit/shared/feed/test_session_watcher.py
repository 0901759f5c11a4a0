"""When followers look at the log: at each hint, and for those that may have been missed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from shared.domain.ids import SessionId
from shared.feed.watcher import GAP_LOOK_S, SessionWatcher
from shared.sessions.inproc import InprocSessionLog, InprocStore
from shared.turns.inproc import InprocTurnQueue
from tests.support.turn_world import NotedHints

SESSION = SessionId("ses_1")


@dataclass
class HandHints(NotedHints):
    """Hints that a test gives."""

    watching: list[tuple[Callable[[], None], Callable[[], None]]] = field(default_factory=list)

    def watch_session(
        self, session_id: SessionId, on_change: Callable[[], None], on_gap: Callable[[], None]
    ) -> Callable[[], None]:
        self.watching.append((on_change, on_gap))
        return lambda: None


def watcher() -> tuple[SessionWatcher, HandHints]:
    store, hints = InprocStore(), HandHints()
    return SessionWatcher(InprocSessionLog(store), InprocTurnQueue(store), hints=hints), hints


async def test_a_hint_soon_after_a_gap_costs_one_look_for_both() -> None:
    watching, hints = watcher()
    tail = watching.join(SESSION, asyncio.Event(), head=0)
    [(on_change, on_gap)] = hints.watching
    on_gap()
    before = tail.version
    on_change()
    assert tail.version == before + 1
    await asyncio.sleep(GAP_LOOK_S)  # set after the gap's timer, and so over after it
    assert tail.version == before + 1


async def test_followers_look_for_what_a_gap_may_have_hidden_without_any_hint() -> None:
    watching, hints = watcher()
    wake = asyncio.Event()
    tail = watching.join(SESSION, wake, head=0)
    before = tail.version
    wake.clear()
    for _ in range(2):
        hints.watching[0][1]()
    await asyncio.wait_for(wake.wait(), 30)
    await asyncio.sleep(GAP_LOOK_S)
    assert tail.version == before + 1


async def test_a_session_that_nobody_follows_any_more_is_looked_at_no_more() -> None:
    watching, hints = watcher()
    wake = asyncio.Event()
    tail = watching.join(SESSION, wake, head=0)
    before = tail.version
    hints.watching[0][1]()
    watching.leave(tail, wake)
    await asyncio.sleep(GAP_LOOK_S)
    assert tail.version == before

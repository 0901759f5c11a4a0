"""Who takes part in the turn queue's machine, and what its steps are drawn with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from shared.domain.ids import OwnerId, WorkerId
from shared.turns.queue import CallState, Outcome

OWNERS = (OwnerId("owner a"), OwnerId("owner b"))
WORKERS = (WorkerId("worker a"), WorkerId("worker b"), WorkerId("worker c"))
SERVED = ("1",)
ALL_REVISIONS = ("1", "2")
SESSIONS_MAX = 3

workers = st.sampled_from(WORKERS)
steps = st.sampled_from(("append", "step", "call", "call", "call", "call", "reply", "end", "release"))
kinds = st.sampled_from(("append", "append", "end", "open", "release", "renew", "renew", "abandon"))
own_things = st.sampled_from(("watch", "renew", "renew", "crash", "silence", "sign"))
losses = st.sampled_from(("continue", "continue", "continue", "interrupt"))
seldom = st.sampled_from((False, False, False, True))

CALL_STATES: Sequence[CallState] = ("planned", "started", "done", "failed", "unknown")
OUTCOMES: Sequence[Outcome] = ("completed", "partial", "failed")
PLAIN: Mapping[str, Any] = {
    "key": None,
    "text": "hello",
    "on_busy": "enqueue",
    "on_worker_loss": "continue",
    "priority": 1,
    "revision": "1",
    "has_deadline": False,
}
#: What an admission may be besides.
ODDLY: Mapping[str, st.SearchStrategy[Any]] = {
    "key": st.sampled_from(("k", "k", "l", None)),
    "text": st.sampled_from(("hello", "hello", "other")),
    "on_busy": st.sampled_from(("enqueue", "reject", "interrupt")),
    "on_worker_loss": losses,
    "priority": st.integers(0, 2),
    "revision": st.sampled_from(("1", "1", "2")),
    "has_deadline": st.booleans(),
    "resumes": st.sampled_from((None, None, None, 1, 1, 2, 3)),
    "same_run": seldom,
}

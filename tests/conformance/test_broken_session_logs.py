"""Each check of the session log's kits fails, by its name, on a log with the fault that it is about."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pytest

from shared.conformance import session_log_conformance, session_log_recovery_conformance
from shared.domain.errors import InputTooLarge, ReservedKind, SessionExists
from shared.domain.ids import new_session_id
from shared.sessions.inproc import InprocStore, StoredSession
from shared.sessions.log import Committed, Created, SessionLog
from shared.sessions.records import Draft, Head, Record
from tests.conformance.subjects import InprocSessionLogSubject
from tests.conformance.tampering import (
    Fault,
    Faults,
    answers,
    asks,
    hides,
    pretends,
    require_failure,
    require_fault_for_each,
    same,
    tampered,
)


class LogSubject(InprocSessionLogSubject):
    """A subject of logs with a fault, or over a store with one; ``is_new`` gives each handle a store of its own."""

    def __init__(
        self, faults: Faults | None = None, *, store: type[InprocStore] = InprocStore, is_new: bool = False
    ) -> None:
        super().__init__()
        self.store = store(self.clock)
        self._kind, self._is_new, self._faults = store, is_new, faults or {}

    async def log(self) -> SessionLog:
        if self._is_new:
            self.store = self._kind(self.clock)
        return tampered(await super().log(), **self._faults)


class GappyStore(InprocStore):
    """Leaves a seq out after each commit."""

    def append(self, session: StoredSession, drafts: Sequence[Draft], **how: Any) -> int:
        seq = super().append(session, drafts, **how)
        session.seq += 1
        return seq


def committed(*_: Any, **__: Any) -> Committed:
    """An answer that nothing stands behind."""
    return Committed(1, 1, InprocSessionLogSubject().clock())


def remembers_heads() -> Fault:
    """Hand out the same values of a head again and again."""
    known: dict[object, Head] = {}

    async def fault(real: Callable[..., Awaitable[Head]], *args: Any) -> Head:
        head = await real(*args)
        first = known.setdefault(args, head)
        return replace(head, meta=first.meta)

    return fault


async def tears(real: Callable[..., Awaitable[Committed]], *args: Any, **how: Any) -> Committed:
    """Store a commit record by record."""
    session, owner, drafts = args
    for one in drafts[:-1]:
        await real(session, owner, [one])
    return await real(session, owner, drafts[-1:], **how)


async def reads_then_writes(real: Callable[..., Awaitable[Committed]], *args: Any, **how: Any) -> Committed:
    """Compare the revision before the commit, not in it."""
    log = real.__self__  # type: ignore[attr-defined]  # the real method is bound
    head = await log.head(*args[:2])
    return await real(*args, **how | ({"expect": None} if how.get("expect") == head.revision else {}))


def shifted(records: Sequence[Record]) -> list[Record]:
    return [replace(record, seq=record.seq + 1) for record in records]


FAULTS: Final[Mapping[str, Faults]] = {
    "a new session has an empty head that says what it was created with": {
        "create": asks(lambda new: replace(new, title=None))
    },
    "the same creation key answers the first session, and one session exists": {
        "create": asks(lambda new: replace(new, key=None))
    },
    "a creation repeated with its own id after a lost answer makes no second session": {
        "create": asks(lambda new: replace(new, id=new_session_id()))
    },
    "a creation key or id used with other content is refused, and nothing is stored": {
        "create": asks(lambda new: replace(new, title=None, meta=None))
    },
    "creation keys are each owner's own, and nobody takes another owner's session id": {
        "create": hides(SessionExists, lambda new: Created(new.id, duplicate=True))
    },
    "of many creations with one key at once one session is made": {
        "create": asks(lambda new: replace(new, key=None))
    },
    "another owner's session reads as absent in every operation": {
        "remove": pretends(lambda session, owner: [session])
    },
    "a list gives one owner's sessions, last active first": {
        "list": answers(lambda heads: list(reversed(heads)))
    },
    "pages of a list meet without a gap or a double, also when sessions come in between": {
        "list": asks(before=None)
    },
    "records get dense seqs from 1 and the store's time, and the log verifies": {"read": answers(shifted)},
    "a read starts after its cursor, stops at its limit, and filters by kind and turn": {
        "read": asks(kinds=None)
    },
    "a log is read backwards from its end or before a seq, to a limit and by kind": {
        "read_back": asks(before=None)
    },
    "a commit answers the head after it, and may carry state and no records": {"commit": asks(state=None)},
    "a commit with an expected revision applies only while it is that one": {"commit": asks(expect=None)},
    "of 50 concurrent commits on one revision exactly one wins": {"commit": reads_then_writes},
    "concurrent commits without an expected revision all apply, one after another": {
        "commit": asks(same, same, lambda drafts: drafts[:1])
    },
    "a commit after its last moment is refused by the store's clock, and nothing is stored": {
        "commit": asks(not_after=None)
    },
    "a repeated commit id answers the first result and stores nothing again": {
        "commit": asks(commit_id=None, expect=None)
    },
    "a commit id with other content is a key conflict, and ids are each session's own": {
        "commit": asks(commit_id=None)
    },
    "every kind of the framework is refused, also beside good records, and nothing is stored": {
        "commit": hides(ReservedKind, committed)
    },
    "a commit that is too large is refused, and nothing is stored": {
        "commit": hides(InputTooLarge, committed)
    },
    "large records and all of Unicode come back whole": {
        "read": answers(lambda records: [replace(r, text=r.text.replace("é", "e")) for r in records])
    },
    "what is returned or handed in is a copy: changing it changes nothing stored": {
        "head": remembers_heads()
    },
    "a removal takes the session with its children and everything of theirs, and no other": {
        "remove": pretends(lambda session, owner: [session])
    },
    "a removed child leaves its parent, and the current seqs of many sessions are read at once": {
        "seqs": answers(lambda seqs: {session: seq + 1 for session, seq in seqs.items()})
    },
}
CHECKS: Final = session_log_conformance(InprocSessionLogSubject())

RECOVERY_FAULTS: Final[Mapping[str, Callable[[], LogSubject]]] = {
    "commits are there after their handle was closed and another opened": lambda: LogSubject(is_new=True),
    "two open handles see each other's commits and race with one winner a revision": lambda: LogSubject(
        {"commit": reads_then_writes}
    ),
    "a handle that was never closed blocks nobody": lambda: LogSubject({"remove": pretends(lambda *_: [])}),
    "an interrupted commit is stored whole or not at all": lambda: LogSubject({"commit": tears}),
    "the last moment itself is accepted, a millisecond later is refused": lambda: LogSubject(
        {"commit": asks(not_after=None)}
    ),
    "a repeated commit id answers its first result also after its last moment": lambda: LogSubject(
        {"commit": asks(commit_id=None)}
    ),
}
RECOVERY_CHECKS: Final = session_log_recovery_conformance(InprocSessionLogSubject())


def test_every_check_of_the_log_is_tried_on_a_fault() -> None:
    require_fault_for_each(CHECKS, list(FAULTS))
    require_fault_for_each(RECOVERY_CHECKS, list(RECOVERY_FAULTS))


@pytest.mark.behaviour("KIT-01", "KIT-29")
@pytest.mark.parametrize("name", FAULTS)
async def test_a_broken_log_fails_the_check_of_its_fault(name: str) -> None:
    await require_failure(session_log_conformance(LogSubject(FAULTS[name])), name)


@pytest.mark.behaviour("KIT-33")
@pytest.mark.parametrize("name", RECOVERY_FAULTS)
async def test_a_log_that_does_not_recover_fails_the_check_of_its_fault(name: str) -> None:
    await require_failure(session_log_recovery_conformance(RECOVERY_FAULTS[name]()), name)


@pytest.mark.behaviour("KIT-40")
async def test_handles_over_stores_of_their_own_do_not_recover() -> None:
    checks = session_log_recovery_conformance(LogSubject(is_new=True))
    for name in ("commits are there after", "two open handles see", "a handle that was never closed"):
        [found] = [check.name for check in checks if check.name.startswith(name)]
        await require_failure(checks, found)


async def test_a_log_with_gaps_fails_the_check_of_dense_seqs() -> None:
    name = "records get dense seqs from 1 and the store's time, and the log verifies"
    await require_failure(session_log_conformance(LogSubject(store=GappyStore)), name)


async def test_a_log_that_compares_before_it_writes_fails_the_race() -> None:
    name = "of 50 concurrent commits on one revision exactly one wins"
    await require_failure(session_log_conformance(LogSubject({"commit": reads_then_writes})), name)

"""The kit of whole-turn history on the twin in memory and on Postgres, and on a faulted log for each of its checks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import pytest

from shared.conformance import WholeTurnSubject, whole_turn_conformance
from shared.domain.errors import (
    HistoryConflict,
    SessionMissing,
)
from shared.domain.ids import new_turn_id
from shared.sessions.inproc import InprocStore, StoredSession
from shared.sessions.log import Committed, NewSession, SessionLog
from shared.sessions.records import Draft, Record
from tests.conformance.kits import cited_by, names_of, proved_by, run_check
from tests.conformance.subjects import InprocTurnQueueSubject, PostgresTurnQueueSubject
from tests.conformance.tampering import (
    Faults,
    answers,
    require_failure,
    require_fault_for_each,
    tampered,
)

CHECKS: Final = whole_turn_conformance(InprocTurnQueueSubject())


@pytest.fixture
async def subject(backend_url: str | None) -> AsyncIterator[WholeTurnSubject]:
    """A session log and a turn queue over one store."""
    if backend_url is None:
        yield InprocTurnQueueSubject()
        return
    async with PostgresTurnQueueSubject(backend_url) as found:
        yield found


@pytest.mark.behaviour(
    "THR-46",
    "THR-47",
    "THR-50",
    "THR-53",
    "THR-54",
    "THR-58",
    "THR-59",
    "THR-60",
    "THR-61",
    "THR-63",
    "THR-64",
    "THR-65",
    "THR-70",
    "THR-71",
    "THR-74",
    "THR-76",
    "THR-77",
    "THR-94",
    "THR-97",
    "THR-98",
)
@pytest.mark.parametrize("name", names_of(CHECKS))
async def test_whole_turns_are_kept_as_promised(name: str, subject: WholeTurnSubject) -> None:
    await run_check(whole_turn_conformance(subject), name)


def test_the_cited_rows_are_those_that_the_checks_prove() -> None:
    assert cited_by(test_whole_turns_are_kept_as_promised) == proved_by(CHECKS)


# --- adapters with one fault ---------------------------------------------------------------------------------------


class Subject(InprocTurnQueueSubject):
    """A log with a fault, or over a store with one."""

    def __init__(self, faults: Faults | None = None, *, store: type[InprocStore] = InprocStore) -> None:
        super().__init__()
        self.store = store(self.clock)
        self._faults = faults or {}

    async def log(self) -> SessionLog:
        return tampered(await super().log(), **self._faults)


Real = Callable[..., Awaitable[Committed]]


def handle_of(real: Real) -> SessionLog:
    """The log whose bound method this is."""
    handle: SessionLog = real.__self__  # type: ignore[attr-defined]  # a real method is bound
    return handle


async def compares_before(
    real: Real, new: NewSession, drafts: Sequence[Draft], *, tail: bytes, commit_id: str
) -> Committed:
    """Compare the tail before the append, not in it."""
    log = handle_of(real)
    try:
        now = (await log.head(new.id, new.owner)).tail
    except SessionMissing:
        now = tail
    if now != tail:
        raise HistoryConflict("another turn was kept first", session=new.id)
    while True:
        try:
            return await real(new, drafts, tail=now, commit_id=commit_id)
        except HistoryConflict:
            now = (await log.head(new.id, new.owner)).tail


async def ignores_the_tail(
    real: Real, new: NewSession, drafts: Sequence[Draft], *, tail: bytes, commit_id: str
) -> Committed:
    log = handle_of(real)
    with suppress(SessionMissing):
        tail = (await log.head(new.id, new.owner)).tail
    return await real(new, drafts, tail=tail, commit_id=commit_id)


async def appends_one_by_one(
    real: Real, new: NewSession, drafts: Sequence[Draft], *, tail: bytes, commit_id: str
) -> Committed:
    log = handle_of(real)
    done = None
    for n, draft in enumerate(drafts):
        done = await real(new, [draft], tail=tail, commit_id=f"{commit_id}:{n}")
        tail = (await log.head(new.id, new.owner)).tail
    assert done is not None
    return done


async def makes_the_session_early(real: Real, session: Any, owner: Any) -> Any:
    """Create at a look what only a kept turn may create."""
    log = handle_of(real)
    try:
        return await real(session, owner)
    except SessionMissing:
        await log.create(NewSession(session, owner))
        return await real(session, owner)


async def brings_back(
    real: Real, new: NewSession, drafts: Sequence[Draft], *, tail: bytes, commit_id: str
) -> Committed:
    log = handle_of(real)
    try:
        return await real(new, drafts, tail=tail, commit_id=commit_id)
    except SessionMissing:
        await log.create(new)
        head = await log.head(new.id, new.owner)
        return await real(new, drafts, tail=head.tail, commit_id=commit_id)


class SharedStore(InprocStore):
    """Gives every owner every session."""

    def owned(self, session_id: Any, owner: Any) -> StoredSession:
        session = self.sessions.get(session_id)
        return super().owned(session_id, owner if session is None else session.owner)


class ForgetfulStore(InprocStore):
    """Does not remember that a session keeps whole turns."""

    def append(self, session: StoredSession, drafts: Sequence[Draft], **how: Any) -> int:
        session.next_position = session.next_number = 1
        return super().append(session, drafts, **how)

    def owned(self, session_id: Any, owner: Any) -> StoredSession:
        session = super().owned(session_id, owner)
        session.retained = False
        return session


def cut(records: Sequence[Record]) -> list[Record]:
    return list(records)[:30]


FAULTS: Final[Mapping[str, Callable[[], Subject]]] = {
    "a turn is kept as its three records in one append, and a load gives its messages": lambda: Subject(
        {"retain": appends_one_by_one}
    ),
    "sessions are apart, and another owner's is absent": lambda: Subject(store=SharedStore),
    "a turn from a tail that moved is a conflict, and nothing of it is kept": lambda: Subject(
        {"retain": ignores_the_tail}
    ),
    "of many turns that began from one tail exactly one is kept": lambda: Subject(
        {"retain": compares_before}
    ),
    "a repeated append answers the first one, also after later turns, and doubles nothing": lambda: Subject(
        {"retain": _fresh_commit_ids}
    ),
    "each part of a turn may have 1 MiB, and not one byte more; a refused turn leaves nothing": lambda: (
        Subject(
            {
                "read_back": answers(
                    lambda records: [replace(r, text=r.text.replace("é", "e")) for r in records]
                )
            }
        )
    ),
    "what no log can hold, or is half a tool batch, is refused as such, and nothing is kept": lambda: Subject(
        {"head": makes_the_session_early}
    ),
    "a session of whole turns takes no turn of the queue, and one with turns no whole turn": lambda: Subject(
        store=ForgetfulStore
    ),
    "a context of its own is what is shown next, and the source stays as it was": lambda: Subject(
        {"read_back": answers(lambda records: [r for r in records if "so far" not in r.text])}
    ),
    "a long session loads what it holds, whatever its age, and all of its source is found": lambda: Subject(
        {"read_back": answers(cut)}
    ),
    "a removed session keeps nothing, and no turn that began before brings it back": lambda: Subject(
        {"retain": brings_back}
    ),
    "an interrupted append keeps the whole turn or nothing": lambda: Subject({"retain": _fresh_commit_ids}),
}


async def _fresh_commit_ids(real: Real, new: NewSession, drafts: Sequence[Draft], **how: Any) -> Committed:
    log = handle_of(real)
    with suppress(SessionMissing):
        how["tail"] = (await log.head(new.id, new.owner)).tail
    return await real(new, drafts, **how | {"commit_id": str(new_turn_id())})


def test_every_check_is_tried_on_a_fault() -> None:
    require_fault_for_each(CHECKS, list(FAULTS))


@pytest.mark.behaviour("THR-T15", "KIT-01")
@pytest.mark.parametrize("name", FAULTS)
async def test_a_broken_log_fails_the_check_of_its_fault(name: str) -> None:
    await require_failure(whole_turn_conformance(FAULTS[name]()), name)


@pytest.mark.behaviour("THR-T15")
async def test_a_log_without_a_fault_passes_every_check() -> None:
    for check in whole_turn_conformance(Subject()):
        await check.run()

"""The session log under a state machine: creation, commits on a condition, reading, lists and removal against a model."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from shared.domain.ids import OwnerId, SessionId
from shared.sessions.log import NewSession
from shared.sessions.records import Draft, draft
from tests.stateful.searching import at, often, picks
from tests.stateful.sides import FAR, Side
from tests.stateful.values import Answer, answered, refused
from tests.stateful.whole import require_whole_state

OWNERS = (OwnerId("owner a"), OwnerId("owner b"))
LIMIT = 3

owners = st.sampled_from(OWNERS)
keys = st.sampled_from((None, "k", "l"))
titles = st.sampled_from((None, "tea"))


@dataclass(slots=True)
class Known:
    """A session as the model knows it; ``log`` holds (kind, text), ``answers`` what each commit id was answered."""

    id: SessionId
    owner: OwnerId
    key: str | None
    title: str | None
    active: int
    revision: int = 0
    state: Mapping[str, Any] = field(default_factory=dict)
    log: list[tuple[str, str]] = field(default_factory=list)
    answers: dict[str, tuple[object, Answer]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit as it is sent, and sent again after a lost answer. ``in_time``: None without a last moment."""

    session: SessionId
    owner: OwnerId
    drafts: Sequence[Draft]
    commit_id: str | None
    expect: int | None
    in_time: bool | None
    state: Mapping[str, Any] | None

    @property
    def content(self) -> object:
        return ([(one.kind, one.text) for one in self.drafts], self.state)


class SessionLogMachine(RuleBasedStateMachine):
    """Every step of the log, and the model of what it must answer."""

    def __init__(self, *sides: Side) -> None:
        super().__init__()
        self.sides = sides
        self.sessions: dict[SessionId, Known] = {}
        self.sent: list[Commit] = []
        self.created: list[NewSession] = []
        self._numbers = 0

    @initialize()
    def begin(self) -> None:
        for side in self.sides:
            side.run(side.begin())
        self.a_session_is_created(OWNERS[0], None, None)

    def number(self) -> int:
        """Return a number that this example has not used."""
        self._numbers += 1
        return self._numbers

    def require(self, foretold: Answer, call: Callable[[Side], Coroutine[Any, Any, Answer]]) -> None:
        """Make the call of every store and require the answer that the model foretold."""
        for side in self.sides:
            assert side.run(answered(call(side))) == foretold, "the log answers as the model does"

    def a_session_is_created(self, owner: OwnerId, key: str | None, title: str | None) -> None:
        self.create(NewSession(SessionId(f"session {self.number():04d}"), owner, key, title))

    def a_creation_is_repeated(self, pick: int) -> None:
        """Its answer was lost: the same call with its id, also after the session was removed."""
        self.create(at(self.created[::-1], pick))

    def create(self, new: NewSession) -> None:
        if new not in self.created:
            self.created.append(new)

        async def call(side: Side) -> Answer:
            done = await side.works.log.create(new)
            return ("created", done.session_id, done.duplicate)

        self.require(self._create(new), call)

    def _create(self, new: NewSession) -> Answer:
        with_key = [s for s in self.sessions.values() if new.key and (s.owner, s.key) == (new.owner, new.key)]
        first = with_key[0] if with_key else self.sessions.get(new.id)
        if first is None:
            self.sessions[new.id] = Known(new.id, new.owner, new.key, new.title, self.number())
            return ("created", new.id, False)
        if (first.owner, first.title) != (new.owner, new.title):
            return refused("session.exists")
        return ("created", first.id, first.id != new.id)

    def records_are_committed(
        self,
        pick: int,
        records: int,
        id_number: int | None,
        expect: int | None,
        in_time: bool | None,
        foreign: bool,
        sets_state: bool,
    ) -> None:
        session = at(list(self.sessions.values()), pick)
        self.commit(
            Commit(
                session.id,
                OwnerId("nobody") if foreign else session.owner,
                [draft(f"note.{n % 2}", {"n": self.number()}) for n in range(records)],
                None if id_number is None else f"commit {id_number}",
                None if expect is None else session.revision + expect,
                in_time,
                {"n": self.number()} if sets_state else None,
            )
        )

    def a_commit_is_repeated(self, pick: int) -> None:
        """Its answer was lost, and others may have committed since."""
        if ids := [commit for commit in self.sent if commit.commit_id is not None]:
            self.commit(at(ids[::-1], pick))

    def commit(self, commit: Commit) -> None:
        self.sent.append(commit)

        async def call(side: Side) -> Answer:
            now = await side.works.now()
            times = {True: now + FAR, False: now - timedelta(minutes=1)}
            done = await side.works.log.commit(
                commit.session,
                commit.owner,
                commit.drafts,
                commit_id=commit.commit_id,
                expect=commit.expect,
                not_after=None if commit.in_time is None else times[commit.in_time],
                state=commit.state,
            )
            return ("committed", done.seq, done.revision)

        self.require(self._commit(commit), call)

    def _commit(self, commit: Commit) -> Answer:
        session = self.sessions.get(commit.session)
        if session is None or session.owner != commit.owner:
            return refused("session.missing")
        if commit.commit_id is not None and commit.commit_id in session.answers:
            content, answer = session.answers[commit.commit_id]
            return answer if content == commit.content else refused("turn.key-conflict")
        if commit.expect not in (None, session.revision):
            return refused("session.revision")
        if commit.in_time is False:
            return refused("session.late")
        session.log += [(one.kind, one.text) for one in commit.drafts]
        session.revision, session.active = session.revision + 1, self.number()
        session.state = session.state if commit.state is None else commit.state
        answer = ("committed", len(session.log), session.revision)
        if commit.commit_id is not None:
            session.answers[commit.commit_id] = (commit.content, answer)
        return answer

    def a_session_is_removed(self, pick: int, foreign: bool) -> None:
        session = at(list(self.sessions.values()), pick)
        owner = OwnerId("nobody") if foreign else session.owner
        if not foreign and len(self.sessions) > 1:
            del self.sessions[session.id]
        elif not foreign:
            return

        async def call(side: Side) -> Answer:
            return ("removed", list(await side.works.log.remove(session.id, owner)))

        self.require(("removed", [] if foreign else [session.id]), call)

    def a_log_is_read(self, pick: int, after: int, limit: int, kind: str | None) -> None:
        session = at(list(self.sessions.values()), pick)
        records = [(seq, *record) for seq, record in enumerate(session.log, 1) if seq > after]
        wanted = [record for record in records if kind in (None, record[1])][:limit]

        async def call(side: Side) -> Answer:
            kinds = None if kind is None else [kind]
            found = await side.works.log.read(session.id, after=after, limit=limit, kinds=kinds)
            return ("read", [(record.seq, record.kind, record.text) for record in found])

        self.require(("read", wanted), call)

    def sessions_are_listed(self, owner: OwnerId) -> None:
        """Page by page, the last active ones first."""
        mine = [session for session in self.sessions.values() if session.owner == owner]
        mine.sort(key=lambda session: session.active, reverse=True)

        async def call(side: Side) -> Answer:
            found = list(await side.works.log.list(owner, limit=LIMIT))
            while page := await side.works.log.list(
                owner, limit=LIMIT, before=(found[-1].updated_at, found[-1].id) if found else None
            ):
                found += page
            return ("listed", [head.id for head in found])

        self.require(("listed", [session.id for session in mine]), call)

    def heads_are_read(self) -> None:
        async def call(side: Side) -> Answer:
            log, told = side.works.log, []
            for session in self.sessions.values():
                head = await log.head(session.id, session.owner)
                told.append((head.id, head.title, head.revision, dict(head.state), head.seq, head.open))
            return ("heads", told, dict(await log.seqs([*self.sessions, SessionId("none")])))

        known = list(self.sessions.values())
        heads = [(s.id, s.title, s.revision, dict(s.state), len(s.log), None) for s in known]
        self.require(("heads", heads, {s.id: len(s.log) for s in known}), call)

    drawn = st.one_of(
        *often(2, a_session_is_created, owner=owners, key=keys, title=titles),
        *often(1, a_creation_is_repeated, pick=picks),
        *often(
            6,
            records_are_committed,
            pick=picks,
            records=st.integers(0, 3),
            id_number=st.sampled_from((None, 1, 2, 3)),
            expect=st.sampled_from((None, None, 0, 0, -1, 1)),
            in_time=st.sampled_from((None, None, True, False)),
            foreign=st.sampled_from((False, False, False, True)),
            sets_state=st.booleans(),
        ),
        *often(2, a_commit_is_repeated, pick=picks),
        *often(1, a_session_is_removed, pick=picks, foreign=st.booleans()),
        *often(
            2,
            a_log_is_read,
            pick=picks,
            after=st.integers(-1, 9),
            limit=st.integers(1, 6),
            kind=st.sampled_from((None, "note.0", "note.2")),
        ),
        *often(1, sessions_are_listed, owner=owners),
        *often(1, heads_are_read),
    )

    @rule(step=drawn)
    def a_step_is_taken(self, step: tuple[str, Mapping[str, Any]]) -> None:
        name, given = step
        getattr(self, name)(**given)

    @invariant()
    def logs_are_whole_and_hold_what_was_committed(self) -> None:
        for side in self.sides:
            stored = side.run(side.works.stored())
            require_whole_state(stored)
            records = [(session, kind, text) for session, _, _, kind, text in stored.records]
            known = [self.sessions[session] for session in sorted(self.sessions)]
            assert records == [(s.id, *record) for s in known for record in s.log], (
                "what was committed is there"
            )

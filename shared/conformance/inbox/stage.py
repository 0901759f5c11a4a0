"""What the checks of the inbox act on: the turn queue's stage with an inbox over the same data."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from shared.conformance.check import require, same
from shared.conformance.turn_stage import Stage, TurnQueueSubject, commit_id, ended, stage, started
from shared.domain.errors import TurnMissing
from shared.domain.ids import SessionId, TurnId
from shared.inbox.port import Delivered, Delivery, Inbox
from shared.sessions.records import Draft, Record
from shared.turns.admission import TurnAdmission
from shared.turns.queue import Claim, Ended, Ending, Outcome, TurnView

SOURCE = "mail"
#: How long an inbox turn that the host refused waits, at most, for this kit.
RETRY_S = 30.0


class InboxSubject(TurnQueueSubject, Protocol):
    """An adapter under test: an inbox, the turn queue and the session log over the same data.

    Its inbox allows 2 attempts an item, and its queue lets a refused inbox turn wait for ``RETRY_S``.
    """

    async def inbox(self) -> Inbox:
        """Return a new handle of the inbox; the subject closes it in the end."""
        ...


@dataclass(slots=True)
class InboxStage:
    """One check's own world: a stage of the turn queue, and an inbox beside it."""

    turns: Stage
    inbox: Inbox
    delivered: dict[SessionId, list[str]] = field(default_factory=dict)

    async def session(self) -> SessionId:
        """Create a session of the stage's owner."""
        return await self.turns.session()

    async def deliver(self, session: SessionId, item: str, **given: Any) -> Delivered:
        """Deliver an item to be answered under the stage's revision."""
        max_pending = given.pop("max_pending", None)
        standard: dict[str, Any] = {
            "source": SOURCE,
            "content": f"about {item}",
            "agent_revision": self.turns.revision,
        }
        delivery = Delivery(session, given.pop("owner", self.turns.owner), item, **(standard | given))
        bound = {} if max_pending is None else {"max_pending": max_pending}
        answer = await self.inbox.deliver(delivery, **bound)
        self.know(session, answer.turn_id)
        return answer

    def know(self, session: SessionId, turn_id: TurnId | None) -> None:
        """Count a turn among those that :meth:`check` looks at."""
        turns = self.turns.admitted.setdefault(session, [])
        if turn_id is not None and turn_id not in turns:
            turns.append(turn_id)

    async def waiting(self, session: SessionId) -> list[str]:
        """Read the ids of the items that wait."""
        return [item.id for item in await self.inbox.waiting(session, self.turns.owner)]

    async def attempts(self, session: SessionId) -> dict[str, int]:
        """Read how often each waiting item was tried."""
        return {item.id: item.attempts for item in await self.inbox.waiting(session, self.turns.owner)}

    async def claim(self, **given: Any) -> Claim:
        """Claim the one inbox turn there is to have."""
        claim = await self.turns.claim(**given)
        same(claim.origin, "inbox", "what is claimed is the inbox's turn")
        self.know(claim.session_id, claim.turn_id)
        return claim

    async def open(self, claim: Claim, items: Sequence[str], *, admit: TurnAdmission | None = None) -> Claim:
        """Open a claimed inbox turn with the items it names."""
        drafts = [started(claim)]
        opened = await self.turns.queue.open(
            claim, commit_id(claim, "open"), drafts, claims=items, admit=admit
        )
        same(opened.result, "opened", "an inbox turn that never opened opens")
        return claim

    async def opened(self, session: SessionId, *items: str, **given: Any) -> Claim:
        """Deliver items, claim the turn that answers them and open it."""
        for item in items:
            await self.deliver(session, item, **given)
        return await self.open(await self.claim(), items)

    async def end(
        self, claim: Claim, outcome: Outcome = "completed", *drafts: Draft, counts: bool | None = None
    ) -> Ended:
        """End an inbox turn; it writes ``drafts`` in its closing commit."""
        ending = Ending(outcome, counts_attempt=counts)
        answer = await self.turns.queue.end(claim, commit_id(claim, "end"), [*drafts, ended(outcome)], ending)
        self.know(claim.session_id, answer.promoted)
        return answer

    async def deliver_behind(self, session: SessionId) -> None:
        """Deliver two items beside a user's unfinished turn."""
        for n, item in enumerate(("one", "two"), start=1):
            given = await self.deliver(session, item)
            same((given.pending, given.turn_id), (n, None), "an item waits behind a user's turn")

    async def recover(self, *, limit: int = 1_000) -> list[TurnId]:
        """Sweep, while there may be more; return the turns to ring for that are this stage's."""
        mine, may_be_more = [], True
        while may_be_more:
            found = await self.inbox.recover(limit=limit)
            may_be_more = found.may_be_more
            for turn_id in found.ready:
                with suppress(TurnMissing):
                    mine.append((await self.turns.queue.get(turn_id, self.turns.owner)).turn_id)
        return mine

    async def view(self, turn_id: TurnId | None) -> TurnView:
        """Read a turn that must be there."""
        require(turn_id is not None, "an inbox turn is there")
        assert turn_id is not None
        return await self.turns.queue.get(turn_id, self.turns.owner)

    async def dropped(self, session: SessionId) -> list[Record]:
        """Read what was given up."""
        return list(await self.turns.log.read(session, kinds=["inbox.dropped"]))

    async def check(self, session: SessionId) -> None:
        """Require the queue's and the log's rules, and that the head counts what waits."""
        head = await self.turns.check_session(session)
        same(head.inbox_waiting, len(await self.waiting(session)), "the head counts what waits")


async def inbox_stage(subject: InboxSubject) -> InboxStage:
    """Return a new stage over a subject."""
    return InboxStage(await stage(subject), await subject.inbox())

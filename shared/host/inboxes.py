"""A host's side of the inbox: delivering, inbox turns of its own, and draining: such turns while items wait (INB-19 to 29)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from shared.domain.errors import (
    ConfigError,
    InvalidInput,
    NothingPending,
    SessionBusy,
    SessionMissing,
    TurnClosed,
    TurnRefused,
    code_of,
)
from shared.host.beginning import admission_of, inbox_admission_of
from shared.host.endings import call_host, defects_as_failures, turn_ending_of
from shared.host.port import Drained, InboxTurn, NewTurn, RunInbox, SessionAddress, Sessions, TurnWriter
from shared.inbox.message import check_delivery, oldest_that_fit
from shared.inbox.port import Delivered, Delivery, Inbox
from shared.sessions.records import Draft
from shared.turns.queue import Admission, Ending

_log: Final = logging.getLogger(__name__)

#: How many inbox turns one drain runs, unless it is told otherwise (INB-20).
MAX_TURNS_DEFAULT: Final = 3
MAX_TURNS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class HostInbox:
    """The inbox of a host's sessions; without one whatever needs it raises ``ConfigError``."""

    inbox: Inbox | None
    max_pending: int

    async def deliver(self, delivery: Delivery) -> Delivered:
        """Deliver what passed :meth:`check`."""
        return await self._required().deliver(delivery, max_pending=self.max_pending)

    def check(self, delivery: Delivery) -> Delivery:
        """Return a delivery that a host may make."""
        self._required()
        return check_delivery(delivery)

    async def admission(self, address: SessionAddress, turn: NewTurn | InboxTurn) -> tuple[Admission, Draft]:
        """Return what is admitted of a turn, and its ``turn.started``: an inbox turn claims the oldest that wait now."""
        if isinstance(turn, NewTurn):
            return admission_of(address, turn)
        items = await self._required().waiting(address.id, address.owner)
        return inbox_admission_of(address, turn, oldest_that_fit(items))

    def _required(self) -> Inbox:
        if self.inbox is None:
            raise ConfigError("these sessions have no inbox", field="inbox", bound="an Inbox")
        return self.inbox


async def drain_inbox(
    sessions: Sessions,
    address: SessionAddress,
    run: RunInbox,
    *,
    max_turns: int = MAX_TURNS_DEFAULT,
    meta: Mapping[str, Any] | None = None,
) -> Drained:
    """Run inbox turns while items wait, the session is free and the host admits them; see ``Sessions.drain``."""
    if not 1 <= max_turns <= MAX_TURNS_MAX:
        bound = f"1..{MAX_TURNS_MAX}"
        raise InvalidInput("a drain runs at least one turn", field="max_turns", bound=bound)
    turns = 0
    while turns < max_turns:
        try:
            pending = await _run_one(sessions, address, run, meta)
        except NothingPending:
            return Drained(turns, 0, "empty")
        except (SessionBusy, TurnRefused) as error:
            why: Literal["busy", "refused"] = "busy" if isinstance(error, SessionBusy) else "refused"
            return Drained(turns, await _waiting(sessions, address), why)
        turns += 1
        if pending is None:
            return Drained(turns, await _waiting(sessions, address), "closed")
        if pending == 0:
            return Drained(turns, 0, "empty")
    return Drained(turns, pending or 0, "max_turns")


async def _run_one(
    sessions: Sessions, address: SessionAddress, run: RunInbox, meta: Mapping[str, Any] | None
) -> int | None:
    """Run one inbox turn; return how many items its end left waiting, None when someone else had closed it.

    What the begin raises is raised as it is; what ``run`` raises never is, so the two cannot be taken for each other.
    """
    async with sessions.begin(address, InboxTurn(meta=meta)) as writer:
        ending = await _ending_of(run, writer)
        try:
            return (await writer.end(ending)).pending
        except TurnClosed:
            return None


async def _ending_of(run: RunInbox, writer: TurnWriter) -> Ending:
    """Answer the turn; say how it ends. A cancellation of the drain itself goes on: the turn's scope ends it (INB-27)."""
    try:
        await call_host(run, writer)
    except asyncio.CancelledError:
        raise
    except (Exception, BaseExceptionGroup) as error:
        ending = turn_ending_of(error)
        _log.warning(
            "an inbox turn ended %s: %s",
            ending.outcome,
            ending.code,
            extra={
                "session": writer.session.id,
                "turn": str(writer.admitted.turn_id),
                "code": ending.code or code_of(error),
            },
            exc_info=defects_as_failures(error),
        )
        # Its own doing, not ours: without the count an item that always interrupts its run would never be dropped.
        return replace(ending, counts_attempt=True) if ending.outcome == "interrupted" else ending
    return Ending("completed")


async def _waiting(sessions: Sessions, address: SessionAddress) -> int:
    try:
        return (await sessions.view(address)).pending
    except SessionMissing:  # removed under the drain
        return 0

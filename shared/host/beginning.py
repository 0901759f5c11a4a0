"""A host's begin: what is admitted, the one commit that opens it, and what becomes of a begin that nobody waits for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final
from uuid import uuid4

from pydantic import ValidationError

from shared.domain.bounds import check_identity, check_json
from shared.domain.errors import FenceLost, InvalidInput, StoreUnavailable, TurnkeeperError, describe_error
from shared.domain.ids import SessionId, TurnId, WorkerId, new_run_id, new_turn_id
from shared.domain.retrying import retried
from shared.host.port import InboxTurn, NewTurn, SessionAddress
from shared.inbox.message import message_of
from shared.inbox.port import InboxItem
from shared.sessions.log import TITLE_CHARS
from shared.sessions.records import Draft
from shared.sessions.vocabulary import TurnEnded, TurnStarted, UserMessage, draft_of
from shared.turns.admission import TurnAdmission
from shared.turns.queue import Admission, AdmissionLimits, Begun, Claim, Ending, TurnQueue
from shared.turns.resume import require_turn_number

_logger: Final = logging.getLogger(__name__)

#: Tries of a begin whose answer is lost; each finds what an earlier one stored.
BEGIN_TRIES: Final = 3
INTERRUPTED: Final = "turn.interrupted"
LEASE: Final = "turn.lease"


def admission_of(address: SessionAddress, turn: NewTurn) -> tuple[Admission, Draft]:
    """Return what is admitted of a new turn, and its ``turn.started``.

    Raises ``NotResumable`` for ``resumes`` that names no turn, and ``InvalidInput`` naming the field for what cannot be
    stored.
    """
    require_turn_number(turn.resumes, address.id)
    for field in ("key", "run_id"):
        if (value := getattr(turn, field)) is not None:
            check_identity(value, field=field)
    for field in ("message", "command", "meta"):
        check_json(getattr(turn, field), field=field)
    admission = Admission(
        turn_id=new_turn_id(),
        run_id=turn.run_id if turn.run_id is not None else new_run_id(),
        session_id=address.id,
        owner=address.owner,
        message=turn.message,
        key=turn.key,
        command=turn.command,
        meta=turn.meta,
        agent=turn.agent,
        agent_revision=turn.agent_revision,
        on_worker_loss="interrupt",
        resumes=turn.resumes,
    )
    return admission, draft_of(_started(admission))


def inbox_admission_of(
    address: SessionAddress, turn: InboxTurn, items: Sequence[InboxItem]
) -> tuple[Admission, Draft]:
    """Return what is admitted of an inbox turn that claims these items, and its ``turn.started``.

    Without items it is one that the store refuses. Raises ``InvalidInput`` naming the field for what cannot be stored.
    """
    if turn.run_id is not None:
        check_identity(turn.run_id, field="run_id")
    check_json(turn.meta, field="meta")
    oldest = items[0] if items else None
    agent, revision = (oldest.agent, oldest.agent_revision) if oldest is not None else (None, None)
    admission = Admission(
        turn_id=new_turn_id(),
        run_id=turn.run_id if turn.run_id is not None else new_run_id(),
        session_id=address.id,
        owner=address.owner,
        message={"text": message_of(items)},
        meta=turn.meta,
        agent=turn.agent or agent or "",
        agent_revision=turn.agent_revision or revision or "1",
        on_worker_loss="interrupt",
        origin="inbox",
        claims=tuple(item.id for item in items),
    )
    return admission, draft_of(_started(admission))


def _started(admission: Admission) -> TurnStarted:
    try:
        message = UserMessage.model_validate(dict(admission.message))
    except ValidationError as error:
        raise InvalidInput(
            "the message is no user message", field="message", bound="text and attachments"
        ) from error
    return TurnStarted(
        turn_id=str(admission.turn_id),
        run_id=admission.run_id,
        entry=f"{admission.run_id}:0",
        origin=admission.origin,
        key=admission.key,
        user_message=message,
        claimed=list(admission.claims),
        command=None if admission.command is None else dict(admission.command),
        meta=None if admission.meta is None else dict(admission.meta),
        resumes=admission.resumes,
    )


class Beginning:
    """Opens turns for one holder and keeps the ones that it let go of, until they are closed (SES-118, 119)."""

    def __init__(
        self,
        queue: TurnQueue,
        holder: WorkerId,
        lease_s: float | None,
        admission: TurnAdmission | None,
    ) -> None:
        self._queue = queue
        self._holder = holder
        self._lease_s = lease_s
        self._hook = admission
        self._let_go: dict[SessionId, tuple[TurnId, Callable[[], Coroutine[Any, Any, Claim]]]] = {}
        self._undoing: set[asyncio.Task[None]] = set()

    async def begin(self, admission: Admission, drafts: Sequence[Draft]) -> tuple[Begun, float]:
        """Open a turn; return it with the loop time at which the begin that opened it was sent.

        A begin that is cancelled after its commit ends its turn as interrupted before the cancellation goes on. One
        whose outcome stays unknown is let go of: the session's next begin here closes it.
        """
        sent_at = asyncio.get_running_loop().time()
        send = partial(
            self._queue.begin,
            admission,
            self._holder,
            lease_s=self._lease_s,
            commit_id=f"begin:{uuid4().hex}",
            drafts=drafts,
            limits=AdmissionLimits(),
            title=_title(admission),
            admit=self._hook,
        )
        opening = asyncio.ensure_future(_until_known(send))
        try:
            begun = await asyncio.shield(opening)
        except asyncio.CancelledError:
            await self._undo(opening)
            raise
        except StoreUnavailable:
            self._let_go[admission.session_id] = admission.turn_id, partial(_claim_of, send)
            raise
        self.forget(admission.session_id)
        return begun, sent_at

    async def open(self, claim: Claim, drafts: Sequence[Draft]) -> Begun:
        """Open a turn that was claimed for this holder; cancelled or unknown it goes as :meth:`begin` says."""
        send = partial(
            self._queue.open, claim, f"open:{uuid4().hex}", tuple(drafts), title=None, admit=self._hook
        )

        async def open_it() -> Begun:
            return Begun(claim, await _until_known(send))

        opening = asyncio.ensure_future(open_it())
        try:
            begun = await asyncio.shield(opening)
        except asyncio.CancelledError:
            await self._undo(opening)
            raise
        except StoreUnavailable:
            self.let_go(claim)
            raise
        self.forget(claim.session_id)
        return begun

    def let_go(self, claim: Claim) -> None:
        """Hold a turn no longer that could not be ended: it reads closed here, and the next begin here closes it."""

        async def known() -> Claim:
            return claim

        self._let_go[claim.session_id] = claim.turn_id, known

    def has_let_go(self, session: SessionId, turn_id: TurnId) -> bool:
        """Say whether this instance let go of a session's turn."""
        return session in self._let_go and self._let_go[session][0] == turn_id

    async def end_let_go(self, session: SessionId) -> None:
        """Close the turn that was let go of as interrupted, under its own fence, unless it is closed already."""
        _, find = self._let_go[session]
        with suppress(FenceLost):
            await self._end(await find(), LEASE)
        self.forget(session)

    def forget(self, session: SessionId) -> None:
        """Forget what was let go of in a session: it is closed, or gone with it."""
        self._let_go.pop(session, None)

    async def _undo(self, opening: asyncio.Future[Begun]) -> None:
        task = asyncio.create_task(self._end_begun(opening))
        self._undoing.add(task)
        task.add_done_callback(self._undoing.discard)
        await asyncio.shield(task)

    async def _end_begun(self, opening: asyncio.Future[Begun]) -> None:
        try:
            begun = await opening
        except Exception:  # whatever it was, nobody waits for it any more and nothing is open
            return
        try:
            await self._end(begun.claim, INTERRUPTED)
        except TurnkeeperError as error:
            _logger.warning(
                "a turn could not be ended: %s",
                describe_error(error),
                extra={
                    "turn": str(begun.claim.turn_id),
                    "session": begun.claim.session_id,
                    "code": error.code,
                },
            )
            self.let_go(begun.claim)

    async def _end(self, claim: Claim, code: str) -> None:
        end = draft_of(TurnEnded(reason="interrupted", code=code))
        # The writer's own id: if its end was stored after all, this finds it and changes nothing.
        await _until_known(
            partial(self._queue.end, claim, f"{claim.fence.token}:end", [end], Ending("interrupted", code))
        )


async def _claim_of(send: Callable[[], Coroutine[Any, Any, Begun]]) -> Claim:
    return (await send()).claim


async def _until_known(send: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return await retried(send, when=StoreUnavailable, tries=BEGIN_TRIES, pause_max_s=1.0)


def _title(admission: Admission) -> str | None:
    text = admission.message.get("text") if admission.origin == "user" else None
    return text[:TITLE_CHARS] or None if isinstance(text, str) else None

"""A turn queue in memory with worker processes over it: claims, attempts and leases without a server.

The queue and the log are the twins; what may go wrong on the way to a database is asked for with ``queue.faults``.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from shared.agents import Agent, App, Policy, Tool, Use
from shared.domain.errors import StoreUnavailable
from shared.domain.failpoints import Failpoints
from shared.domain.ids import OwnerId, SessionId, TurnId, WorkerId, new_run_id, new_session_id, new_turn_id
from shared.feed.port import FeedStats
from shared.inbox.inproc import InprocInbox
from shared.inbox.port import Delivered, Delivery
from shared.leases.fence import Fence
from shared.models.scripted import ScriptedModel
from shared.sessions.inproc import InprocSessionLog, InprocStore
from shared.sessions.log import NewSession
from shared.sessions.records import Draft, Record, verify_log
from shared.tasks.inproc import InprocTaskStore
from shared.tasks.port import TaskLimits
from shared.turns.admission import TurnAdmission
from shared.turns.inproc import InprocTurnQueue
from shared.turns.queue import (
    Admission,
    AdmissionLimits,
    CallEntry,
    Claim,
    ClaimRequest,
    Ended,
    Ending,
    Opened,
    Renewal,
    TurnView,
    Watched,
)
from tests.support.virtual_time import loop_clock
from workers.executor import BoundedExecutor
from workers.tasks.delivery import ResultDelivery
from workers.tasks.tools import ModelTasks
from workers.turns.claims import TurnClaimer
from workers.turns.holdings import Holding, Holdings
from workers.turns.runner import TurnRunner

OWNER = OwnerId("owner")
LEASE_S = 15.0
RENEW_S = 5.0
POLL_S = 1.0

#: ``lost``: done, and its answer is lost. ``unreached``: not done.
Fault = Literal["lost", "unreached"]


@dataclass(frozen=True, slots=True)
class Write:
    """A commit of a holder that was stored: its operation, id, kinds and ledger lines."""

    what: str
    commit_id: str
    kinds: tuple[str, ...]
    calls: Mapping[str, str]
    stepped: bool = False


class FaultyQueue(InprocTurnQueue):
    """The twin behind a line that fails as told. ``away`` makes every operation of a holder fail until it is unset."""

    def __init__(self, store: InprocStore) -> None:
        super().__init__(store)
        self.away = False
        self.faults: defaultdict[str, list[Fault]] = defaultdict(list)
        self.sent: list[tuple[str, str]] = []
        self.writes: list[Write] = []
        self.requests: list[ClaimRequest] = []
        self.renewals = 0
        #: Cleared to keep the answers of claims on the way.
        self.claims_answered = asyncio.Event()
        self.claims_answered.set()

    @asynccontextmanager
    async def _line(self, what: str, commit_id: str = "") -> AsyncIterator[None]:
        self.sent.append((what, commit_id))
        fault = self.faults[what].pop(0) if self.faults[what] else None
        if self.away or fault == "unreached":
            await asyncio.sleep(0.01)
            raise StoreUnavailable("the database cannot be reached")
        yield
        if fault == "lost":
            raise StoreUnavailable("the database went away before it answered")

    async def claim(self, request: ClaimRequest) -> Sequence[Claim]:
        self.requests.append(request)
        async with self._line("claim"):
            claims = await super().claim(request)
            await self.claims_answered.wait()
        return claims

    async def open(
        self,
        claim: Claim,
        commit_id: str,
        drafts: Sequence[Draft],
        *,
        title: str | None = None,
        claims: Sequence[str] = (),
        admit: TurnAdmission | None = None,
    ) -> Opened:
        async with self._line("open", commit_id):
            opened = await super().open(claim, commit_id, drafts, title=title, claims=claims, admit=admit)
            self._note("open", commit_id, drafts if opened.result == "opened" else (), ())
        return opened

    async def append(
        self,
        claim: Claim,
        commit_id: str,
        drafts: Sequence[Draft],
        *,
        stepped: bool = False,
        calls: Sequence[CallEntry] = (),
        expect: int | None = None,
        extend_s: float | None = None,
    ) -> int:
        async with self._line("append", commit_id):
            seq = await super().append(
                claim, commit_id, drafts, stepped=stepped, calls=calls, expect=expect, extend_s=extend_s
            )
            self._note("append", commit_id, drafts, calls, stepped)
        return seq

    async def end(
        self,
        claim: Claim,
        commit_id: str,
        drafts: Sequence[Draft],
        ending: Ending,
        *,
        calls: Sequence[CallEntry] = (),
    ) -> Ended:
        async with self._line("end", commit_id):
            ended = await super().end(claim, commit_id, drafts, ending, calls=calls)
            self._note("end", commit_id, drafts, calls)
        return ended

    async def calls(self, session_id: SessionId, turn_id: TurnId) -> Sequence[CallEntry]:
        async with self._line("calls"):
            return await super().calls(session_id, turn_id)

    async def renew(self, fences: Mapping[TurnId, Fence], lease_s: float) -> Renewal:
        async with self._line("renew"):
            self.renewals += 1
            return await super().renew(fences, lease_s)

    async def watch(self, worker: WorkerId, fences: Mapping[TurnId, Fence]) -> Watched:
        async with self._line("watch"):
            return await super().watch(worker, fences)

    async def release(self, turn_id: TurnId, fence: Fence, *, due_in_s: float = 0.0) -> bool:
        async with self._line("release"):
            return await super().release(turn_id, fence, due_in_s=due_in_s)

    def _note(
        self,
        what: str,
        commit_id: str,
        drafts: Sequence[Draft],
        calls: Sequence[CallEntry],
        stepped: bool = False,
    ) -> None:
        states = {c.invocation_id: c.state for c in calls}
        self.writes.append(Write(what, commit_id, tuple(d.kind for d in drafts), states, stepped))


@dataclass
class NotedFeed:
    """A feed that keeps what it was told; one for all turns."""

    told: list[tuple[Any, ...]] = field(default_factory=list)

    def writer(self, turn_id: TurnId, epoch: int) -> NotedFeed:
        self.told.append(("writer", epoch))
        return self

    def begin(self, run: int, step: int) -> None:
        self.told.append(("begin", step))

    def push(self, run: int, step: int, text: str) -> None:
        self.told.append(("push", step, text))

    async def flush(self) -> None:
        self.told.append(("flush",))

    def close(self, *, ended: bool = False) -> None:
        self.told.append(("close", ended))


@dataclass
class NotedHints:
    """Hints that reach nobody but this list."""

    changes: list[SessionId] = field(default_factory=list)
    told: list[tuple[WorkerId, TurnId]] = field(default_factory=list)

    def publish_change(self, session_id: SessionId) -> None:
        self.changes.append(session_id)

    def publish_to_worker(self, worker_id: WorkerId, turn_id: TurnId) -> None:
        self.told.append((worker_id, turn_id))

    def watch_session(
        self, session_id: SessionId, on_change: Callable[[], None], on_gap: Callable[[], None]
    ) -> Callable[[], None]:
        return lambda: None

    async def subscribe_worker(self, worker_id: WorkerId) -> AsyncIterator[TurnId]:
        await asyncio.Event().wait()
        yield TurnId(new_turn_id())

    def stats(self) -> FeedStats:
        return FeedStats()


@dataclass
class WorkerProcess:
    """One process over the world's queue."""

    holdings: Holdings
    claimer: TurnClaimer
    runner: TurnRunner
    feed: NotedFeed
    hints: NotedHints
    rings: list[TurnId]

    async def claim(self) -> Holding:
        """Claim the one turn that there is."""
        (holding,) = await self.claimer.claim(1, ())
        return holding

    async def run(self, holding: Holding | None = None) -> Holding:
        """Claim, unless given, and run to the end."""
        holding = holding or await self.claim()
        await self.runner.run(holding)
        return holding

    async def start(self) -> tuple[Holding, asyncio.Task[None]]:
        """Claim and run beside the caller."""
        holding = await self.claim()
        return holding, asyncio.create_task(self.runner.run(holding))


class TurnWorld:
    """The store, a model and an agent; make it inside a running (virtual-time) loop."""

    def __init__(
        self,
        model: ScriptedModel,
        *tools: Tool,
        policy: Policy | None = None,
        on_worker_loss: Literal["continue", "interrupt"] = "continue",
        use: Use | None = None,
        history: Literal["per-step", "whole-turn"] = "per-step",
        task_tools: bool = False,
    ) -> None:
        self.model = model
        self.agent = Agent(
            name="agent",
            instructions="Be brief.",
            tools=tools,
            policy=policy or Policy(),
            on_worker_loss=on_worker_loss,
            use=use,
            history=history,
            task_tools=task_tools,
        )
        self.store = InprocStore(loop_clock)
        self.queue = FaultyQueue(self.store)
        self.log = InprocSessionLog(self.store)
        self.inbox = InprocInbox(self.store)
        self.tasks = InprocTaskStore(self.store)
        self.admission: TurnAdmission | None = None
        self.session = SessionId("")

    async def deliver(self, item: str, content: str = "", *, agent: str | None = None) -> Delivered:
        """Deliver an item to the world's session, which the first call makes."""
        if not self.session:
            self.session = (await self.log.create(NewSession(new_session_id(), OWNER))).session_id
        text = content or f"content of {item}"
        delivery = Delivery(self.session, OWNER, item, "test", text, agent=agent)
        return await self.inbox.deliver(delivery)

    async def admit(self, text: str = "hello", **given: Any) -> TurnId:
        """Admit a turn to the world's session, which the first admission makes."""
        if not self.session:
            self.session = (await self.log.create(NewSession(new_session_id(), OWNER))).session_id
        return await self.admit_to(self.session, OWNER, text, **given)

    async def admit_to(self, session: SessionId, owner: OwnerId, text: str = "hello", **given: Any) -> TurnId:
        """Admit a turn to any session."""
        standard: dict[str, Any] = {
            "turn_id": new_turn_id(),
            "run_id": new_run_id(),
            "session_id": session,
            "owner": owner,
            "message": {"text": text},
            "on_worker_loss": self.agent.on_worker_loss,
            "max_duration_s": self.agent.policy.max_duration_s,
        }
        receipt = await self.queue.admit(Admission(**standard | given), AdmissionLimits())
        return receipt.turn_id

    def process(self, name: str = "w1", *, failpoints: Failpoints | None = None) -> WorkerProcess:
        """Make a worker process; its loops run only when a test starts them."""
        worker = WorkerId(name)
        holdings = Holdings(self.queue, worker, lease_s=LEASE_S, renew_s=RENEW_S, poll_s=POLL_S)
        feed, hints, rings = NotedFeed(), NotedHints(), list[TurnId]()
        claimer = TurnClaimer(
            queue=self.queue,
            holdings=holdings,
            worker=worker,
            revisions=("1",),
            lease_s=LEASE_S,
            attempts_max=3,
            suspects_max=8,
            running_per_owner=256,
            capacity=8,
        )
        points = failpoints or Failpoints()
        runner = TurnRunner(
            queue=self.queue,
            log=self.log,
            inbox=self.inbox,
            app=App([self.agent], admission=self.admission),
            model=self.model,
            default_model="m-1",
            holdings=holdings,
            executor=BoundedExecutor(4),
            failpoints=points,
            feed=feed,
            hints=hints,
            ring=rings.extend,
            deliver=ResultDelivery(store=self.tasks, hints=hints, failpoints=points, ring=rings.extend),
            model_tasks=ModelTasks(
                store=self.tasks, limits=TaskLimits(), failpoints=points, ring=rings.extend
            ),
        )
        return WorkerProcess(holdings, claimer, runner, feed, hints, rings)

    def records(self) -> Sequence[Record]:
        """The session's whole log, checked against its head."""
        session = self.store.sessions[self.session]
        verify_log(self.session, session.records, seq=session.seq, tail=session.tail)
        return session.records

    def kinds(self) -> list[str]:
        """The kinds of the log, in order."""
        return [record.kind for record in self.records()]

    def data(self, kind: str) -> list[Mapping[str, Any]]:
        """What every record of a kind holds."""
        return [record.data for record in self.records() if record.kind == kind]

    async def view(self, turn_id: TurnId) -> TurnView:
        """How a turn stands."""
        return await self.queue.get(turn_id, OWNER)

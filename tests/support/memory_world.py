"""Sessions with whole turns and both background passes over a real database, with leases that pass on demand."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import dict_row

from memory_pipeline.activity.postgres import PostgresActivityStore
from memory_pipeline.activity.process import process_committed_activity
from memory_pipeline.activity.user_statements import user_statements
from memory_pipeline.activity.work import ActivityProcessor, PassLimits, PassResult, ProcessorKey
from memory_pipeline.namespaces.owners import owner_namespace
from memory_pipeline.remembering.advance import Remembering
from memory_pipeline.remembering.extraction import model_extraction
from memory_pipeline.remembering.postgres import PostgresRememberingStore
from memory_pipeline.remembering.sources import session_sources
from memory_pipeline.store.documents import (
    Attribution,
    Content,
    Document,
    MemoryKey,
    NamespaceAddress,
    Put,
    Withdraw,
)
from memory_pipeline.store.postgres import PostgresMemoryStore
from shared.agents.memory import MemoryPolicy
from shared.database.pool import Database, Row
from shared.domain.failpoints import Failpoints
from shared.domain.ids import OwnerId, SessionId, WorkerId, new_run_id, new_session_id, new_turn_id
from shared.jobs.postgres import PostgresJobQueue
from shared.jobs.queue import JobClaim, Pool
from shared.sessions.log import NewSession
from shared.sessions.postgres import PostgresSessionLog
from shared.sessions.records import Draft, draft
from shared.sessions.vocabulary import Origin, TurnEnded, TurnReply, TurnStarted, UserMessage, draft_of
from shared.turns.postgres import PostgresTurnQueue
from shared.turns.queue import Admission, AdmissionLimits, Claim, ClaimRequest, Ending, Outcome
from tests.support.scripted_facts import ScriptedFacts

OWNER = OwnerId("ann")
KEY = ProcessorKey("user-statements", "1")
POLICY = MemoryPolicy()
LEASE_S = 60.0
NOW_MS = 1_900_000_000_000


def turn_started(text: str, *, turn_id: str = "t", origin: Origin = "user") -> Draft:
    """A turn's first record."""
    return draft_of(
        TurnStarted(
            turn_id=turn_id, run_id="r", entry="e", origin=origin, user_message=UserMessage(text=text)
        )
    )


def turn_ended(outcome: Outcome) -> Draft:
    """A turn's last record."""
    return draft_of(TurnEnded(reason=outcome))


@dataclass
class MemoryWorld:
    """One database, its adapters and one scripted extraction model."""

    database: Database
    admin: AsyncConnection[Row]
    model: ScriptedFacts
    intents_per_owner: int = 1_000
    names: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.turns = PostgresTurnQueue(self.database)
        self.log = PostgresSessionLog(self.database)
        self.jobs = PostgresJobQueue(self.database)
        self.activity = PostgresActivityStore(self.database)
        self.intents = PostgresRememberingStore(self.database, intents_per_owner=self.intents_per_owner)
        self.documents = PostgresMemoryStore(self.database)

    async def rows(self, sql: str, *values: object) -> list[Row]:
        """Run a statement of the test's own and return its rows."""
        cursor = await self.admin.execute(sql.encode(), values)
        return await cursor.fetchall() if cursor.description else []

    # --- sessions ---

    async def session(self, owner: OwnerId = OWNER) -> SessionId:
        """Create a session."""
        return (await self.log.create(NewSession(new_session_id(), owner))).session_id

    async def open_turn(
        self, session: SessionId, text: str, owner: OwnerId = OWNER, *, origin: Origin = "user"
    ) -> Claim:
        """Admit, claim and open a turn."""
        turn = new_turn_id()
        admission = Admission(turn, new_run_id(), session, owner, {"text": text})
        await self.turns.admit(admission, AdmissionLimits())
        [claim] = await self.turns.claim(ClaimRequest(worker=WorkerId("turns"), places=1, lease_s=LEASE_S))
        await self.turns.open(
            claim, f"{claim.fence.token.hex}:open", [turn_started(text, turn_id=str(turn), origin=origin)]
        )
        return claim

    async def end_turn(self, claim: Claim, outcome: Outcome = "completed", *, steps: int = 1) -> None:
        """Append some records of steps and end an open turn."""
        notes = [draft("step.started", {"v": 1, "run": 1, "step": n + 1}) for n in range(steps)]
        reply = draft_of(TurnReply(outcome="completed", text="I love brussels sprouts."))
        drafts = [*notes, reply, turn_ended(outcome)]
        await self.turns.end(claim, f"{claim.fence.token.hex}:end", drafts, Ending(outcome))

    async def turn(
        self,
        session: SessionId,
        text: str,
        owner: OwnerId = OWNER,
        *,
        outcome: Outcome = "completed",
        origin: Origin = "user",
        steps: int = 1,
    ) -> None:
        """Run a whole turn: ``turn.started``, ``steps`` records, ``turn.reply``, ``turn.ended``."""
        await self.end_turn(await self.open_turn(session, text, owner, origin=origin), outcome, steps=steps)

    # --- items ---

    async def claims(self, pool: Pool, places: int = 100) -> Sequence[JobClaim]:
        """Claim items for a worker of its own."""
        worker = WorkerId(f"w{next(self.names)}")
        return await self.jobs.claim(pool, worker, places=places, lease_s=LEASE_S)

    async def claim(self, pool: Pool) -> JobClaim:
        """Claim the one item that there is."""
        [claim] = await self.claims(pool)
        return claim

    async def expire(self, claim: JobClaim) -> None:
        """Let an item's lease pass now, as if its worker had died long ago."""
        await self.rows(
            "UPDATE jobs SET expires_at = clock_timestamp() - interval '1 ms' WHERE pool = %s AND id = %s",
            claim.pool,
            claim.job_id,
        )

    # --- passes ---

    def namespace(self, owner: OwnerId = OWNER) -> NamespaceAddress:
        """The owner's namespace."""
        return owner_namespace(POLICY, owner).address

    def statements(self) -> ActivityProcessor:
        """The shipped processor."""
        return user_statements(
            key=KEY, store=self.intents, reader=self.documents, namespace_of=self.namespace
        )

    async def run_activity(self, claim: JobClaim, **given: Any) -> PassResult:
        """Run one activity pass."""
        standard: dict[str, Any] = {
            "store": self.activity,
            "log": self.log,
            "processors": {KEY: self.statements()},
            "limits": PassLimits(),
            "failpoints": Failpoints(),
        }
        return await process_committed_activity(claim, **standard | given)

    def remembering(self, **given: Any) -> Remembering:
        """The remembering pass of one worker."""
        standard: dict[str, Any] = {
            "store": self.intents,
            "load_source": session_sources(self.log),
            "extract": model_extraction(self.model, model_name="m", instructions="What lasts."),
            "reader": self.documents,
            "writer": self.documents,
            "failpoints": Failpoints(),
            "now_ms": lambda: NOW_MS,
            "scopes": (POLICY.scope,),
        }
        return Remembering(**standard | given)

    async def settle(self, claim: JobClaim) -> str:
        """Settle an item as done."""
        return await self.jobs.settle(claim, "done")

    async def drain(self) -> None:
        """Run every due item of both pools to its end."""
        while claims := await self.claims("activity"):
            for claim in claims:
                await self.run_activity(claim)
                await self.settle(claim)
        while claims := await self.claims("remember"):
            for claim in claims:
                await self.remembering().process(claim)
                await self.settle(claim)

    # --- what is remembered ---

    async def profile(self, owner: OwnerId = OWNER, number: int = 1) -> Document | None:
        """Read an owner's profile document."""
        return await self.documents.read(MemoryKey(namespace=self.namespace(owner), id=f"profile-{number}"))

    async def withdraw_profile(self, owner: OwnerId = OWNER) -> None:
        """End the owner's first profile for good; it is made before, if it is not there yet."""
        key = MemoryKey(namespace=self.namespace(owner), id="profile-1")
        document = await self.documents.read(key)
        if document is None:
            said = Attribution(origin_id="edit", speaker="owner", locator="api", interpretation="First.")
            put = Put(
                key=key,
                operation_id="edit/first",
                expected_revision=None,
                locator="memory/profile-1",
                content=Content(text="First.", attributions=(said,), recorded_at=0),
                scopes=("private",),
            )
            document = await self.documents.write(put, owner=owner)
        withdraw = Withdraw(
            key=key,
            operation_id="edit/withdraw",
            expected_revision=document.source.revision,
            reason="forgotten",
        )
        await self.documents.write(withdraw, owner=owner)

    async def facts(self, owner: OwnerId = OWNER) -> list[str]:
        """The lines of an owner's profile."""
        document = await self.profile(owner)
        return [] if document is None or document.content is None else document.content.text.split("\n")


@asynccontextmanager
async def memory_world(url: str, model: ScriptedFacts, **given: Any) -> AsyncIterator[MemoryWorld]:
    """Open the world over a migrated database, with the shipped processor switched on."""
    database = Database(url, connections=8, wait_s=20)
    await database.open()
    admin: AsyncConnection[Row] = await AsyncConnection.connect(url, autocommit=True, row_factory=dict_row)
    try:
        world = MemoryWorld(database, admin, model, **given)
        await world.activity.register(KEY)
        yield world
    finally:
        await admin.close()
        await database.close()

"""The kit of turn compositions, run on the one of ours, and on broken ones, which it has to find."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from shared.agents import Agent, Turn, TurnOutcome, TurnResult, Use
from shared.conformance import ConformanceFailure, turn_composition_conformance
from shared.conformance.turn_composition import EndlessReactions
from shared.database.pool import Database
from shared.domain.errors import TurnBeginError
from shared.domain.ids import OwnerId, new_run_id, new_session_id, new_turn_id
from shared.feed.inproc import InprocFeed
from shared.host.port import NewTurn, SessionAddress
from shared.host.sessions import HostSessions
from shared.inbox.inproc import InprocInbox
from shared.inbox.port import Inbox
from shared.inbox.postgres import PostgresInbox
from shared.models.scripted import ScriptedModel
from shared.sessions.inproc import InprocSessionLog, InprocStore
from shared.sessions.log import NewSession, SessionLog
from shared.sessions.postgres import PostgresSessionLog
from shared.sessions.records import Record
from shared.turns.inproc import InprocTurnQueue
from shared.turns.postgres import PostgresTurnQueue
from shared.turns.queue import Admission, AdmissionLimits, TurnQueue
from tests.conformance.kits import cited_by, names_of, proved_by, run_check
from workers.executor import BoundedExecutor
from workers.turns.body.in_process import TurnServices, run_turn
from workers.turns.body.lifecycle import NoReactions

AGENT = Agent("a", "Be brief.")
Runner = Callable[..., Any]


@dataclass
class Stage:
    """One session of a host."""

    log: SessionLog
    queue: TurnQueue
    services: TurnServices
    address: SessionAddress
    runner: Runner

    async def run(self, turn: NewTurn, use: Use) -> TurnResult:
        result: TurnResult = await self.runner(AGENT, turn, self.services, use, session=self.address)
        return result

    async def begin_another(self) -> None:
        other = Admission(new_turn_id(), new_run_id(), self.address.id, self.address.owner, {"text": "other"})
        await self.queue.admit(other, AdmissionLimits())

    async def deliver(self, item: str) -> None:
        await self.services.sessions.deliver(self.address, id=item, source="kit", content=item)

    async def records(self) -> Sequence[Record]:
        return await self.log.read(self.address.id)


class Subject:
    """A composition over a host's sessions, on the twin unless a log and a queue are given."""

    def __init__(
        self, runner: Runner = run_turn, stores: tuple[SessionLog, TurnQueue, Inbox] | None = None
    ) -> None:
        self._runner = runner
        self._stores = stores

    async def stage(self, model: ScriptedModel, reactions: EndlessReactions | None = None) -> Stage:
        store = InprocStore()
        log, queue, inbox = self._stores or (
            InprocSessionLog(store),
            InprocTurnQueue(store),
            InprocInbox(store),
        )
        address = SessionAddress(new_session_id(), OwnerId("o"))
        await log.create(NewSession(address.id, address.owner))
        services = TurnServices(
            sessions=HostSessions(log, queue, inbox=inbox),
            log=log,
            model=model,
            default_model="m",
            executor=BoundedExecutor(1),
            feed=InprocFeed(),
            reactions=reactions or NoReactions(),
        )
        return Stage(log, queue, services, address, self._runner)


CHECKS = turn_composition_conformance(Subject())


@pytest.mark.behaviour(
    "KIT-17",
    "KIT-20",
    "KIT-21",
    "KIT-22",
    "KIT-25",
    "KIT-26",
    "KIT-27",
    "INB-32",
    "TRN-15",
    "TRN-16",
    "TRN-20",
    "TRN-21",
    "TRN-22",
    "TRN-23",
    "TRN-25",
    "TRN-28",
    "TRN-30",
    "TRN-48",
    "TRN-52",
    "TRN-57",
    "TRN-61",
    "TRN-63",
)
@pytest.mark.parametrize("name", names_of(CHECKS))
async def test_the_composition_keeps_its_contract(name: str) -> None:
    await run_check(CHECKS, name)


@pytest.mark.parametrize("name", names_of(CHECKS))
async def test_the_composition_keeps_its_contract_on_postgres(database_url: str, name: str) -> None:
    database = Database(database_url, connections=2)
    await database.open()
    try:
        stores = PostgresSessionLog(database), PostgresTurnQueue(database), PostgresInbox(database)
        await run_check(turn_composition_conformance(Subject(stores=stores)), name)
    finally:
        await database.close()


def test_the_kit_is_cited_for_what_it_proves() -> None:
    assert cited_by(test_the_composition_keeps_its_contract) == proved_by(CHECKS) | {"KIT-17"}


# --- broken ones ---------------------------------------------------------------------------------------------------


async def forgets_tasks(agent: Agent, turn: NewTurn, services: TurnServices, use: Use, **how: Any) -> Any:
    """Cancels the body's tasks instead of joining them."""

    async def body(given: Turn) -> TurnOutcome:
        outcome = await use(given)
        await given.tasks.cancel()
        return outcome

    return await run_turn(agent, turn, services, body, **how)


async def hides_failures(agent: Agent, turn: NewTurn, services: TurnServices, use: Use, **how: Any) -> Any:
    """Answers a failed body with a completed turn."""

    async def body(given: Turn) -> TurnOutcome:
        try:
            return await use(given)
        except ValueError:
            return given.reply("fine")

    return await run_turn(agent, turn, services, body, **how)


async def wraps_refusals(agent: Agent, turn: NewTurn, services: TurnServices, use: Use, **how: Any) -> Any:
    """Raises an error of its own when a turn cannot begin."""
    try:
        return await run_turn(agent, turn, services, use, **how)
    except TurnBeginError as error:
        raise RuntimeError("no turn") from error


async def forgets_usage(agent: Agent, turn: NewTurn, services: TurnServices, use: Use, **how: Any) -> Any:
    """Says that nothing was used."""
    result = await run_turn(agent, turn, services, use, **how)
    return replace(result, usage={"input_tokens": 0, "output_tokens": 0})


async def forgets_pending(agent: Agent, turn: NewTurn, services: TurnServices, use: Use, **how: Any) -> Any:
    """Says that nothing waits."""
    return replace(await run_turn(agent, turn, services, use, **how), pending=0)


async def waits_when_cancelled(
    agent: Agent, turn: NewTurn, services: TurnServices, use: Use, **how: Any
) -> Any:
    """Lets a cancelled turn wait for the reactions to its reply."""
    try:
        return await run_turn(agent, turn, services, use, **how)
    except asyncio.CancelledError:
        await services.reactions.drain()
        raise


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (forgets_tasks, "tasks of the body are joined before the reply is recorded"),
        (forgets_tasks, "a task that fails gives a failed reply, never a completed one"),
        (
            hides_failures,
            "a turn that fails has one failed reply and one end with its code, and raises its own cause",
        ),
        (
            wraps_refusals,
            "a turn begun while another is open fails with that refusal itself, and runs and stores nothing",
        ),
        (forgets_pending, "a turn that it begins tells how many inbox items its end left waiting"),
        (forgets_usage, "a turn's usage is the sum of what its steps stored"),
        (
            waits_when_cancelled,
            "an interrupted turn ends at once, whatever reaction to its reply never returns",
        ),
    ],
)
@pytest.mark.behaviour("KIT-01", "KIT-03")
async def test_a_broken_composition_fails_the_check_of_its_fault(broken: Runner, check: str) -> None:
    with pytest.raises(ConformanceFailure):
        await run_check(turn_composition_conformance(Subject(broken)), check)

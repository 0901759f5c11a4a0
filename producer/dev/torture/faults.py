"""Makes the planned faults happen, each on a victim whose like remain."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from producer.dev.torture.crew import Crew, Member, Role
from producer.dev.torture.schedule import Fault, PlannedFault
from producer.dev.torture.timeline import Timeline
from producer.dev.torture.watch import Watch
from shared.database.embedded import EmbeddedServers
from shared.domain.errors import TurnkeeperError
from shared.wakes.meddling import BrokerMeddler
from shared.wakes.names import TURNS

#: How long a fault waits for a victim that may be taken before it is left out.
VICTIM_BOUND_S: Final = 10.0
LOOK_S: Final = 0.05
STOP_PAST_LEASE_S: Final = (0.3, 1.5)
BROKER_AWAY_S: Final = (0.2, 1.5)
TRIPLING_S: Final = (1.0, 2.0)
DELAY_S: Final = (0.02, 0.2)
DELAYING_S: Final = (1.0, 3.0)
#: For so long a process may learn late that its connections broke: it waits for one of its pool's first.
CUT_LASTS_S: Final = 2.0


class NoVictim(Exception):
    """Nobody may be taken now: too few would be left."""


@dataclass(slots=True)
class Injector:
    """Runs a plan. ``by_kind`` counts the faults that happened, ``left_out`` those that found no victim.

    ``owns_broker``: the broker is the embedded one, so it may be stopped and flushed as a whole; any other one is only purged
    of our queues, and is away by being cut off.
    """

    crew: Crew
    servers: EmbeddedServers
    meddler: BrokerMeddler
    watch: Watch
    timeline: Timeline
    owns_broker: bool
    by_kind: Counter[Fault] = field(default_factory=Counter)
    left_out: Counter[Fault] = field(default_factory=Counter)
    _meddling: asyncio.Lock = field(default_factory=asyncio.Lock)
    _serving: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self, plan: Sequence[PlannedFault], *, insists: bool) -> None:
        """Begin every fault at its time, or as soon after as its victim can be taken; return when all are over.

        With ``insists`` a kind that never found a victim gets more chances at the end: on a busy machine processes come back
        slowly.
        """
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        async with asyncio.TaskGroup() as lasting:
            for fault in plan:
                await asyncio.sleep(began_at + fault.at_s - loop.time())  # until it is due in the plan
                lasting.create_task(self._make(fault), name=f"fault:{fault.kind}")
        for fault in plan if insists else ():
            if not self.by_kind[fault.kind]:
                await self._make(fault)

    async def _make(self, fault: PlannedFault) -> None:
        acts: Mapping[Fault, Callable[[PlannedFault], Awaitable[None]]] = {
            Fault.WORKER_KILL: self._kill_worker,
            Fault.WORKER_TERM: self._end_worker,
            Fault.WORKER_STOP: self._stop_worker,
            Fault.UPKEEP_KILL: self._kill_upkeep,
            Fault.PRODUCER_KILL: self._kill_producer,
            Fault.PRODUCER_TERM: self._end_producer,
            Fault.BROKER_FLUSH: self._flush_broker,
            Fault.BROKER_RESTART: self._restart_broker,
            Fault.POSTGRES_RESTART: self._restart_postgres,
            Fault.WAKES_TRIPLED: self._triple_wakes,
            Fault.CONNECTIONS_CUT: self._cut_connections,
            Fault.CONNECTIONS_DELAYED: self._delay_connections,
        }
        try:
            await acts[fault.kind](fault)
        except (NoVictim, TurnkeeperError) as error:
            # A broker that is just away cannot be flushed: that is no fault of its own then.
            self.left_out[fault.kind] += 1
            self.timeline.note(f"{fault.kind} left out: {error}")
        else:
            self.by_kind[fault.kind] += 1
            self.timeline.note(f"{fault.kind} done")

    # --- processes ---------------------------------------------------------------------------------------------

    async def _kill_worker(self, fault: PlannedFault) -> None:
        self._end(await self._victim("turns", fault), fault, signal.SIGKILL)

    async def _end_worker(self, fault: PlannedFault) -> None:
        self._end(await self._victim("turns", fault), fault, signal.SIGTERM)

    async def _stop_worker(self, fault: PlannedFault) -> None:
        member = await self._victim("turns", fault)
        self.crew.stop(member)
        self.timeline.note(f"{fault.kind} {member.program.name} begins")
        try:
            await asyncio.sleep(
                self.crew.lease_s + _between(STOP_PAST_LEASE_S, fault.length)
            )  # the fault lasts
        finally:
            self.crew.resume(member)

    async def _kill_upkeep(self, fault: PlannedFault) -> None:
        self._end(await self._victim("upkeep", fault), fault, signal.SIGKILL)

    async def _kill_producer(self, fault: PlannedFault) -> None:
        self._end(await self._victim("producer", fault), fault, signal.SIGKILL)

    async def _end_producer(self, fault: PlannedFault) -> None:
        self._end(await self._victim("producer", fault), fault, signal.SIGTERM)

    def _end(self, member: Member, fault: PlannedFault, signum: signal.Signals) -> None:
        self.timeline.note(f"{fault.kind} {member.program.name}")
        self.crew.send(member, signum)

    async def _victim(self, role: Role, fault: PlannedFault) -> Member:
        """Choose among the fit of a role, once there are two: one must be left."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + VICTIM_BOUND_S
        while len(fit := self.crew.fit(role)) < 2:
            if loop.time() > deadline:
                raise NoVictim(role)
            await asyncio.sleep(LOOK_S)  # between two looks
        return fit[int(fault.pick * len(fit))]

    # --- servers -----------------------------------------------------------------------------------------------

    async def _flush_broker(self, fault: PlannedFault) -> None:
        async with self._meddling:
            await asyncio.to_thread(
                self.meddler.flush_server if self.owns_broker else self.meddler.purge_queues
            )

    async def _restart_broker(self, fault: PlannedFault) -> None:
        away_s = _between(BROKER_AWAY_S, fault.length)
        if not self.owns_broker:
            await self._shut_off_broker(away_s)
            return
        async with self._serving:
            await asyncio.to_thread(self.servers.stop_valkey)
            await asyncio.sleep(away_s)  # the fault lasts
            await asyncio.to_thread(self.servers.start_valkey)

    async def _shut_off_broker(self, away_s: float) -> None:
        links = [member.links["broker"] for member in self.crew.members]
        for link in links:
            link.is_shut = True
            link.cut()
        try:
            await asyncio.sleep(away_s)  # the fault lasts
        finally:
            for link in links:
                link.is_shut = False

    async def _restart_postgres(self, fault: PlannedFault) -> None:
        async with self._serving:
            self.timeline.note(f"{fault.kind} begins")
            self.crew.note_database_trouble()
            try:
                await asyncio.to_thread(self.servers.restart_postgres, immediate=True)
            finally:
                self.crew.note_database_trouble(lasting_s=CUT_LASTS_S)

    # --- messages and connections ------------------------------------------------------------------------------

    async def _triple_wakes(self, fault: PlannedFault) -> None:
        """For a while, send every wake that is owed or was of late twice more, singly and out of order."""
        rng = Random(fault.mode)
        loop = asyncio.get_running_loop()
        until = loop.time() + _between(TRIPLING_S, fault.length)
        rung: Counter[str] = Counter()
        while loop.time() < until:
            ids = [one for one in (*self.watch.unfinished, *self.watch.recent) if not rung[one]] * 2
            rng.shuffle(ids)
            for one in ids:
                rung[one] += 1
                async with self._meddling:
                    await asyncio.to_thread(self.meddler.deliver, TURNS, [one])
            await asyncio.sleep(LOOK_S)  # between two looks

    async def _cut_connections(self, fault: PlannedFault) -> None:
        member, name = self._place(fault)
        if name == "database":
            self.crew.note_database_trouble([member], lasting_s=CUT_LASTS_S)
        self.timeline.note(f"{fault.kind} {member.program.name} to the {name}")
        member.links[name].cut(at_answer=fault.mode > 0.5)

    async def _delay_connections(self, fault: PlannedFault) -> None:
        member, name = self._place(fault)
        link, lasting_s = member.links[name], _between(DELAYING_S, fault.length)
        if name == "database":
            self.crew.note_database_trouble([member], lasting_s=lasting_s)
        link.delay_s = _between(DELAY_S, fault.mode)
        self.timeline.note(f"{fault.kind} {member.program.name} to the {name} begins")
        try:
            await asyncio.sleep(lasting_s)  # the fault lasts
        finally:
            link.delay_s = 0.0

    def _place(self, fault: PlannedFault) -> tuple[Member, str]:
        """Choose a fit member and one of its links that is in use: the database's in half of all cases."""
        name = "database" if fault.pick < 0.5 else "broker"
        places = [member for member in self.crew.members if member.is_fit and member.links[name].passages]
        if not places:
            raise NoVictim(f"nobody is connected to the {name}")
        return places[int(fault.pick * 2 % 1.0 * len(places))], name


def _between(bounds: tuple[float, float], share: float) -> float:
    low, high = bounds
    return low + (high - low) * share

"""One torture run from its servers to its report."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import uvloop
from pydantic import SecretStr

from producer.dev.places import LOOPBACK, Places, Say
from producer.dev.processes import Processes
from producer.dev.stop_signals import stop_signals
from producer.dev.torture.app import JOURNAL
from producer.dev.torture.crew import Crew, build_crew
from producer.dev.torture.faults import Injector
from producer.dev.torture.judging.judgement import Judgement
from producer.dev.torture.judging.whole import judge
from producer.dev.torture.load.client import SESSIONS_A_CLIENT, Client
from producer.dev.torture.load.notes import Notes
from producer.dev.torture.postgres import PostgresTables
from producer.dev.torture.report import WHOLE_RUN_S, Report
from producer.dev.torture.schedule import plan_faults
from producer.dev.torture.timeline import NAME as TIMELINE
from producer.dev.torture.timeline import Timeline
from producer.dev.torture.watch import HeldTime, StaleWriter, Watch, count_refusals, count_tracebacks
from shared.database.embedded import EmbeddedServers
from shared.database.embedded.ports import find_free_port
from shared.database.migrate import migrate
from shared.database.pool import Database
from shared.domain.errors import ProcessFailed
from shared.domain.ids import OwnerId
from shared.owners.keys import new_key
from shared.owners.postgres import PostgresApiKeys
from shared.sessions.postgres import PostgresSessionLog
from shared.settings import Settings
from shared.turns.postgres import PostgresTurnQueue
from shared.wakes.meddling import BrokerMeddler

PRODUCERS: Final = 2
CLIENTS: Final = 6
OWNERS: Final = 3
CONNECTIONS: Final = 4
READY_BOUND_S: Final = 90.0
CLIENTS_BOUND_S: Final = 120.0
FOLLOWERS_BOUND_S: Final = 15.0
LOOK_S: Final = 0.1
TELL_EVERY_S: Final = 10.0
LOGS: Final = "logs"

#: Short leases and sweeps. A sweep's own lease is shorter than its beat: a standby waits for no dead process.
TIMES: Final[Mapping[str, float]] = {
    "turn_lease_s": 3.0,
    "turn_renew_s": 1.0,
    "worker_seen_s": 0.5,
    "sweep_s": 1.0,
    "sweep_lease_s": 0.5,
    "unasked_claim_s": 0.5,
    "cancel_poll_s": 0.5,
    "drain_s": 2.0,
}
#: Few connections, so that they run out now and then; room in one worker for the turns of all sessions, suspects too.
SIZES: Final[Mapping[str, int]] = {
    "turns_capacity": CLIENTS * SESSIONS_A_CLIENT,
    "suspects_max": CLIENTS * SESSIONS_A_CLIENT,
    "running_turns_per_owner": 8,
    "worker_connections": 6,
    "producer_connections": 6,
}
#: Laid over the caller's environment: what would change what is tortured.
OWN_SETTINGS: Final = {
    "TURNKEEPER_APP": "producer.dev.torture.app:app",
    "TURNKEEPER_REVISIONS": "",
    "TURNKEEPER_FAILPOINTS": "",
    "TURNKEEPER_METRICS_PORT": "",
    **{f"TURNKEEPER_{name.upper()}": f"{value:g}" for name, value in [*TIMES.items(), *SIZES.items()]},
}
POSTGRES_SETTINGS: Final = {"max_connections": "120", "shared_buffers": "64MB"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TortureOptions:
    """What to do. ``broker_url`` names a broker of the caller's own instead of the embedded one; ``home`` None is a temporary one.

    ``drain_bound_s`` is how long everything may take to finish once it is left alone. ``env`` is laid over what every part is
    told, and ``sabotage`` is called with the database's URL before anything runs: both are for proofs that a broken law is seen.
    """

    seconds: float
    seed: int
    broker_url: str = ""
    home: Path | None = None
    workers: int = 3
    drain_bound_s: float = 90.0
    env: Mapping[str, str] = field(default_factory=dict)
    sabotage: Callable[[str], None] | None = None


def run_torture(options: TortureOptions, settings: Settings, *, say: Say) -> Report:
    """Start servers of our own, torture what runs on them, and report; for the main thread.

    The home folder goes at the end if it was ours and the run held. Raises ``ConfigError`` when a server program is missing,
    and ``ProcessFailed`` when a part does not become ready.
    """
    with _home(options.home, say) as keep, ExitStack() as stack:
        home = keep.home
        kill = stack.enter_context(stop_signals())
        owns_broker = not options.broker_url
        servers = stack.enter_context(EmbeddedServers(home, fresh=True, tune=POSTGRES_SETTINGS))
        migrate(servers.database_url)
        if options.sabotage is not None:
            options.sabotage(servers.database_url)
        for path in (home / JOURNAL, home / LOGS / TIMELINE):
            path.unlink(missing_ok=True)
        processes = stack.enter_context(Processes(home / LOGS, say=lambda _: None))
        kill.append(processes.kill)
        own = settings.model_copy(
            update={**TIMES, **SIZES, "openai_api_key": SecretStr(""), "openai_base_url": ""}
        )
        places = Places(
            home=home,
            database_url=servers.database_url,
            broker_url=servers.redis_url if owns_broker else options.broker_url,
            feed_url=servers.redis_url,
            port=0,
            flower_port=0,
            offline_port=find_free_port(),
        )
        run = TortureRun(options, own, servers, processes, places, owns_broker=owns_broker, say=say)
        # A fast loop: everything that the processes say to their servers passes through it.
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            report = runner.run(run.run())
        keep.logs = bool(report.failures)
        return report


@dataclass(slots=True)
class TortureRun:
    """The part of a run between the start and the stop of its servers."""

    options: TortureOptions
    settings: Settings
    servers: EmbeddedServers
    processes: Processes
    places: Places
    owns_broker: bool
    say: Say
    notes: Notes = field(default_factory=Notes)

    async def run(self) -> Report:
        """Start the crew, torture it, drain it, stop it and judge what is left."""
        async with self._tables() as database:
            queue = PostgresTurnQueue(database)
            tables = PostgresTables(database)
            crew = await build_crew(
                self.processes,
                self.places,
                self.settings,
                producers=PRODUCERS,
                workers=self.options.workers,
                env=OWN_SETTINGS | dict(self.options.env),
            )
            timeline = Timeline(self.places.home / LOGS / TIMELINE)
            held = HeldTime(self.settings.turn_lease_s)
            watch = Watch(tables, queue, crew, held, StaleWriter(queue), timeline)
            meddler = BrokerMeddler(self.places.broker_url)
            injector = Injector(crew, self.servers, meddler, watch, timeline, self.owns_broker)
            try:
                drained_s = await self._torture(database, crew, watch, injector)
            finally:
                await crew.close()
                await asyncio.to_thread(meddler.close)
            judgement = await judge(
                tables, PostgresSessionLog(database), self.notes, self.places.home / JOURNAL
            )
            return self._report(judgement, watch, injector, drained_s)

    async def _torture(
        self, database: Database, crew: Crew, watch: Watch, injector: Injector
    ) -> float | None:
        """Run load and faults, then leave the system alone; return the seconds until nothing was left, or None."""
        await crew.start()
        watching = asyncio.create_task(watch.run(), name="watch")
        keeping = asyncio.create_task(crew.keep_running(), name="crew")
        telling = asyncio.create_task(self._tell(watch, injector), name="tell")
        try:
            await self._wait_ready(crew)
            async with AsyncExitStack() as stack:
                clients = [
                    await stack.enter_async_context(client)
                    for client in await self._clients(database, crew, watch)
                ]
                self.say(f"torture for {self.options.seconds:g} s, seed {self.options.seed}")
                await self._break(clients, crew, injector)
                self.say(f"no more faults; {len(watch.unfinished)} turns are left")
                drained_s = await self._drain(watch)
                await asyncio.gather(*(client.let_followers_end(FOLLOWERS_BOUND_S) for client in clients))
                return drained_s
        finally:
            watch.is_running = False
            crew.is_closing = True
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
            await asyncio.gather(watching, keeping)

    async def _break(self, clients: Sequence[Client], crew: Crew, injector: Injector) -> None:
        """Run load and faults for their time; at the end everything goes on, and every client has its answers."""
        load = [asyncio.create_task(client.run(), name=f"client:{client.n}") for client in clients]
        try:
            plan = plan_faults(self.options.seed, self.options.seconds)
            await injector.run(plan, insists=self.options.seconds >= WHOLE_RUN_S)
            crew.restore()
            for client in clients:
                client.is_running = False
            await asyncio.wait_for(asyncio.gather(*load), CLIENTS_BOUND_S)
        finally:
            for task in load:
                task.cancel()
            await asyncio.gather(*load, return_exceptions=True)

    async def _drain(self, watch: Watch) -> float | None:
        """Wait until no turn is unfinished in a look that was taken since; None when that takes too long."""
        began = time.monotonic()
        seen, looks = watch.samples, 2 * 5 + 1
        while time.monotonic() - began < self.options.drain_bound_s:
            if watch.samples >= seen + looks and not watch.unfinished:
                return time.monotonic() - began
            await asyncio.sleep(LOOK_S)
        return None

    async def _wait_ready(self, crew: Crew) -> None:
        deadline = time.monotonic() + READY_BOUND_S
        while not all(member.is_fit for member in crew.members):
            if time.monotonic() > deadline:
                missing = ", ".join(member.program.name for member in crew.members if not member.is_fit)
                raise ProcessFailed(f"not ready within {READY_BOUND_S:g} s: {missing}", name=missing)
            await asyncio.sleep(LOOK_S)

    async def _clients(self, database: Database, crew: Crew, watch: Watch) -> list[Client]:
        keys = [new_key() for _ in range(OWNERS)]
        for n, key in enumerate(keys):
            await PostgresApiKeys(database).add(key, OwnerId(f"owner-{n}"), "torture")
        urls = [f"http://{LOOPBACK}:{member.port}" for member in crew.members if member.role == "producer"]
        return [
            Client(
                n=n,
                seed=self.options.seed,
                key=keys[n % OWNERS].text,
                urls=urls,
                notes=self.notes,
                unfinished=lambda: len(watch.unfinished),
            )
            for n in range(CLIENTS)
        ]

    async def _tell(self, watch: Watch, injector: Injector) -> None:
        began = time.monotonic()
        while True:
            await asyncio.sleep(TELL_EVERY_S)
            self.say(
                f"{time.monotonic() - began:5.0f} s  {len(self.notes.acknowledged)} admitted, {len(watch.unfinished)} unfinished,"
                f" {injector.by_kind.total()} faults, {watch.stale.refused} stale writes refused"
            )

    def _report(
        self, judgement: Judgement, watch: Watch, injector: Injector, drained_s: float | None
    ) -> Report:
        logs = self.places.home / LOGS
        held = watch.held
        return Report(
            seed=self.options.seed,
            seconds=self.options.seconds,
            lease_s=self.settings.turn_lease_s,
            sweep_s=self.settings.sweep_s,
            judgement=judgement,
            faults=injector.by_kind,
            left_out=injector.left_out,
            longest_held_s=held.longest_s,
            losses=held.losses,
            losses_measured=held.losses_measured,
            overdue_counted_s=held.counted_s,
            overdue_not_counted_s=held.not_counted_s,
            refused_of_workers=count_refusals(list(logs.glob("turns-*.log"))),
            refused_of_stale_writer=watch.stale.refused,
            stale_accepted=len(watch.stale.accepted),
            drained_s=drained_s,
            unplanned_exits=injector.crew.unplanned_exits,
            hung_exits=injector.crew.hung_exits,
            tracebacks=count_tracebacks([logs / f"{m.program.name}.log" for m in injector.crew.members]),
            longest_held_of=f"turn {held.longest_of[0]}, epoch {held.longest_of[1]}"
            if held.longest_of
            else "",
            followed=len(self.notes.followers),
            reconnects=sum(max(0, one.connections - 1) for one in self.notes.followers),
            answers=self.notes.counts,
        )

    @asynccontextmanager
    async def _tables(self) -> AsyncIterator[Database]:
        """Open the database past every link."""
        database = Database(self.servers.database_url, connections=CONNECTIONS, name="turnkeeper-torture")
        await database.open()
        try:
            yield database
        finally:
            await database.close()


@dataclass(slots=True)
class _Home:
    home: Path
    logs: bool = True


@contextmanager
def _home(named: Path | None, say: Say) -> Iterator[_Home]:
    """Yield the home folder; one of our own goes at the end, but its logs and journal when they are to be kept."""
    kept = _Home(
        Path(tempfile.mkdtemp(prefix="turnkeeper-torture-")) if named is None else named.resolve() / "torture"
    )
    try:
        yield kept
    except KeyboardInterrupt:
        kept.logs = False
        raise
    finally:
        if named is None:
            _clear(kept, say)


def _clear(kept: _Home, say: Say) -> None:
    if not kept.logs:
        shutil.rmtree(kept.home, ignore_errors=True)
        return
    for name in ("postgres", "valkey"):
        shutil.rmtree(kept.home / name, ignore_errors=True)
    say(f"logs and the journal of effects are kept in {kept.home}")

"""The processes under torture: each behind links of its own, started again whenever it ends, and known to be fit or not."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from producer.dev.places import LOOPBACK, Places
from producer.dev.processes import Processes, Program
from producer.dev.programs import PYTHON, environment_of_parts, wait_ready
from producer.dev.torture.links import Link
from shared.database.embedded.child import Child
from shared.database.embedded.ports import find_free_port
from shared.settings import Settings
from shared.wakes.names import TURNS, UPKEEP

Role = Literal["producer", "turns", "upkeep"]

LOOK_S: Final = 0.1
#: A process that leaves while the database is away waits for it a few times before it gives up.
STOP_MARGIN_S: Final = 12.0
MODEL_DELAY_MS: Final = 5
#: One turn worker has few places: it is full most of the time, shuts its gate and rings for the others.
SMALL_WORKER: Final = "turns-1"
SMALL_CAPACITY: Final = 3


@dataclass(slots=True, eq=False)
class Member:
    """One process over its runs. ``links`` are its ways to the database, the broker and, when apart, the feed.

    ``seen_pid`` is the run that was seen to work, ``calm_at`` the loop's time since which nothing happened to its way to the
    database, ``is_leaving`` says that it was told to go or killed. A turn worker that is not ``is_roomy`` is often full.
    """

    role: Role
    program: Program
    links: Mapping[str, Link]
    port: int = 0
    is_roomy: bool = True
    child: Child | None = None
    seen_pid: int = 0
    calm_at: float = 0.0
    is_stopped: bool = False
    is_leaving: bool = False
    leave_by: float = 0.0

    @property
    def is_fit(self) -> bool:
        """Say whether it runs, works, and nothing was done to its process."""
        child = self.child
        up = child is not None and child.is_running and child.pid == self.seen_pid
        return up and not (self.is_stopped or self.is_leaving)


@dataclass(slots=True)
class Crew:
    """Every process of the run but the servers. Belongs to one event loop, apart from ``processes``."""

    processes: Processes
    lease_s: float
    members: list[Member] = field(default_factory=list)
    #: Runs that ended by themselves: neither killed nor told to go.
    unplanned_exits: int = 0
    #: Runs that were told to go and did not within their grace: killed.
    hung_exits: int = 0
    starts: int = 0
    is_closing: bool = False

    async def keep_running(self) -> None:
        """Start whatever has ended again, and look which producers answer, until cancelled or closing."""
        while not self.is_closing:
            for member in self.members:
                child = member.child
                if child is None or not child.is_running:
                    await self._start(member)
                elif member.is_leaving and asyncio.get_running_loop().time() > member.leave_by:
                    self.hung_exits += 1
                    child.kill()
                elif (
                    member.role == "producer" and child.pid != member.seen_pid and await _answers(member.port)
                ):
                    member.seen_pid = child.pid
            await asyncio.sleep(LOOK_S)  # between two looks

    def note_seen(self, pids: Set[int]) -> None:
        """Take note of the worker processes that wrote of late that they are there."""
        for member in self.members:
            if member.role != "producer" and member.child is not None and member.child.pid in pids:
                member.seen_pid = member.child.pid

    def fit(self, role: Role) -> list[Member]:
        """Return the members of a role that are fit."""
        return [member for member in self.members if member.role == role and member.is_fit]

    def can_repair(self) -> bool:
        """Say whether someone could take over and reap now, by the protocol.

        That is a fit turn worker with room for all and a fit upkeep worker whose ways to the database were calm for one lease: a
        process that was itself without the database takes nothing over for so long.
        """
        calm_since = asyncio.get_running_loop().time() - self.lease_s
        return all(
            any(member.is_roomy and member.calm_at <= calm_since for member in self.fit(role))
            for role in ("turns", "upkeep")
        )

    def note_database_trouble(
        self, members: Sequence[Member] | None = None, *, lasting_s: float = 0.0
    ) -> None:
        """Note that the way to the database is disturbed (of all by default), now and for ``lasting_s`` seconds."""
        until = asyncio.get_running_loop().time() + lasting_s
        for member in self.members if members is None else members:
            member.calm_at = max(member.calm_at, until)

    def send(self, member: Member, signum: signal.Signals) -> None:
        """Send a signal that ends a member; it is started again once it has ended."""
        member.is_leaving = True
        member.leave_by = asyncio.get_running_loop().time() + member.program.grace_s
        if member.child is not None:
            member.child.send_signal(signum)

    def stop(self, member: Member) -> None:
        """Stop a member's process where it is (SIGSTOP)."""
        member.is_stopped = True
        if member.child is not None:
            member.child.send_signal(signal.SIGSTOP)

    def resume(self, member: Member) -> None:
        """Let a stopped member go on (SIGCONT). It was without the database meanwhile."""
        if member.child is not None:
            member.child.send_signal(signal.SIGCONT)
        member.is_stopped = False
        self.note_database_trouble([member])

    def restore(self) -> None:
        """Let everything go on and through."""
        for member in self.members:
            if member.is_stopped:
                self.resume(member)
            for link in member.links.values():
                link.delay_s, link.is_shut = 0.0, False

    async def start(self) -> None:
        """Start every member and return once all are running; they may not work yet."""
        for member in self.members:
            await self._start(member)

    async def close(self) -> None:
        """Let every process end, then close the links."""
        self.is_closing = True
        self.restore()
        await asyncio.to_thread(self.processes.stop, {member.program.name for member in self.members})
        for member in self.members:
            for link in set(member.links.values()):
                await link.close()

    async def _start(self, member: Member) -> None:
        if member.child is not None and not member.is_leaving:
            self.unplanned_exits += 1
        self.starts += 1
        member.child = await asyncio.to_thread(self.processes.start, member.program)
        member.is_leaving = member.is_stopped = False


async def build_crew(
    processes: Processes,
    places: Places,
    settings: Settings,
    *,
    producers: int,
    workers: int,
    env: Mapping[str, str],
) -> Crew:
    """Start the offline model, and return the crew, its links open, before its first start."""
    model = (
        *PYTHON,
        "producer.dev.offline",
        "--port",
        str(places.offline_port),
        "--delay-ms",
        str(MODEL_DELAY_MS),
    )
    child = await asyncio.to_thread(processes.start, Program("model", model, restart=False))
    await asyncio.to_thread(wait_ready, child, places.offline_port, "/healthz")
    crew = Crew(processes, settings.turn_lease_s)
    roles: list[tuple[Role, int]] = [("producer", producers), ("turns", workers), ("upkeep", 2)]
    for role, count in roles:
        for n in range(1, count + 1):
            crew.members.append(await _recruit(role, f"{role}-{n}", places, settings, env))
    return crew


async def _recruit(
    role: Role, name: str, places: Places, settings: Settings, env: Mapping[str, str]
) -> Member:
    links = {"database": Link(places.database_url), "broker": Link(places.broker_url)}
    links["feed"] = links["broker"] if places.feed_url == places.broker_url else Link(places.feed_url)
    for link in dict.fromkeys(links.values()):
        await link.open()
    port = find_free_port() if role == "producer" else 0
    own = replace(
        places,
        database_url=links["database"].url,
        broker_url=links["broker"].url,
        feed_url=links["feed"].url,
        port=port,
    )
    told = environment_of_parts(own, settings) | dict(env)
    is_roomy = name != SMALL_WORKER
    arguments = _arguments(role, port, is_roomy=is_roomy)
    program = Program(
        name,
        (*PYTHON, "producer.cli", *arguments),
        env=told,
        grace_s=settings.drain_s + STOP_MARGIN_S,
        restart=False,
    )
    return Member(role, program, links, port, is_roomy)


def _arguments(role: Role, port: int, *, is_roomy: bool) -> tuple[str, ...]:
    match role:
        case "producer":
            return ("serve", "--port", str(port))
        case "upkeep":
            return ("worker", UPKEEP)
        case "turns":
            return ("worker", TURNS, *(() if is_roomy else ("--capacity", str(SMALL_CAPACITY))))


async def _answers(port: int) -> bool:
    with suppress(OSError):
        _, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.close()
        return True
    return False

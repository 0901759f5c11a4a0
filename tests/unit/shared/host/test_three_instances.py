"""Any interleaving of what three instances do keeps one open turn and one closing record a turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.domain.errors import Conflict
from shared.host.ownership import EveryMs, LeaseOwnership, Ownership, ProcessOwnership
from shared.host.port import Decision, NewTurn, SessionAddress
from shared.host.sessions import HostSessions
from shared.host.writer import QueuedTurnWriter
from shared.turns.queue import Ending
from tests.support.host_world import OWNER, HostWorld, note
from tests.support.virtual_time import VirtualTimeLoop

MODES: Final[tuple[Ownership, ...]] = (
    LeaseOwnership(60_000, "none"),
    LeaseOwnership(60_000, EveryMs(20_000)),
    ProcessOwnership(),
)
STEPS: Final = st.tuples(
    st.integers(0, 2),
    st.sampled_from(["begin", "append", "transact", "end", "leave", "cancel", "wait", "lose an answer"]),
)


@dataclass
class Instance:
    """One instance and the turn that it has open, if any."""

    sessions: HostSessions
    scope: AsyncExitStack = field(default_factory=AsyncExitStack)
    writer: QueuedTurnWriter | None = None


class Play:
    """Three instances over one session, and what must hold after each step."""

    def __init__(self) -> None:
        self.world = HostWorld()
        self.instances = [
            Instance(HostSessions(self.world.log, self.world.queue, ownership=mode)) for mode in MODES
        ]
        self.address = SessionAddress(self.world.session, OWNER)
        self.said: list[int] = []

    async def run(self, steps: list[tuple[int, str]]) -> None:
        self.address = (await self.instances[0].sessions.create(OWNER)).address
        self.world.session = self.address.id
        for who, what in steps:
            with suppress(Conflict):
                await self.do(self.instances[who], what)
            await self.check()
        for one in self.instances:
            await one.scope.aclose()
        await asyncio.sleep(61)
        async with HostSessions(self.world.log, self.world.queue).begin(
            self.address, NewTurn({"text": "next"})
        ) as writer:
            await writer.end(Ending("completed"))  # the session never stays busy
        await self.check()
        records = await self.world.log.read(self.address.id)
        kinds = Counter(r.kind for r in records)
        assert kinds["turn.started"] == kinds["turn.ended"]

    async def do(self, one: Instance, what: str) -> None:
        match what:
            case "begin" if one.writer is None:
                one.writer = await one.scope.enter_async_context(
                    one.sessions.begin(self.address, NewTurn({"text": "hello"}))
                )
            case "append" if one.writer is not None:
                self.said.append(len(self.said))
                await one.writer.append([note(self.said[-1])])
                await one.writer.flush()
            case "transact":
                await one.sessions.transact(self.address, lambda _: Decision([note(kind="note.beside")]))
            case "end" if one.writer is not None:
                await one.writer.end(Ending("completed"))
            case "leave":
                one.writer = None
                await one.scope.aclose()
                one.scope = AsyncExitStack()
            case "cancel":
                await one.sessions.cancel(self.address, (await one.sessions.view(self.address)).turns)
            case "wait":
                await asyncio.sleep(45)
            case "lose an answer":
                self.world.queue.faults["append"] = ["lost"]
                self.world.queue.faults["end"] = ["lost"]

    async def check(self) -> None:
        self.world.kinds()  # dense, digested, chained
        records = await self.world.log.read(self.address.id)
        started = Counter(r.turn or 0 for r in records if r.kind == "turn.started")
        ended = Counter(r.turn or 0 for r in records if r.kind == "turn.ended")
        assert set(started.values()) | set(ended.values()) <= {1}
        assert sorted(started) == [*range(1, len(started) + 1)]
        assert set(started) - set(ended) <= {max(started, default=0)}  # one open turn, the last
        last: dict[int | None, str] = {r.turn: r.kind for r in records if r.turn is not None}
        assert all(last[turn] == "turn.ended" for turn in ended)
        assert len(self.world.notes()) == len(set(self.world.notes()))  # nothing twice


@pytest.mark.behaviour("SES-36", "SES-113", "SES-126")
@settings(max_examples=60)
@given(st.lists(STEPS, max_size=25))
def test_three_instances_of_every_mode_keep_one_open_turn_and_one_end_a_turn(
    steps: list[tuple[int, str]],
) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(play(steps))


async def play(steps: list[tuple[int, str]]) -> None:
    await Play().run(steps)

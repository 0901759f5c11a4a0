"""Measures turns of eight tool calls, step by step, beside the same requests and tools without durability."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from typing import Any, Final

import orjson
import uvloop

from benchmarks.agent_turn.bare import run_bare
from benchmarks.catalogue import Wish
from benchmarks.harness.arms import Arm, Measured, in_turn
from benchmarks.harness.client import EVENTS, Connection, get, post
from benchmarks.harness.machine import machine_note
from benchmarks.harness.owners import Place, make_places, open_database
from benchmarks.harness.quantiles import median, quantile
from benchmarks.harness.report import Report, Target
from benchmarks.harness.site import Site, open_site
from benchmarks.harness.system import System
from benchmarks.streams.programs import start_model
from producer.dev.places import Say
from shared.domain.errors import ProcessFailed
from shared.models.openai_chat import OpenAIChatModel
from shared.models.types import AssistantMessage, Message, UserMessage

APP: Final = "benchmarks.agent_turn.app:app"
SECONDS: Final = 60.0
ROUNDS: Final = 2
CALLS: Final = 8
SEEDED: Final = (0, 50)
FIRST_MS: Final = (0, 400)
SESSIONS: Final = 12
SEED: Final = "Tell me something."
SEED_REPLY: Final = " 01234567890" * 4
TOKENS: Final = 4
#: Of the quick arms: a slow one spends nearly all of its time waiting for the model.
QUICK_SHARE: Final = 0.4
TARGETS: Final = (
    Target("durable_step_ms", floor=5.0, aim=2.0, at_most=True),
    Target("durable_step_seeded_ms", floor=5.0, aim=2.0, at_most=True),
)


def run(wish: Wish, say: Say) -> Report:
    """Start everything, measure, stop everything and report; for the main thread."""
    seconds = wish.seconds_or(SECONDS)
    with open_site() as site:
        machine = machine_note(site.home)
        say(f"servers are up in {site.home}")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            steps = runner.run(_measure(site, seconds, say))
        return steps.report(seconds, machine, site.troubles)


@dataclass(slots=True)
class Steps:
    """What the blocks of one run came to."""

    measured: Measured = field(default_factory=Measured)
    turns: int = 0
    failed: int = 0

    def report(self, seconds: float, machine: Mapping[str, Any], troubles: Sequence[str]) -> Report:
        """Return the report: a step's durable cost is its gap less that of the bare loop."""
        costs = {_name("durable_step_ms", *cell): self._cost(*cell) for cell in _cells()}
        return Report(
            benchmark="agent-turn",
            seconds=seconds,
            machine=machine,
            repeats=self.measured.repeats(),
            ratios={
                "durable_step_ms": costs[_name("durable_step_ms", 0, 0)],
                "durable_step_seeded_ms": costs[_name("durable_step_ms", SEEDED[-1], 0)],
                **costs,
            },
            counts={"turns": self.turns, "failed_turns": self.failed},
            targets=TARGETS,
            defects=[*troubles, *([f"{self.failed} turns failed"] if self.failed else [])],
        )

    def _cost(self, seeded: int, first_ms: int) -> float:
        gap = self.measured.median(_name("step_gap_ms", seeded, first_ms))
        return gap - self.measured.median(_name("bare_step_gap_ms", seeded, first_ms))


@dataclass(slots=True)
class Client:
    """One user who waits for each answer, and what the model noted of the turn meanwhile."""

    producer: Connection
    model: Connection

    async def take_turn(self, place: Place, message: str) -> dict[str, float] | None:
        """Take one turn and return when things happened, in milliseconds; None when it failed."""
        await self.model.ask(get("/log", key=""))
        began = time.monotonic()
        body = orjson.dumps({"message": message})
        admitted = await self.producer.ask(post(f"/v1/sessions/{place.session}/turns", body, key=place.key))
        answered = time.monotonic()
        if admitted.status != 202:
            return None
        events = orjson.loads(admitted.body)["links"]["events"]
        ended: list[float] = []

        def look(piece: bytes) -> None:
            if b"event: end\n" in piece:
                ended.append(time.monotonic())

        told = await self.producer.ask(get(events, key=place.key, accept=EVENTS), on_piece=look)
        if not ended or b'"completed"' not in told.body:
            return None
        requests, answers = await self.read_log()
        return {
            "admission_ms": 1e3 * (answered - began),
            "first_request_ms": 1e3 * (requests[0] - began),
            "step_gap_ms": median(_gaps(requests, answers)),
            "step_gap_p90_ms": quantile(_gaps(requests, answers), 0.9),
            "last_byte_to_end_ms": 1e3 * (ended[0] - answers[-1]),
            "requests": len(requests),
        }

    async def read_log(self) -> tuple[list[float], list[float]]:
        """Return when requests came and answers ended since the last look, in seconds."""
        answer = await self.model.ask(get("/log", key=""))
        events = orjson.loads(answer.body)["events"]
        return [at for what, at in events if what == "request"], [
            at for what, at in events if what == "answered"
        ]


async def _measure(site: Site, seconds: float, say: Say) -> Steps:
    steps = Steps()
    url = await asyncio.to_thread(start_model, site, tokens=TOKENS, token_ms=2.0, first_ms=0.0)
    system = System(site, APP, model_url=url)
    port = await asyncio.to_thread(system.start_producer)
    await asyncio.to_thread(system.start_worker)
    async with open_database(site) as database:
        places = {n: await make_places(database, owners=4, sessions=SESSIONS, name=f"of{n}") for n in SEEDED}
    for seeded, sessions in places.items():
        await asyncio.gather(*(_seed(port, place, seeded) for place in sessions))
    say("producer, worker and model are up, and sessions are seeded")
    client = Client(
        await Connection.open(port), await Connection.open(int(url.rsplit(":", 1)[1].split("/")[0]))
    )
    bare = OpenAIChatModel(base_url=url, api_key="benchmark")
    arms: list[Arm] = []
    for seeded, first_ms in _cells():
        share = QUICK_SHARE if first_ms == 0 else 1.0
        turns = cycle(places[seeded])
        durable = partial(_durable, steps, client, turns, seeded, first_ms)
        arms += [
            Arm(f"turns, {seeded} seeded, {first_ms} ms", durable, share),
            Arm(
                f"bare, {seeded} seeded, {first_ms} ms", partial(_bare, client, bare, seeded, first_ms), share
            ),
        ]
    whole = sum(arm.share for arm in arms)
    for arm in arms[:2]:
        await arm.measure(0.5)
    steps.turns = 0
    for number, arm in enumerate(in_turn(arms, ROUNDS), start=1):
        figures = await arm.measure(seconds * arm.share / whole / ROUNDS)
        steps.measured.add(figures)
        first = ", ".join(f"{name} {value:,.2f}" for name, value in list(figures.items())[:2])
        say(f"  {number:>2}/{ROUNDS * len(arms)}  {arm.name:<26} {first}")
    await bare.aclose()
    return steps


async def _seed(port: int, place: Place, turns: int) -> None:
    connection = await Connection.open(port)
    body = orjson.dumps({"message": SEED})
    for _ in range(turns):
        path = f"/v1/sessions/{place.session}/turns"
        answer = await connection.ask(post(path, body, key=place.key, accept=EVENTS))
        if b'"completed"' not in answer.body:
            raise ProcessFailed("a seeded turn did not complete", name="worker")
    connection.close()


async def _durable(
    steps: Steps, client: Client, places: Any, seeded: int, first_ms: int, seconds: float
) -> Mapping[str, float]:
    """Take turns one after the other for so long, one at least; return the medians."""
    taken: list[dict[str, float]] = []
    until = time.monotonic() + seconds
    while not taken or time.monotonic() < until:
        figures = await client.take_turn(next(places), _message(first_ms))
        steps.turns += 1
        if figures is None or figures["requests"] != CALLS + 1:
            steps.failed += 1
            break
        taken.append(figures)
    names = [name for name in (taken[0] if taken else {}) if name != "requests"]
    return {_name(name, seeded, first_ms): median([one[name] for one in taken]) for name in names}


async def _bare(
    client: Client, model: OpenAIChatModel, seeded: int, first_ms: int, seconds: float
) -> Mapping[str, float]:
    history: tuple[Message, ...] = (UserMessage(SEED), AssistantMessage(SEED_REPLY)) * seeded
    gaps: list[float] = []
    until = time.monotonic() + seconds
    while not gaps or time.monotonic() < until:
        await client.model.ask(get("/log", key=""))
        await run_bare(model, history, _message(first_ms))
        gaps.append(median(_gaps(*await client.read_log())))
    return {_name("bare_step_gap_ms", seeded, first_ms): median(gaps)}


def _gaps(requests: Sequence[float], answers: Sequence[float]) -> list[float]:
    """Return the milliseconds from each answer's last byte to the next request."""
    return [1e3 * (asked - done) for done, asked in zip(answers, requests[1:], strict=False)]


def _message(first_ms: int) -> str:
    return f"Please look {CALLS} times, after {first_ms} ms."


def _cells() -> list[tuple[int, int]]:
    return [(seeded, first_ms) for seeded in SEEDED for first_ms in FIRST_MS]


def _name(figure: str, seeded: int, first_ms: int) -> str:
    return f"{figure}_{seeded}_seeded_{first_ms}_first"

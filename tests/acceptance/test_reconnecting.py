"""Readers that lose their connection at every event of a streamed turn: all their connections together show it exactly.

Real processes: two producers over one database, a Celery worker, the offline model over HTTP, PostgreSQL and Valkey.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import httpx2
import pytest

from shared.database.embedded import EmbeddedServers
from shared.database.embedded.child import Child
from shared.database.embedded.ports import find_free_port
from shared.sessions.vocabulary import CLIENT_KINDS
from tests.support import reconnecting
from tests.support.balancer import balancing
from tests.support.reconnecting import Story, all_of, connected, follow
from tests.support.sse import Frame
from tests.support.system import WAIT_S, System, eventually

#: A step with a call, then one whose text takes about a second.
STREAMED = 'Look, then tell. [[offline: {"tool": "look", "tokens": 40, "delay_ms": 25, "args": {}}]]'
#: The first connections last for so many events; the later ones to the end.
CUTS = [[n, 0] for n in range(1, 9)]

pytestmark = pytest.mark.behaviour("API-05", "API-06", "FOL-05")


class Replicated(System):
    """A system of two producers whose servers may be flushed and restarted."""

    servers: EmbeddedServers

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ports = [self.port, find_free_port()]
        self.producers: list[Child] = []

    def start_producers(self) -> None:
        """Start both and wait until they are ready."""
        self.producers = [
            self._start(f"producer-{port}", "producer.cli", "serve", "--port", str(port))
            for port in self.ports
        ]
        for port in self.ports:
            eventually(partial(is_ready, port), "a producer")

    def restart_everything(self, worker: Child) -> None:
        """Stop producers and worker, empty Valkey, crash PostgreSQL, and start all again."""
        for child in (*self.producers, worker):
            child.stop(grace_s=WAIT_S)
        self.servers.stop_valkey()
        self.servers.restart_postgres(immediate=True)
        self.servers.start_valkey()
        self.start_producers()
        self.start_worker()

    @asynccontextmanager
    async def clients(self) -> AsyncIterator[list[httpx2.AsyncClient]]:
        """Lend a client of each producer."""
        async with AsyncExitStack() as stack:
            yield [
                await stack.enter_async_context(
                    httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_S, trust_env=False)
                )
                for port in self.ports
            ]

    def shown(self, session: str) -> list[int]:
        """Return the seqs of what clients may see, from the database."""
        return [record["seq"] for record in self.records(session) if record["kind"] in CLIENT_KINDS]


def is_ready(port: int) -> bool:
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/readyz", trust_env=False).status_code == 200
    except httpx2.TransportError:
        return False


@pytest.fixture
def system(own_servers: EmbeddedServers, tmp_path: Path) -> Iterator[Replicated]:
    with Replicated(own_servers, tmp_path / "run") as system:
        system.start_producers()
        yield system


def has_ended(story: Story) -> bool:
    return any(frame.event == "turn.ended" for frame in story.records)


def judge(stories: Sequence[Story], ids: list[int], text: str) -> None:
    """Assert that each story is whole: every record once and in order, and the text that is stored as the reply."""
    for story in stories:
        assert story.ids == ids
        assert story.replies == [(text, text)]
        assert len(story.of("end")) <= 1


async def test_readers_that_come_back_at_every_event_hold_the_turn_exactly(system: Replicated) -> None:
    worker = await asyncio.to_thread(system.start_worker)
    session = system.create_session()
    system.hold_model()
    whole = Story()
    async with system.clients() as (one, other):
        receipt = system.admit(session, STREAMED)
        path, of_session = receipt["links"]["events"], f"/v1/sessions/{session}/events"
        pairs: list[list[httpx2.AsyncClient]] = [[one], [one, other]]
        following = asyncio.ensure_future(
            all_of(
                *(
                    follow(on, path, cuts=[1], by_query=q)
                    for on, q in itertools.product(pairs, (False, True))
                ),
                *(follow(on, of_session, cuts=[1], is_over=has_ended) for on in pairs),
                *(follow(pairs[n % 2], path, cuts=cuts, by_query=n % 3 == 0) for n, cuts in enumerate(CUTS)),
                follow([one], path, story=whole),
            )
        )
        # The one that never comes back is to hear the whole text, so it has to be there before its beginning.
        await until(lambda: whole.records)
        system.release_model()
        stories = await following
    ids, text = system.shown(session), " ".join(tokens(40))
    judge(stories, ids, text)
    for story in stories:
        if story.end is not None:
            assert (story.end.data["status"], story.end.data["outcome"]) == ("ended", "completed")
    assert all(story.of("snapshot") for story in stories[:6]), "they came back within the text"
    assert (whole.connections, whole.of("snapshot"), whole.of("reset")) == (1, [], [])
    assert len(whole.of("delta")) > 5

    await read_it_again(system, session, path, text)
    await asyncio.to_thread(system.restart_everything, worker)
    await read_it_again(system, session, path, text)


async def read_it_again(system: Replicated, session: str, path: str, text: str) -> None:
    """A turn that is over is read from every record on, from cursors that are none, and with each event lost."""
    ids = system.shown(session)
    async with system.clients() as clients:
        whole = await follow(clients, path)
        judge([whole], ids, text)
        for by_query, seen in itertools.product((False, True), whole.records):
            story = Story(cursor=seen.id)
            await follow(clients[int(by_query) :], path, by_query=by_query, story=story)
            assert story.ids == [seq for seq in ids if seq > int(seen.id)]
            assert all(stored == held for stored, held in story.replies)
            assert story.frames[-1] == whole.end
        judge([await follow(clients, path, cuts=[1])], ids, text)
        of_session = f"/v1/sessions/{session}/events"
        told = await follow(clients, of_session, cuts=[1], is_over=has_ended)
        assert told.ids == ids
        for unknown in ("999999", "nonsense"):
            story = await follow(clients, path, story=Story(cursor=unknown))
            assert [seq for seq in story.ids if seq] == ids
            assert story.replies == [(text, text)]
            assert [reset["after"] for reset in story.of("reset")] == ([0] if unknown.isdigit() else [])


@pytest.mark.behaviour("FOL-08")
async def test_an_attempt_that_is_overtaken_is_reset_and_the_next_one_is_told_whole(
    system: Replicated,
) -> None:
    doomed = await asyncio.to_thread(system.start_worker)
    session = system.create_session()
    system.hold_model(after_tokens=5)
    receipt = system.admit(session, 'Tell. [[offline: {"tokens": 30, "delay_ms": 10}]]')
    path = receipt["links"]["events"]
    first = " ".join(tokens(5))
    async with system.clients() as (one, other):
        live, left = Story(), Story()
        followed = asyncio.create_task(follow([one], path, story=live))
        steps = asyncio.create_task(follow([one, other], path, cuts=[1]))
        cut = [asyncio.create_task(follow([other, one], path, cuts=cuts)) for cuts in CUTS]
        await until(lambda: live.text.strip() == first)
        await follow([other], path, story=left, is_over=lambda story: story.text.strip() == first)
        doomed.send_signal(signal.SIGKILL)
        held = await asyncio.to_thread(eventually, partial(unheld, system, receipt), "the loss")
        assert (held["open"], held["recovering"], held["attempt"]) == (True, True, 1)
        await asyncio.to_thread(system.start_worker)
        await asyncio.to_thread(system.wait_for_calls, 2)
        await until(lambda: live.of("reset"))
        # One comes back while the second attempt streams: what it is told first is that attempt's text so far.
        await until(lambda: live.text.strip() == first)
        async with connected(one, path, headers={"Last-Event-ID": left.cursor or ""}) as frames:
            async for frame in frames:
                left.take(frame)
                if frame.event == "snapshot":
                    break
        assert left.text.strip() == first
        system.release_model()
        stories = await all_of(followed, steps, *cut, follow([other], path, story=left))
    text = " ".join(tokens(30))
    judge(stories, system.shown(session), text)
    assert [reset["reason"] for reset in live.of("reset")] == ["attempt"]
    assert system.turn(receipt["turn_id"])["attempt"] == 2
    system.verify(session)


@pytest.mark.behaviour("API-15", "API-04")
async def test_a_draining_producer_hands_its_readers_over_to_the_other(system: Replicated) -> None:
    leaving, staying = system.ports
    await asyncio.to_thread(system.start_worker)
    session = system.create_session()
    system.hold_model(after_tokens=5)
    text, so_far = " ".join(tokens(20)), " ".join(tokens(5))
    posted, browser, told = Story(), Story(), Story()
    async with system.clients() as (one, other), balancing([leaving, staying]) as balancer:
        path = f"/v1/sessions/{session}/turns"
        body = {"message": 'Tell. [[offline: {"tokens": 20}]]', "key": "k"}
        async with connected(
            one, path, method="POST", retries=posted.retries, params={"stream": "true"}, json=body
        ) as frames:
            posted.take(await anext(frames))
            receipt = posted.frames[0].data
            events = receipt["links"]["events"]
            following = asyncio.create_task(follow([one, other], events, story=told))
            with event_source(f"{balancer.url}{events}") as lines:
                watching = asyncio.create_task(watch(lines, browser))
                async for frame in frames:
                    posted.take(frame)
                    if posted.text.strip() == so_far:
                        break
                await until(lambda: browser.text.strip() == told.text.strip() == so_far)
                balancer.backends = [staying]
                system.producers[0].send_signal(signal.SIGTERM)
                async for frame in frames:
                    posted.take(frame)
                assert await asyncio.to_thread(system.producers[0].wait, WAIT_S) == 0
                # The turn goes on; each reader has its receipt and cursor, and goes to the producer that is left.
                await until(lambda: told.connections == 2)
                system.release_model()
                await all_of(following, watching, follow([other], events, story=posted))
    judge([posted, told, browser], system.shown(session), text)
    assert posted.retries == told.retries == [1000]
    assert browser.connections == 2


@pytest.mark.behaviour("FOL-17")
async def test_text_stops_with_redis_and_comes_again_with_it_while_records_never_stop(
    system: Replicated,
) -> None:
    await asyncio.to_thread(system.start_worker)
    session = system.create_session()
    system.hold_model(after_tokens=5)
    receipt = system.admit(session, 'Tell. [[offline: {"tokens": 30}]]')
    async with system.clients() as clients:
        live = Story()
        followed = asyncio.create_task(follow(clients[:1], receipt["links"]["events"], story=live))
        await until(lambda: live.text.split() == tokens(5))
        await asyncio.to_thread(system.servers.stop_valkey)
        system.hold_model(after_tokens=10)
        await until(lambda: system.model_calls(session=session)[-1]["tokens_sent"] == 10)
        assert live.text.split() == tokens(5)
        await asyncio.to_thread(system.servers.start_valkey)
        system.hold_model(after_tokens=20)
        await until(lambda: live.text.split() == tokens(20))
        await asyncio.to_thread(system.servers.stop_valkey)
        system.release_model()
        await all_of(followed)
        await asyncio.to_thread(system.servers.start_valkey)
    judge([live], system.shown(session), " ".join(tokens(30)))
    assert live.connections == 1


def tokens(count: int) -> list[str]:
    """Return the first words of an offline answer."""
    return [f"token{n}" for n in range(1, count + 1)]


@pytest.mark.behaviour("API-04", "API-07", "SES-125")
async def test_a_reloaded_page_finds_its_turn_again_and_its_stop_button_stops_it(system: Replicated) -> None:
    """D04, D05."""
    await asyncio.to_thread(system.start_worker)
    session = system.create_session()
    turns = f"/v1/sessions/{session}/turns"
    async with system.clients() as (one, other):
        left = Story()
        async with connected(
            one, turns, method="POST", params={"stream": "true"}, json={"message": STREAMED}
        ) as frames:
            async for frame in frames:
                left.take(frame)
                if frame.event == "delta":
                    break
        events = left.of("admitted")[0]["links"]["events"]
        await asyncio.to_thread(system.finished, left.of("admitted")[0]["turn_id"])
        await follow([other], events, story=left)
        text = " ".join(tokens(40))
        judge([left], system.shown(session), text)

        system.hold_model(after_tokens=3)
        receipt = system.admit(session, 'Go on. [[offline: {"tokens": 30}]]')
        await asyncio.to_thread(system.wait_for_calls, 3, session=session)
        # A page that was reloaded knows its session and nothing else.
        opened = (await other.get(f"/v1/sessions/{session}")).json()["open"]["turn_id"]
        assert opened == receipt["turn_id"]
        page = Story()
        watching = asyncio.create_task(follow([other], f"/v1/turns/{opened}/events", story=page))
        await until(lambda: page.text.startswith("token1"))
        stopped = (await one.post(f"/v1/turns/{opened}/cancel")).json()
        assert (stopped["cancelled"], stopped["outcome"]) == (True, "cancelled")
        await all_of(watching)
        assert page.end is not None and page.end.data["outcome"] == "cancelled"
        assert (page.ids, page.replies) == (system.shown(session)[-len(page.ids) :], [])
        # The model's answer is let go of while it is held: nobody waits for a stopped turn.
        await until(lambda: [c["state"] for c in system.model_calls(session=session)][-1] == "disconnected")
        system.release_model()
    system.verify(session)


@contextmanager
def event_source(url: str) -> Iterator[IO[str]]:
    """A browser's own client of event streams, as Node.js ships it."""
    node = shutil.which("node")
    names = sorted(CLIENT_KINDS | {"delta", "snapshot", "reset", "end"})
    script = Path(reconnecting.__file__).with_name("event_source.mjs")
    command = [node or "node", "--no-warnings", "--experimental-eventsource", str(script), url, *names]
    if node is None or subprocess.run([*command[:3], "-e", "EventSource"], capture_output=True).returncode:
        pytest.skip("there is no Node.js with an EventSource here")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.kill()


async def watch(lines: IO[str], story: Story) -> None:
    """Take in what an EventSource dispatches; its ids are those of the last record, on every event."""
    while line := await asyncio.to_thread(lines.readline):
        said = json.loads(line)
        story.connections += said["event"] == "(open)"
        if not said["event"].startswith("("):
            is_record = said["event"] in CLIENT_KINDS
            story.take(Frame(said["id"] if is_record else "", said["event"], said["data"]))


def unheld(system: System, receipt: dict[str, Any]) -> dict[str, Any] | None:
    state = system.turn(receipt["turn_id"])
    return state if state["recovering"] else None


async def until(look: Any) -> None:
    await asyncio.to_thread(eventually, look, "what the reader is told")

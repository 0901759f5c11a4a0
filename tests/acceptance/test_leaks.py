"""No stream shows what must stay on the server: a scan of every byte, over every kind of event and every way to follow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from shared.database.embedded import EmbeddedServers
from shared.database.migrate import migrate
from tests.support.secret_app import HEADER, INPUT, MODEL_KEY, SECRETS
from tests.support.servers import TUNE
from tests.support.sse import frames_of
from tests.support.system import WAIT_S, System

#: Spelled so that what the user wrote does not hold it.
SPELLED = INPUT.replace("e", "\\u0065", 1)
OWN_WORDS = "These are my own words."
SECRET_TURN = f'{OWN_WORDS} [[offline: {{"tool": "%s", "args": {{"subject": "{SPELLED}"}}, "tokens": 20, "delay_ms": 10}}]]'
FAILING = 'And fail. [[offline: {"tool": "look", "args": {"subject": "x"}, "fail": 400, "at_step": 2}]]'


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    home = tmp_path_factory.mktemp("leaks")
    secrets = {"TURNKEEPER_APP": "tests.support.secret_app:app", "OPENAI_API_KEY": MODEL_KEY}
    with EmbeddedServers(home / "servers", tune=TUNE) as pair:
        migrate(pair.database_url)
        with System(pair, home / "run", secrets) as system:
            system.start_producer()
            system.start_worker()
            yield system


async def bytes_of(
    client: httpx2.AsyncClient, path: str, *, last: str = "end", method: str = "GET", **options: Any
) -> bytes:
    """Read a stream's bytes up to and with the first event of this name."""
    read = b""
    async with client.stream(method, path, **options) as answer:
        async for chunk in answer.aiter_bytes():
            read += chunk
            if f"event: {last}\n".encode() in read and read.endswith(b"\n\n"):
                break
    return read


@pytest.mark.behaviour("FOL-09", "FOL-10", "FOL-12")
async def test_no_stream_holds_system_text_tool_data_failure_texts_or_keys(system: System) -> None:
    session = system.create_session()
    of_session = f"/v1/sessions/{session}/events"
    turns = f"/v1/sessions/{session}/turns"
    async with (
        httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{system.port}", timeout=WAIT_S, trust_env=False
        ) as client,
        asyncio.timeout(WAIT_S * 2),
    ):
        client.headers |= {"X-Secret": HEADER, "Cookie": f"a={HEADER}", "User-Agent": HEADER}
        read: list[bytes] = []
        for n, message in enumerate((SECRET_TURN % "look", SECRET_TURN % "stumble", FAILING), start=1):
            live = asyncio.create_task(bytes_of(client, of_session, last="turn.ended"))
            read.append(
                await bytes_of(
                    client,
                    turns,
                    method="POST",
                    params={"stream": "true"},
                    json={"message": message, "key": f"k{n}"},
                )
            )
            events = admitted(read[-1])["links"]["events"]
            read.append(await bytes_of(client, events))
            read.append(await bytes_of(client, events, headers={"Last-Event-ID": "5"}))
            read.append(await live)
        read.append(await bytes_of(client, of_session, last="reset", params={"after": "99999"}))
        ids = [frame.id for stream in read for frame in frames_of([stream]) if frame.id]
        for cursor in sorted(set(ids)):
            read.append(await bytes_of(client, events, headers={"Last-Event-ID": cursor}))

    frames = [frame for stream in read for frame in frames_of([stream])]
    assert {frame.event for frame in frames} >= {
        "admitted",
        "turn.started",
        "step.started",
        "tool.started",
        "tool.completed",
        "step.usage",
        "step.ended",
        "delta",
        "snapshot",
        "reset",
        "turn.reply",
        "turn.ended",
        "end",
    }
    stored = json.dumps([r["data"] for r in system.records(session)])
    assert all(secret in stored for secret in SECRETS if secret not in (HEADER, MODEL_KEY)), "nothing to find"
    for stream in read:
        assert not [secret for secret in SECRETS if secret.encode() in stream]
    # What a user wrote is his own: each of his devices can show it. Why a turn failed is told by a code.
    started = [f for f in frames if f.event == "turn.started"]
    assert all("message" in json.dumps(f.data) for f in started)
    assert OWN_WORDS in started[0].data["user_message"]["text"]
    failed = [f.data for f in frames if f.event == "turn.ended" and f.data["reason"] == "failed"]
    assert failed
    assert all(data["code"].startswith("model.") and "failure" not in data for data in failed)


def admitted(stream: bytes) -> dict[str, dict[str, str]]:
    [first, *_] = [frame for frame in frames_of([stream]) if frame.event == "admitted"]
    data: dict[str, dict[str, str]] = first.data
    return data

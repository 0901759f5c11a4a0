"""Starts what the benchmark is made of beside the product: the model, readers and baselines, each a process of its own."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson
import redis
from celery import Celery

from benchmarks.harness.owners import Place
from benchmarks.harness.processes import usage_of
from benchmarks.harness.quantiles import quantile
from benchmarks.harness.site import Site
from benchmarks.streams.names import JOB, QUEUE, SPANS
from benchmarks.streams.readers import BEGIN, END
from producer.dev.processes import Program
from producer.dev.programs import wait_ready
from shared.database.embedded.ports import find_free_port
from shared.settings import Settings, variable_of

PYTHON: Final = (sys.executable, "-m")
GRACE_S: Final = 5.0
#: Of the shared Redis; the product has 0.
DATABASE_NUMBER: Final = 2
THREADS: Final = 200
#: More than threads run, so that the queue is never empty.
JOBS_PER_S: Final = 150
RAMP_S: Final = 8.0
READY_BOUND_S: Final = 60.0


def start_model(site: Site, *, tokens: int, token_ms: float, first_ms: float, name: str = "model") -> str:
    """Start a model server, wait until it answers, and return its base URL."""
    port = find_free_port()
    pace = ("--tokens", str(tokens), "--token-ms", str(token_ms), "--first-ms", str(first_ms))
    argv = (*PYTHON, "benchmarks.streams.model", "--port", str(port), *pace)
    child = site.processes.start(Program(name, argv, restart=False, grace_s=GRACE_S))
    wait_ready(child, port, "/")
    return f"http://127.0.0.1:{port}/v1"


async def read_turns(
    site: Site,
    port: int,
    places: Sequence[Place],
    clients: int,
    *,
    warm_s: float,
    seconds: float,
    let_end_s: float,
    on_mark: Callable[[str], None],
) -> Mapping[str, Any]:
    """Run so many readers and return what they saw; ``on_mark`` hears when measuring begins and ends."""
    told = site.home / "places.json"
    told.write_text(json.dumps([[place.session, place.key] for place in places]))
    span = ("--warm", str(warm_s), "--seconds", str(seconds), "--let-end", str(let_end_s))
    who = ("--port", str(port), "--places", str(told), "--clients", str(clients))
    result: Mapping[str, Any] = {}
    process = await _start("benchmarks.streams.readers", *who, *span, log=site.home / "logs" / "readers.log")
    assert process.stdout is not None
    async for line in process.stdout:
        text = line.decode().strip()
        if text in (BEGIN, END):
            on_mark(text)
        else:
            result = orjson.loads(text)
    await process.wait()
    return result


async def read_raw(site: Site, url: str, streams: int, *, warm_s: float, seconds: float) -> Mapping[str, Any]:
    """Read so many streams with the raw reader and return what it saw."""
    told = ("--url", url, "--streams", str(streams), "--warm", str(warm_s), "--seconds", str(seconds))
    process = await _start("benchmarks.streams.plain", *told, log=site.home / "logs" / "plain.log")
    out, _ = await process.communicate()
    result: Mapping[str, Any] = orjson.loads(out.splitlines()[-1])
    return result


def read_by_threads(site: Site, url: str, seconds: float) -> dict[str, float]:
    """Have Celery threads read streams from a filled queue for so long, and return what they carried. Blocks."""
    broker = site.beside_url(DATABASE_NUMBER)
    client: Any = redis.Redis.from_url(broker)
    env: dict[str, str | None] = dict.fromkeys(map(variable_of, Settings.model_fields), "")
    env |= {"CELERY_BROKER_URL": broker, "OPENAI_BASE_URL": url}
    celery = ("celery", "-A", "benchmarks.streams.threads", "worker", "-P", "threads", "-Q", QUEUE)
    how = (
        "-c",
        str(THREADS),
        "--without-gossip",
        "--without-mingle",
        "--without-heartbeat",
        "--loglevel=WARNING",
    )
    argv = (*PYTHON, *celery, *how)
    program = Program("threads", argv, env=env, restart=False, stop_signal=signal.SIGKILL, grace_s=GRACE_S)
    _publish(broker, round(JOBS_PER_S * (seconds + RAMP_S)))
    child = site.processes.start(program)
    child.wait_until(lambda: client.llen(SPANS) > THREADS, what="a first round", timeout_s=READY_BOUND_S)
    began, before = time.monotonic(), usage_of({"threads": child.pid})
    time.sleep(seconds)  # what is measured
    took_s = time.monotonic() - began
    used_s = usage_of({"threads": child.pid})["threads"].cpu_s - before["threads"].cpu_s
    notes = [tuple(map(float, note.split())) for note in client.lrange(SPANS, 0, -1)]
    site.processes.stop(["threads"])
    client.flushdb()
    client.close()
    spans = [span for at, span in notes if began <= at <= began + took_s]
    return {
        "threads_turns_per_s": len(spans) / took_s,
        "threads_turns_per_s_a_core": len(spans) / used_s,
        "threads_span_p50_s": quantile(spans, 0.5),
        "threads_span_p99_s": quantile(spans, 0.99),
    }


def _publish(broker: str, count: int) -> None:
    app = Celery("streams", broker=broker)
    for _ in range(count):
        app.send_task(JOB, queue=QUEUE)
    app.close()


async def _start(module: str, *arguments: str, log: Path) -> asyncio.subprocess.Process:
    with log.open("ab") as errors:
        return await asyncio.create_subprocess_exec(
            *PYTHON, module, *arguments, stdout=asyncio.subprocess.PIPE, stderr=errors
        )

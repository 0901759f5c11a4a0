"""The same streams read by one asyncio process and nothing else: no queue, no log, no follower. The baseline of CPU a token."""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Final

import aiohttp
import orjson
import uvloop

from benchmarks.streams.readers import CLIENTS_PER_S, cpu_s, percentiles, tell

REQUEST: Final = {
    "model": "stub-1",
    "stream": True,
    "stream_options": {"include_usage": True},
    "messages": [{"role": "user", "content": "Tell me something."}],
}


async def read_raw(base_url: str, streams: int, warm_s: float, seconds: float) -> dict[str, object]:
    """Keep so many streams open, each read token by token with aiohttp and a fast codec; return what that cost."""
    loop = asyncio.get_running_loop()
    tokens, spans, is_open = 0, list[float](), False
    keep_on = True

    async def read_one(session: aiohttp.ClientSession) -> None:
        nonlocal tokens
        first_us = 0
        async with session.post(f"{base_url}/chat/completions", json=REQUEST) as response:
            async for line in response.content:
                if line.startswith(b"data: {"):
                    choices = orjson.loads(line[6:])["choices"]
                    if choices and (text := choices[0]["delta"].get("content")):
                        first_us = first_us or int(text)
                        tokens += is_open
        if is_open:
            spans.append(time.monotonic() - first_us / 1e6)

    async def read_on(n: int, session: aiohttp.ClientSession) -> None:
        await asyncio.sleep(n / CLIENTS_PER_S)  # one after the other
        while keep_on:
            await read_one(session)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        tasks = [asyncio.create_task(read_on(n, session)) for n in range(streams)]
        await asyncio.sleep(warm_s)  # until all have begun
        is_open, began, used_s = True, loop.time(), cpu_s()
        await asyncio.sleep(seconds)  # what is measured
        took_s, used_s = loop.time() - began, cpu_s() - used_s
        is_open = keep_on = False
        await asyncio.gather(*tasks)
    return {
        "seconds": took_s,
        "cpu_s": used_s,
        "tokens": tokens,
        "turns": len(spans),
        "spans_s": percentiles(spans),
        "cpu_us_per_token": 1e6 * used_s / max(1, tokens),
    }


def main() -> None:
    """``python -m benchmarks.streams.plain --url http://127.0.0.1:8901/v1 --streams 100``; prints a JSON object."""
    parser = argparse.ArgumentParser(description="A raw reader of model streams.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--warm", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=4.0)
    given = parser.parse_args()
    result = uvloop.run(read_raw(given.url, given.streams, given.warm, given.seconds))
    tell(orjson.dumps(result).decode())


if __name__ == "__main__":
    main()

"""How the body of a model's stream is read: past the client's layers where the transport allows it, else through them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from shared.models.endpoint import ModelEndpoint, buffer_of
from tests.support.hostile_server import STREAM_HEAD, Exchange, hostile_server


async def test_a_plain_stream_is_read_where_the_transport_put_it_and_a_compressed_one_is_not() -> None:
    async def answer(exchange: Exchange) -> None:
        encoding = b"\r\ncontent-encoding: gzip\r\n\r\n" if exchange.number == 2 else b"\r\n\r\n"
        await exchange.send(STREAM_HEAD.replace(b"\r\n\r\n", encoding))
        await exchange.send_chunk(b"")

    async with hostile_server(answer) as server:
        endpoint = ModelEndpoint(
            base_url=server.base_url,
            api_key="key",
            connect_timeout_s=5,
            read_timeout_s=5,
            retries=0,
            connections_max=1,
        )
        is_direct: list[bool] = []
        for _ in range(2):
            async with AsyncExitStack() as stack:
                deadline = asyncio.get_running_loop().time() + 10
                response, _ = await endpoint.open_stream(
                    "/chat/completions", {"model": "m", "stream": True}, stack, deadline=deadline, retries=0
                )
                is_direct.append(buffer_of(response) is not None)
        await endpoint.aclose()
    assert is_direct == [True, False]

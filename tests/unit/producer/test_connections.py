"""What leaves on a connection in one piece, and what becomes of what is held when it closes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.responses import PlainTextResponse
from uvicorn.server import ServerState

from producer.connections import HELD_MAX_BYTES, GatheredProtocol, GatheredTransport


@dataclass
class Wire(asyncio.Transport):
    """The transport below: keeps each write by itself."""

    written: list[bytes] = field(default_factory=list)
    is_closed: bool = False
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.is_closed
        self.written.append(bytes(data))

    def close(self) -> None:
        self.is_closed = True
        self.closed.set()

    def abort(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


async def test_the_head_and_the_body_of_an_answer_leave_in_one_piece() -> None:
    wire = Wire()
    config = uvicorn.Config(PlainTextResponse("hello"), log_config=None, lifespan="off")
    config.load()
    protocol = GatheredProtocol(config, ServerState(), {})
    protocol.connection_made(wire)
    protocol.data_received(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    await asyncio.wait_for(wire.closed.wait(), 5)
    [answer] = wire.written
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nhello")


async def test_what_is_written_within_a_turn_of_the_loop_leaves_together_and_in_order() -> None:
    wire = Wire()
    transport = GatheredTransport(wire, asyncio.get_running_loop())
    transport.write(b"a")
    transport.write(b"b")
    assert (wire.written, transport.get_write_buffer_size()) == ([], 2)
    await asyncio.sleep(0)
    assert (wire.written, transport.get_write_buffer_size()) == ([b"ab"], 0)
    transport.write(b"c")
    await asyncio.sleep(0)
    assert wire.written == [b"ab", b"c"]


async def test_a_response_that_never_lets_the_loop_go_on_is_not_held() -> None:
    wire = Wire()
    transport = GatheredTransport(wire, asyncio.get_running_loop())
    for _ in range(4):
        transport.write(bytes(HELD_MAX_BYTES // 2))
    assert [len(piece) for piece in wire.written] == [HELD_MAX_BYTES] * 2


async def test_a_close_writes_what_is_held_and_an_abort_does_not() -> None:
    closed, aborted = Wire(), Wire()
    for wire, leave in ((closed, GatheredTransport.close), (aborted, GatheredTransport.abort)):
        transport = GatheredTransport(wire, asyncio.get_running_loop())
        transport.write(b"last words")
        leave(transport)
        await asyncio.sleep(0)
    assert (closed.written, aborted.written) == ([b"last words"], [])


async def test_nothing_is_written_to_a_peer_that_hung_up_meanwhile() -> None:
    wire = Wire()
    transport = GatheredTransport(wire, asyncio.get_running_loop())
    transport.write(b"too late")
    wire.is_closed = True
    await asyncio.sleep(0)
    assert wire.written == []

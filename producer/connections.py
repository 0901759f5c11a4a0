"""Connections of clients: what is written to one within a turn of the event loop leaves in one piece."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: What is held at most: a response that never lets the loop go on is written as it comes.
HELD_MAX_BYTES: Final = 64 * 1024


class GatheredProtocol(HttpToolsProtocol):
    """Uvicorn's HTTP/1.1, which writes a response's head, its body and its end one by one: a system call each."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a new connection."""
        super().connection_made(GatheredTransport(transport, self.loop))  # type: ignore[arg-type]  # uvloop's own is none


class GatheredTransport(asyncio.Transport):
    """A transport that writes when the event loop comes to it, or at once what is much; a close writes what is held before."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []
        self._held_bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Hold a piece for the next flush."""
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(bytes(data))
        self._held_bytes += len(data)
        if self._held_bytes >= HELD_MAX_BYTES:
            self._flush()

    def close(self) -> None:
        """Write what is held, then close as soon as all is sent."""
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        """Close now; what is held is lost."""
        self._held.clear()
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        """Return how many bytes are not sent yet."""
        return self._transport.get_write_buffer_size() + self._held_bytes

    def is_closing(self) -> bool:
        """Say whether nothing more is sent."""
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        """Let the peer wait."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known of the connection."""
        return self._transport.get_extra_info(name, default)

    def _flush(self) -> None:
        held, self._held, self._held_bytes = self._held, [], 0
        # A peer that hung up meanwhile takes nothing more; the transport would raise.
        if held and not self._transport.is_closing():
            self._transport.write(b"".join(held))

"""An incremental decoder of server-sent events: bytes as they arrive in, ``data`` payloads out.

Only what a model's stream needs: ``event``, ``id``, ``retry`` and comments are read over. Lines end in LF, CRLF or CR.
"""

from __future__ import annotations

#: A line, and the data of one event, may hold this much; a chunk of a model's answer is some hundred bytes.
EVENT_MAX_BYTES = 1024 * 1024

_BOM = b"\xef\xbb\xbf"


class EventTooLarge(ValueError):
    """A line or an event's data is larger than the decoder's bound."""


class SseDecoder:
    """Splits one stream into the data of its events. Bytes of one character may arrive in different chunks."""

    def __init__(self, *, event_max_bytes: int = EVENT_MAX_BYTES) -> None:
        self._max = event_max_bytes
        self._rest = b""
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._at_start = True

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take the next bytes and return the data of every event they complete; raise ``EventTooLarge``."""
        if self._at_start:
            chunk = self._skip_bom(chunk)
        if self._is_one_event(chunk):
            return [chunk[6:-2]]
        if b"\n" not in chunk and b"\r" not in chunk and not self._rest.endswith(b"\r"):
            self._keep(self._rest + chunk)
            return []
        text = self._rest + chunk
        if b"\r" in text:
            # A CR at the end may be the first half of a CRLF: it waits for the next bytes.
            held = b"\r" if text.endswith(b"\r") else b""
            text = text[: len(text) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            *lines, rest = text.split(b"\n")
            rest += held
        else:
            *lines, rest = text.split(b"\n")
        self._keep(rest)
        return self._take(lines)

    def finish(self) -> list[bytes]:
        """Return what an event without its closing blank line held: many servers leave it out at the very end."""
        rest, self._rest = self._rest.removesuffix(b"\r"), b""
        return self._take([rest, b""])

    def _is_one_event(self, chunk: bytes) -> bool:
        """Whether the bytes are one whole event of one line and nothing waits: what nearly every token of a model is."""
        return (
            not self._rest
            and not self._data
            and chunk.startswith(b"data: ")
            and chunk.endswith(b"\n\n")
            and chunk.find(b"\n") == len(chunk) - 2 <= self._max
            and b"\r" not in chunk
        )

    def _skip_bom(self, chunk: bytes) -> bytes:
        chunk, self._rest = self._rest + chunk, b""
        if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
            self._rest = chunk
            return b""
        self._at_start = False
        return chunk.removeprefix(_BOM)

    def _keep(self, rest: bytes) -> None:
        if len(rest) > self._max:
            self._rest = b""
            raise EventTooLarge(f"a line of the stream is larger than {self._max} bytes")
        self._rest = rest

    def _take(self, lines: list[bytes]) -> list[bytes]:
        events: list[bytes] = []
        for line in lines:
            if not line:
                if self._data:
                    events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                    self._data, self._data_bytes = [], 0
            elif line.startswith(b"data:"):
                value = line[6:] if line.startswith(b"data: ") else line[5:]
                self._data_bytes += len(value)
                if self._data_bytes > self._max:
                    raise EventTooLarge(f"an event of the stream is larger than {self._max} bytes")
                self._data.append(value)
        return events

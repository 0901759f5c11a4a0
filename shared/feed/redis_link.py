"""How the feed reaches Redis: names of keys and channels, how entries are written and read, clients with bounded waits.

An entry of a stream has two fields: ``p``, its place (epoch, run, step and, of a delta, offset, as decimals), and ``t``, its text.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, assert_never
from urllib.parse import parse_qs, urlsplit

import orjson
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from shared.domain.ids import SessionId, TurnId, WorkerId
from shared.feed.entries import Delta, Entry, Snapshot
from shared.feed.port import FeedStats

CONNECT_S: Final = 1.0
BACKOFF_FIRST_S: Final = 0.1
BACKOFF_MAX_S: Final = 2.0

#: What a server, a socket or a wait may raise: the feed's edge, where trouble becomes a count. A RuntimeError is what uvloop
#: says of a write to a connection that was reset.
TROUBLE: Final = (RedisError, OSError, TimeoutError, RuntimeError)


def feed_key(turn_id: TurnId) -> str:
    """The stream of a turn's text."""
    return f"tk:feed:{turn_id}"


def session_channel(session_id: SessionId) -> str:
    """Where changes of a session are told."""
    return f"tk:s:{session_id}"


def worker_channel(worker_id: WorkerId) -> str:
    """Where a worker process is told which of its turns to look at."""
    return f"tk:w:{worker_id}"


#: What is to be done to one stream: how it is written to, the new time to live (0: as it is), place and text.
Write: TypeAlias = tuple[str, int, str, str]

#: Writes to every stream in KEYS what ARGV[1], a JSON list of writes, says, and answers in their order: the new entry's id, nothing
#: where the stream was not there, or an error. One command for a whole batch: a client pays for each command and each
#: answer several times what an entry costs the server. Only a step's first entry or a snapshot makes a stream: a delta
#: after a flush must not. A snapshot trims it to itself.
WRITE_SCRIPT: Final = """
local answers = {}
for i, write in ipairs(cjson.decode(ARGV[1])) do
  local key, how, ttl = KEYS[i], write[1], write[2]
  local answer = true
  if how == 'delta' then
    answer = redis.pcall('XADD', key, 'NOMKSTREAM', '*', 'p', write[3], 't', write[4])
  elseif how == 'first' then
    answer = redis.pcall('XADD', key, '*', 'p', write[3], 't', write[4])
  elseif how == 'snapshot' then
    answer = redis.pcall('XADD', key, 'MAXLEN', '=', 1, '*', 'p', write[3], 't', write[4])
  end
  if ttl > 0 then
    redis.pcall('EXPIRE', key, ttl)
  end
  answers[i] = answer
end
return answers
"""


def write_of(entry: Entry | None, ttl_s: int) -> Write:
    """Return the write of an entry; without one only the time to live is set."""
    match entry:
        case Delta(epoch=epoch, run=run, step=step, offset=offset, text=text):
            return ("delta" if offset else "first", ttl_s, f"{epoch} {run} {step} {offset}", text)
        case Snapshot(epoch=epoch, run=run, step=step, text=text):
            return ("snapshot", ttl_s, f"{epoch} {run} {step}", text)
        case None:
            return ("", ttl_s, "", "")
        case _:
            assert_never(entry)


def encode_writes(writes: Sequence[Write]) -> bytes:
    """Return the script's argument."""
    return orjson.dumps(writes)


def entry_of(turn_id: TurnId, fields: Sequence[bytes]) -> Entry | None:
    """Return the entry of a stream's fields, name and value in turn; None for one that is not ours."""
    try:
        place_name, place, text_name, text = fields
        if place_name != b"p" or text_name != b"t":
            return None
        epoch, run, step, *offset = map(int, place.split())
        if offset:
            return Delta(turn_id, epoch, run, step, offset[0], text.decode())
        return Snapshot(turn_id, epoch, run, step, text.decode())
    except ValueError:
        return None


#: Answers of XREAD as the server gives them: (stream, ((id, fields), …)) …
Streams: TypeAlias = Sequence[tuple[bytes, Sequence[tuple[bytes, Sequence[bytes]]]]]

Command: TypeAlias = tuple[str | int | bytes, ...]


@dataclass(slots=True)
class Counts:
    """What a process's feed did; see :class:`~shared.feed.port.FeedStats`."""

    flushes: int = 0
    entries: int = 0
    snapshots: int = 0
    hints: int = 0
    dropped: int = 0
    failures: int = 0
    read: int = 0
    is_up: bool | None = None

    def fail(self) -> None:
        """An exchange with the server failed."""
        self.failures += 1
        self.is_up = False

    def stats(self) -> FeedStats:
        """The values as they are now."""
        return FeedStats(
            self.flushes,
            self.entries,
            self.snapshots,
            self.hints,
            self.dropped,
            self.failures,
            self.read,
            self.is_up,
        )


@dataclass(slots=True)
class Backoff:
    """Seconds to wait after failures in a row: doubling, with jitter, at most ``BACKOFF_MAX_S``."""

    random: random.Random = field(default_factory=random.Random)
    failures: int = 0

    def reset(self) -> None:
        """An exchange worked."""
        self.failures = 0

    def next_s(self) -> float:
        """Count a failure and return how long to wait."""
        ceiling = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2 ** min(self.failures, 10))
        self.failures += 1
        return self.random.uniform(ceiling / 2, ceiling)


class Link:
    """A connection of its own for whoever makes one exchange after the other; it is opened again when it broke.

    Commands leave in the same step of the event loop in which they are given, and answers are read in order. The client's
    pool, pipelines and timeouts do the same by tasks that are waited for: four rounds of the loop more, and the rounds of a
    busy loop are what text waits for.
    """

    def __init__(self, url: str) -> None:
        pool: Any = ConnectionPool.from_url(_plain_url(url), **_options(None))
        self._connection = pool.make_connection()

    async def exchange(self, commands: Sequence[Command], *, within_s: float) -> list[Any]:
        """Send the commands and return their answers, errors of the server among them. Raises what is in ``TROUBLE``."""
        link = self._connection
        try:
            async with asyncio.timeout(within_s):
                if link.is_connected and await link.can_read():
                    await link.disconnect()  # the server closed it, or is not where we are
                await link.send_packed_command(link.pack_commands(commands), check_health=False)
                return [await self._answer() for _ in commands]
        except BaseException:
            await link.disconnect(nowait=True)
            raise

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.disconnect()

    async def _answer(self) -> Any:
        try:
            return await self._connection.read_response()
        except ResponseError as error:
            return error


def make_client(url: str, *, answer_s: float) -> Redis:
    """Return a client that waits at most ``answer_s`` seconds for an answer and tries nothing twice by itself."""
    return Redis.from_url(_plain_url(url), **_options(answer_s))


def _options(answer_s: float | None) -> dict[str, Any]:
    return {
        "protocol": 2,
        "decode_responses": False,
        "socket_connect_timeout": CONNECT_S,
        "socket_timeout": answer_s,
        "socket_keepalive": True,
        "retry": Retry(NoBackoff(), 0),
    }


def _plain_url(url: str) -> str:
    """Return a broker's spelling of a Unix socket (``redis+socket://``) as the client spells it."""
    if not url.startswith("redis+socket://"):
        return url
    parts = urlsplit(url)
    database = parse_qs(parts.query).get("virtual_host", ["0"])[0].strip("/")
    return f"unix://{parts.path}?db={database}"

"""Talking to a producer over HTTP, as ``chat`` does: sessions, a turn's events over lost connections, cancels."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import httpx2

from shared.domain.errors import Refused, TurnkeeperError, Unavailable

CONNECT_S: Final = 5.0
#: Longer than the producer's keep-alive comments are apart.
SILENCE_S: Final = 60.0
#: More than any record takes, however it is escaped.
EVENT_MAX_BYTES: Final = 32 * 1024 * 1024
#: Twenty seconds: a producer that is started anew on a busy machine needs more than a few.
TRIES: Final = 40
PAUSE_S: Final = 0.5

_DROPPED: Final = (httpx2.TransportError, httpx2.StreamError)


class Rejected(Refused):
    """The producer said no; ``code`` and text are its own."""

    title = "Request refused"

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        super().__init__(str(problem.get("detail") or f"the producer answered {status}"), status=status)
        self.status = status
        # An instance's own: the code is the producer's, not this class's.
        self.__dict__["code"] = str(problem.get("code") or f"http.{status}")


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One server-sent event: its name, its data, and the id to come back with, once there is one."""

    event: str
    data: dict[str, Any]
    id: str | None = None


@dataclass(slots=True)
class Turn:
    """A turn as its reader knows it: nothing until the receipt, then its id and the last record seen.

    ``resumes`` is the id of the turn that it continues.
    """

    id: str | None = None
    cursor: str | None = None
    ended: bool = False
    resumes: str | None = None
    key: str = field(default_factory=lambda: uuid.uuid4().hex)


class Conversation:
    """One producer, as one owner. A context manager; not for several threads."""

    def __init__(self, url: str, key: str | None = None) -> None:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        timeout = httpx2.Timeout(SILENCE_S, connect=CONNECT_S)
        self._client = httpx2.Client(base_url=url, headers=headers, timeout=timeout, trust_env=False)
        self.url = url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def create_session(self) -> str:
        """Create a session and return its id."""
        answer = self._ask("POST", "/v1/sessions", json={})
        return str(answer["session_id"])

    def read_session(self, session_id: str) -> dict[str, Any]:
        """Read a session's head; raises ``Rejected`` for one that is not the caller's."""
        return self._ask("GET", f"/v1/sessions/{session_id}")

    def cancel(self, turn_id: str) -> dict[str, Any]:
        """Cancel a turn durably and return what that did."""
        return self._ask("POST", f"/v1/turns/{turn_id}/cancel", json={})

    def say(self, session_id: str, text: str, turn: Turn) -> Iterator[ServerEvent]:
        """Admit a message and yield its turn's events to the end, over lost connections and restarts.

        ``turn`` is filled in on the way, so that the caller can cancel it. Each event of the log comes once. Raises
        ``Rejected``, and ``Unavailable`` when the producer stays away.
        """
        path, body = f"/v1/sessions/{session_id}/turns", {"message": text, "key": turn.key}
        body |= {} if turn.resumes is None else {"resumes": turn.resumes}
        failures = 0
        while not turn.ended:
            try:
                before = (turn.id, turn.cursor)
                if turn.id is None:
                    yield from self._stream("POST", path, turn, params={"stream": "true"}, json=body)
                else:
                    yield from self._stream("GET", f"/v1/turns/{turn.id}/events", turn)
                failures = 0 if (turn.id, turn.cursor) != before else failures + 1
            except _DROPPED as error:
                failures += 1
                if failures >= TRIES:
                    raise Unavailable(f"the producer at {self.url} does not answer") from error
            except Rejected as error:
                failures += 1
                if error.status != httpx2.codes.SERVICE_UNAVAILABLE or failures >= TRIES:
                    raise
            if not turn.ended:
                time.sleep(PAUSE_S if failures else 0.0)

    def _stream(self, method: str, path: str, turn: Turn, **options: Any) -> Iterator[ServerEvent]:
        headers = {"Accept": "text/event-stream"}
        if turn.cursor is not None:
            headers["Last-Event-ID"] = turn.cursor
        with self._client.stream(method, path, headers=headers, **options) as response:
            if response.is_error:
                response.read()
                raise _rejected(response)
            for event in read_events(response):
                if event.event == "admitted":
                    turn.id = str(event.data["turn_id"])
                turn.cursor = event.id or turn.cursor
                turn.ended = event.event == "end"
                yield event
                if turn.ended:
                    return

    def _ask(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        try:
            response = self._client.request(method, path, **options)
        except _DROPPED as error:
            raise Unavailable(f"the producer at {self.url} does not answer") from error
        if response.is_error:
            raise _rejected(response)
        found: dict[str, Any] = response.json()
        return found


def read_events(response: httpx2.Response) -> Iterator[ServerEvent]:
    """Decode an event stream whose data is JSON objects; an event without an id has that of the last record."""
    for event in httpx2.EventSource(response, max_event_size=EVENT_MAX_BYTES):
        if event.data:
            yield ServerEvent(event.event, json.loads(event.data), event.id or None)


def _rejected(response: httpx2.Response) -> TurnkeeperError:
    try:
        problem = response.json()
    except ValueError:
        problem = {}
    return Rejected(response.status_code, problem if isinstance(problem, dict) else {})

"""The offline model server as a process of a test's own, and the means to watch and hold its calls."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

STOP_WITHIN_S = 10


class OfflineModel:
    """A running server. Every method blocks: asynchronous tests call them through ``asyncio.to_thread``."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self._admin = f"{base_url.removesuffix('/v1')}/admin"

    def calls(self, session: str | None = None) -> list[dict[str, Any]]:
        """The newest calls, oldest of them first."""
        calls: list[dict[str, Any]] = self._ask("calls", session=session)["calls"]
        return calls

    def counts(self, session: str | None = None) -> dict[str, int]:
        """How many calls there are by state; ``refused`` among them."""
        told = self._ask("calls", session=session)
        return {**told["counts"], "refused": told["refused"]}

    def wait(
        self, calls: int = 1, *, state: str = "started", session: str | None = None, timeout_s: float = 10.0
    ) -> list[dict[str, Any]]:
        """Return the newest calls once ``calls`` of them are counted as ``state``; fail when they are not in time."""
        try:
            found: list[dict[str, Any]] = self._ask(
                "wait", calls=calls, state=state, session=session, timeout=timeout_s
            )["calls"]
        except HTTPError as error:
            raise AssertionError(
                f"not {calls} calls {state} within {timeout_s:g} s: {error.read()!r}"
            ) from None
        return found

    def hold(self, *, session: str | None = None, after_tokens: int = 0) -> None:
        """Stop calls once they sent so many tokens; 0: before their headers."""
        self._tell("hold", {"session": session, "after_tokens": after_tokens})

    def release(self, *, session: str | None = None, count: int | None = None) -> int:
        """Let calls go on; returns how many were held."""
        released: int = self._tell("release", {"session": session, "count": count})["released"]
        return released

    def reset(self) -> None:
        """Release everything; forget calls and fault counters."""
        self._tell("reset", {})

    def _ask(self, what: str, **query: Any) -> dict[str, Any]:
        asked = urlencode({name: value for name, value in query.items() if value is not None})
        return _open(Request(f"{self._admin}/{what}?{asked}"))

    def _tell(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"content-type": "application/json"}
        return _open(Request(f"{self._admin}/{what}", json.dumps(body).encode(), headers))


def _open(request: Request) -> dict[str, Any]:
    with urlopen(request, timeout=60) as answer:
        decoded: dict[str, Any] = json.load(answer)
    return decoded


@contextmanager
def offline_model(*arguments: str) -> Iterator[OfflineModel]:
    """Start a server with these further arguments on a free port, and stop it afterwards."""
    command = [sys.executable, "-m", "producer.dev.offline", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            word, _, base_url = process.stdout.readline().strip().partition(" ")
            assert word == "listening", f"the offline model did not start: {word!r}"
            yield OfflineModel(base_url)
        finally:
            process.terminate()
            process.wait(STOP_WITHIN_S)

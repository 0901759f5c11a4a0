"""How a client of the torture asks: any producer, again and again under the same key, until one answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import httpx2

from producer.dev.torture.load.notes import Notes

REQUEST_BOUND_S: Final = 8.0
#: A client that hangs up after so little time has often been heard all the same: its answer is lost.
IMPATIENT_S: Final = (0.001, 0.03)
PAUSE_S: Final = 0.2
GIVE_UP_S: Final = 90.0


@dataclass(slots=True)
class Door:
    """The way of one client to all producers."""

    urls: Sequence[str]
    http: httpx2.AsyncClient
    rng: Random
    notes: Notes

    async def ask(
        self, path: str, body: Mapping[str, Any], *, key: str | None, impatient: bool = False
    ) -> dict[str, Any] | None:
        """Ask producers in turn until one answers; None when it was refused, or nobody answered for long.

        The key makes it safe to ask again after an answer that was lost.
        """
        headers = {} if key is None else {"Idempotency-Key": key}
        deadline = asyncio.get_running_loop().time() + GIVE_UP_S
        patience = self.rng.uniform(*IMPATIENT_S) if impatient else REQUEST_BOUND_S
        while asyncio.get_running_loop().time() < deadline:
            url = self.rng.choice(self.urls) + path
            try:
                answer = await self.http.post(url, json=body, headers=headers, timeout=patience)
            except httpx2.TransportError:
                self.notes.counts["unanswered"] += 1
            else:
                if answer.is_success:
                    found: dict[str, Any] = answer.json()
                    return found
                code = _code_of(answer)
                self.notes.counts[code] += 1
                if answer.status_code < 500:
                    return None
            patience = REQUEST_BOUND_S
            await asyncio.sleep(PAUSE_S * self.rng.random())  # a client's pause before it asks again
        self.notes.counts["given-up"] += 1
        return None


def _code_of(answer: httpx2.Response) -> str:
    try:
        return str(answer.json()["code"])
    except (ValueError, KeyError, TypeError):
        return f"http.{answer.status_code}"

"""The public keys of an identity provider: one configured JWKS, read in the background and kept (API-16)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import httpx2
import orjson

from shared.domain.errors import KeysUnavailable

_log: Final = logging.getLogger(__name__)

#: Keys older than this are read again beside the work; a key that was withdrawn is taken no longer than this.
REFRESH_S: Final = 300.0
#: While their endpoint is away, keys are believed for so long.
STALE_MAX_S: Final = 3_600.0
#: The endpoint is asked no more often than this, however many unknown keys tokens name.
REFETCH_MIN_S: Final = 10.0
FETCH_TIMEOUT_S: Final = 3.0
JWKS_MAX_BYTES: Final = 256 * 1024
KEYS_MAX: Final = 100

Jwk = Mapping[str, Any]


class KeySet:
    """Finds a key by its id in the JWKS at ``url``. Close it with :meth:`close`.

    A key that is not there makes the set be read again, at most once in ``REFETCH_MIN_S``: so a rotation is seen with its
    first token. No redirect is followed, and no proxy of the environment is used.
    """

    def __init__(self, url: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._clock = clock
        self._client = httpx2.AsyncClient(timeout=FETCH_TIMEOUT_S, follow_redirects=False, trust_env=False)
        self._keys: Mapping[str, Jwk] = {}
        self._read_at: float | None = None
        self._tried_at: float | None = None
        self._reading: asyncio.Task[None] | None = None

    async def find(self, key_id: str) -> Jwk | None:
        """Return the key of this id, None when the set has none; raise ``KeysUnavailable`` when it cannot be read."""
        if self._age() >= REFRESH_S:
            self._begin_reading()
        if self._age() < STALE_MAX_S and key_id in self._keys:
            return self._keys[key_id]
        self._begin_reading()
        if self._reading is not None:
            # Shielded: whoever waits may leave, and the others still want the keys.
            await asyncio.shield(self._reading)
        if self._age() >= STALE_MAX_S or self._failed():
            raise KeysUnavailable("the keys of tokens cannot be read now", retry_after_s=REFETCH_MIN_S)
        return self._keys.get(key_id)

    async def close(self) -> None:
        """Stop reading."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        await self._client.aclose()

    def _age(self) -> float:
        return float("inf") if self._read_at is None else self._clock() - self._read_at

    def _failed(self) -> bool:
        """Whether the last look did not end with keys."""
        return self._tried_at is not None and (self._read_at is None or self._read_at < self._tried_at)

    def _begin_reading(self) -> None:
        now = self._clock()
        if self._reading is not None or (self._tried_at is not None and now - self._tried_at < REFETCH_MIN_S):
            return
        self._tried_at = now
        self._reading = asyncio.create_task(self._read(now))

    async def _read(self, now: float) -> None:
        try:
            self._keys = read_keys(await self._fetch())
            self._read_at = now
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            # The address may carry a secret; what went wrong is enough.
            _log.warning("the keys of tokens cannot be read", extra={"reason": type(error).__name__})
        finally:
            self._reading = None

    async def _fetch(self) -> bytes:
        async with asyncio.timeout(FETCH_TIMEOUT_S), self._client.stream("GET", self._url) as response:
            if response.status_code != 200:
                raise ValueError(f"status {response.status_code}")
            body = b""
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > JWKS_MAX_BYTES:
                    raise ValueError("too large")
            return body


def read_keys(body: bytes) -> Mapping[str, Jwk]:
    """Return the keys of a JWKS that may verify something, by id; raise ``ValueError`` when it has none.

    Keys without an id, for encryption, private ones and shared secrets are left out: whoever reads one can sign with it.
    """
    found = orjson.loads(body)
    keys = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(keys, list) or len(keys) > KEYS_MAX:
        raise ValueError("no JWKS, or too many keys")
    usable = {key["kid"]: key for key in keys if isinstance(key, dict) and _is_usable(key)}
    if not usable:
        raise ValueError("no usable key")
    return usable


def _is_usable(key: Jwk) -> bool:
    is_public = key.get("kty") in ("RSA", "EC", "OKP") and "d" not in key
    return is_public and isinstance(key.get("kid"), str) and key.get("use", "sig") == "sig"

"""What the OpenAPI document says there is: every route, so that a new one is tested without being named."""

from __future__ import annotations

import asyncio
import uuid
from typing import Final
from urllib.parse import urlsplit

import httpx2
import psycopg

#: Everything that a request of a client can make.
TABLES: Final = (
    "sessions",
    "turns",
    "records",
    "session_keys",
    "jobs",
    "memory_documents",
    "memory_versions",
    "memory_receipts",
    "memory_intents",
)


def count_rows(database_url: str) -> dict[str, int]:
    """Return how many rows each table of ``TABLES`` holds."""
    with psycopg.connect(database_url) as connection:
        counts = {}
        for table in TABLES:
            row = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
            assert row is not None
            counts[table] = int(row[0])
        return counts


async def operations(client: httpx2.AsyncClient) -> list[tuple[str, str]]:
    """Return every method and path that the OpenAPI document names."""
    paths = (await client.get("/openapi.json")).json()["paths"]
    return [(method.upper(), path) for path, methods in paths.items() for method in methods]


def filled(path: str, *, session: str = "ses_1", turn: str = "", memory: str = "profile-1") -> str:
    """Return a route's path with its parameters filled in; a parameter that nobody knows is an error."""
    ids = {
        "session_id": session,
        "turn_id": turn or str(uuid.uuid4()),
        "document_id": memory,
        "intent_id": memory,
    }
    return path.format_map(ids)


async def raw_answer(
    client: httpx2.AsyncClient, method: str, path: str, *, length: int, headers: dict[str, str] | None = None
) -> tuple[int, str]:
    """Send the head of a request that declares a body and none of the body; return the answer's status and head."""
    address = urlsplit(str(client.base_url))
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    lines = [f"{method} {path} HTTP/1.1", f"Host: {address.netloc}"]
    sent = {"Content-Type": "application/json", "Content-Length": str(length)} | (headers or {})
    sent["Authorization"] = client.headers["Authorization"]
    lines += [f"{name}: {value}" for name, value in sent.items()]
    try:
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        async with asyncio.timeout(10):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    finally:
        writer.close()
    return int(head.split(" ")[1]), head

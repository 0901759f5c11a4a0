"""What the OpenAPI document says there is: every route, so that a new one is tested without being named."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2
import psycopg

#: Everything that a request of a client can make.
TABLES: Final = (
    "sessions",
    "turns",
    "records",
    "session_keys",
    "inbox_items",
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


async def read_document(client: httpx2.AsyncClient) -> dict[str, Any]:
    """Return the OpenAPI document that a producer serves."""
    document: dict[str, Any] = (await client.get("/openapi.json")).json()
    return document


async def operations(client: httpx2.AsyncClient) -> list[tuple[str, str]]:
    """Return every method and path that the OpenAPI document names."""
    paths = (await read_document(client))["paths"]
    return [(method.upper(), path) for path, methods in paths.items() for method in methods]


def filled(path: str, **ids: str) -> str:
    """Return a route's path with its parameters filled in, by default with ids of nothing.

    A parameter that is not known here is an error, so that a new kind of id is looked at.
    """
    unknown = {
        "session_id": "ses_1",
        "turn_id": str(uuid.uuid4()),
        "document_id": "profile-1",
        "intent_id": "profile-1",
        "task_id": "ses_2",
    }
    return path.format_map(unknown | ids)


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


def read_problem(response: httpx2.Response) -> dict[str, Any]:
    """Return the problem details of an answer; raise ``ValueError`` unless they are whole and tell nothing of the inside."""
    problem: dict[str, Any] = response.json()
    wrong = [name for name in ("type", "title", "code", "detail") if not problem.get(name)]
    if problem.get("status") != response.status_code:
        wrong.append("status")
    if problem.get("request_id") != response.headers["X-Request-ID"]:
        wrong.append("request_id")
    if response.headers["Content-Type"] != "application/problem+json":
        wrong.append("Content-Type")
    if wrong or any(trace in response.text for trace in ("Traceback", "SELECT ", "psycopg")):
        raise ValueError(f"no whole problem ({', '.join(wrong)}): {response.text[:500]}")
    return problem

"""The baseline: a FastAPI route as anyone would write it, one committed INSERT on a psycopg pool, served as ``serve`` is.

``python -m benchmarks.admission.route PORT CONNECTIONS``; the database is told by the environment.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import uvicorn
from fastapi import FastAPI
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool
from pydantic import BaseModel

from shared.database.statements import load_statements
from shared.settings import load_settings

SQL: Final = load_statements(Path(__file__).with_name("queries.sql"))


class Wanted(BaseModel):
    """What is posted."""

    message: str
    agent: str | None = None


class Stored(BaseModel):
    """The receipt."""

    id: uuid.UUID
    session: str


def create_app(database_url: str, connections: int) -> FastAPI:
    """Return an application of that one route."""
    pool: AsyncConnectionPool[AsyncConnection[Any]] = AsyncConnectionPool(
        database_url, min_size=2, max_size=connections, open=False, kwargs={"autocommit": True}
    )

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with pool:
            async with pool.connection() as connection:
                await connection.execute(SQL["create"].text)
            yield

    app = FastAPI(lifespan=lifespan)

    @app.get("/readyz")
    async def ready() -> None:
        """Answer that the process works."""

    @app.post("/v1/sessions/{session}/turns", status_code=202)
    async def store(session: str, wanted: Wanted) -> Stored:
        """Store what was posted, and answer once it is committed."""
        stored = Stored(id=uuid.uuid4(), session=session)
        row = {"id": stored.id, "session": session, "message": wanted.message}
        async with pool.connection() as connection:
            await connection.execute(SQL["insert"].text, row)
        return stored

    return app


def main() -> None:
    """Serve until a signal ends the process."""
    port, connections = (int(word) for word in sys.argv[1:3])
    app = create_app(load_settings().database_url.get_secret_value(), connections)
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=port,
        loop="uvloop",
        http="httptools",
        ws="none",
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
    )


if __name__ == "__main__":
    main()

"""Sessions: create, list, look at, remove (API-01)."""

from __future__ import annotations

import logging
from typing import Annotated, Final

from fastapi import APIRouter, Query, Response

from producer.doors import SECURITY, Keys, OwnedRoute, Owner, Parts
from producer.wire import (
    SessionAnswer,
    SessionCreatedAnswer,
    SessionRequest,
    SessionsAnswer,
    SessionsQuery,
    read_cursor,
    read_key,
    read_session_id,
    session_answer,
    write_cursor,
)
from shared.domain.errors import SessionMissing
from shared.domain.ids import new_session_id
from shared.sessions.log import NewSession

_log: Final = logging.getLogger(__name__)

router: Final = APIRouter(
    prefix="/v1/sessions", tags=["sessions"], route_class=OwnedRoute, dependencies=list(SECURITY)
)


@router.post(
    "",
    status_code=201,
    responses={200: {"model": SessionCreatedAnswer, "description": "Created before under the same key."}},
)
async def create_session(
    parts: Parts,
    owner: Owner,
    response: Response,
    keys: Keys,
    body: SessionRequest | None = None,
) -> SessionCreatedAnswer:
    """Create a session. The same key answers the first one again (200)."""
    wanted = body or SessionRequest()
    new = NewSession(
        id=new_session_id(),
        owner=owner,
        key=read_key(keys, None),
        title=wanted.title,
        meta=wanted.meta,
    )
    with parts.traffic.admitting():
        created = await parts.log.create(new)
    response.headers["Location"] = f"/v1/sessions/{created.session_id}"
    if created.duplicate:
        response.status_code = 200
    return SessionCreatedAnswer(session_id=created.session_id, duplicate=created.duplicate)


@router.get("")
async def list_sessions(
    parts: Parts, owner: Owner, query: Annotated[SessionsQuery, Query()]
) -> SessionsAnswer:
    """List the caller's sessions, last active first, in pages."""
    heads = await parts.log.list(owner, limit=query.limit, before=read_cursor(query.cursor))
    is_full = len(heads) == query.limit
    return SessionsAnswer(
        sessions=[session_answer(head) for head in heads], next=write_cursor(heads[-1]) if is_full else None
    )


@router.get("/{session_id}")
async def read_session(parts: Parts, owner: Owner, session_id: str) -> SessionAnswer:
    """Read a session's head."""
    return session_answer(await parts.log.head(read_session_id(session_id), owner))


@router.delete("/{session_id}", status_code=204, response_class=Response)
async def remove_session(parts: Parts, owner: Owner, session_id: str) -> None:
    """Remove a session with its children and all they hold.

    A turn that runs is given up: its worker stops within the bound of a cancel, its followers read `end` with `removed`.
    """
    with parts.traffic.admitting():
        removed = await parts.log.remove(read_session_id(session_id), owner)
    if not removed:
        raise SessionMissing("no such session", session=session_id)
    if parts.hints is not None:
        for gone in removed:
            parts.hints.publish_change(gone)
    _log.info("session removed", extra={"session": session_id, "removed": len(removed)})

"""What an admission meets and does over HTTP: interruptions, the bound over all owners, a host's own say."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from shared.domain.errors import TurnRefused
from shared.turns.admission import TurnToAdmit
from tests.support.producers import WORKER, calling, claim_turn, create_session, open_turn, running_producer
from tests.support.small_app import app as small_app
from tests.support.turn_world import NotedHints


class OneOnly:
    """A host that admits one turn of a session."""

    async def admit(self, turn: TurnToAdmit, proceed: Callable[[], Awaitable[None]]) -> None:
        await proceed()
        [row] = await turn.transaction.execute(
            "SELECT count(*) AS n FROM turns WHERE session_id = %s", [turn.session_id]
        )
        if row["n"] > 1:
            raise TurnRefused("one is enough", session=turn.session_id, reason="quota")


@pytest.mark.behaviour("API-02")
async def test_an_interrupting_turn_ends_the_session_s_others_and_tells_who_holds_them(
    database_url: str,
) -> None:
    async with calling(database_url) as (producer, client):
        hints = NotedHints()
        producer.application.state.parts = replace(producer.parts, hints=hints)
        session = await create_session(client)
        path = f"/v1/sessions/{session}/turns"
        first, second = [(await client.post(path, json={"message": "x"})).json() for _ in range(2)]
        claim = await claim_turn(producer.parts, first["turn_id"])
        await open_turn(producer.parts, claim)
        answer = await client.post(path, json={"message": "stop", "on_busy": "interrupt"})
        assert (answer.status_code, answer.json()["status"]) == (202, "ready")
        ended = (await client.get(first["links"]["turn"])).json()
        assert (ended["status"], ended["outcome"], ended["code"]) == ("ended", "cancelled", "turn.superseded")
        dropped = (await client.get(second["links"]["turn"])).json()
        assert (dropped["status"], dropped["code"]) == ("cancelled", "turn.superseded")
        assert hints.told == [(WORKER, claim.turn_id)]
        assert hints.changes == [session]


@pytest.mark.behaviour("DST-16")
async def test_a_full_system_refuses_new_turns_of_any_owner_until_some_are_done(database_url: str) -> None:
    async with calling(database_url, queued_turns_max=2) as (producer, client):
        session, other = await create_session(client), await create_session(client)
        for _ in range(2):
            await client.post(f"/v1/sessions/{session}/turns", json={"message": "x"})
        await producer.parts.waiting.count()
        full = await client.post(f"/v1/sessions/{other}/turns", json={"message": "x"})
        assert (full.status_code, full.json()["code"]) == (429, "turn.queue-full")
        assert full.json()["fields"] == {"bound": "queued turns in all"}
        assert int(full.headers["Retry-After"]) >= 1
        await claim_turn(producer.parts)
        await producer.parts.waiting.count()
        again = await client.post(f"/v1/sessions/{other}/turns", json={"message": "x"})
        assert again.status_code == 202


@pytest.mark.behaviour("SES-136", "SES-138")
async def test_a_turn_that_the_host_refuses_is_503_and_not_stored(database_url: str) -> None:
    app = replace(small_app, admission=OneOnly())
    async with calling(database_url, app=app) as (_producer, client):
        session = await create_session(client)
        path = f"/v1/sessions/{session}/turns"
        first = await client.post(path, json={"message": "x"}, headers={"Idempotency-Key": "k"})
        assert first.status_code == 202
        refused = await client.post(path, json={"message": "x"})
        assert (refused.status_code, refused.json()["code"]) == (503, "turn.refused")
        assert refused.json()["fields"] == {"session": session, "reason": "quota"}
        again = await client.post(path, json={"message": "x"}, headers={"Idempotency-Key": "k"})
        assert again.status_code == 200
        assert again.json()["turn_id"] == first.json()["turn_id"]


@pytest.mark.behaviour("API-02", "API-03")
@pytest.mark.parametrize("on_busy", ["reject", "enqueue", "interrupt"])
async def test_ten_turns_at_once_on_one_session_end_as_their_strategy_says(
    database_url: str, on_busy: str
) -> None:
    """G08, G04: whatever comes together through two producers, one turn is live and the order is that of the receipts."""
    async with running_producer(database_url) as one, running_producer(database_url) as two:
        key = await one.key_for("ann")
        async with one.client(key) as left, two.client(key) as right:
            session = await create_session(left)
            path = f"/v1/sessions/{session}/turns"
            answers = await asyncio.gather(
                *(
                    (left, right)[n % 2].post(
                        path,
                        json={"message": f"{n}", "on_busy": on_busy},
                        headers={"Idempotency-Key": f"k{n}"},
                    )
                    for n in range(10)
                )
            )
            admitted = [answer.json() for answer in answers if answer.status_code == 202]
            refused = {(a.status_code, a.json()["code"]) for a in answers if a.status_code != 202}
            turns = {r["position"]: (await left.get(r["links"]["turn"])).json() for r in admitted}
            # The same key again finds its own receipt, whatever became of the turn.
            number = next(n for n, answer in enumerate(answers) if answer.status_code == 202)
            again = await right.post(
                path,
                json={"message": f"{number}", "on_busy": on_busy},
                headers={"Idempotency-Key": f"k{number}"},
            )
            assert (again.status_code, again.json()["duplicate"]) == (200, True)
    assert sorted(turns) == list(range(1, len(admitted) + 1))
    states = [turns[position]["status"] for position in sorted(turns)]
    match on_busy:
        case "reject":
            assert (states, refused) == (["ready"], {(409, "session.busy")})
        case "enqueue":
            assert (states, refused) == (["ready"] + ["queued"] * 9, set())
        case _:
            assert (states, refused) == (["cancelled"] * 9 + ["ready"], set())
            codes = {turn["code"] for turn in turns.values() if turn["status"] == "cancelled"}
            assert codes == {"turn.superseded"}

"""Background tasks over HTTP: receipts, repeats, refusals with their places, pages, cancels, reconciles (API-08)."""

from __future__ import annotations

from typing import Any

import pytest

from shared.domain.errors import StoreUnavailable
from shared.domain.failpoints import FailpointError, Failpoints
from shared.tasks.port import INSTRUCTIONS_MAX_BYTES
from shared.wakes.inproc import InprocWakes
from tests.support.openapi import count_rows
from tests.support.producers import calling, create_session

TASK: dict[str, Any] = {"instructions": "Find out.", "mode": "spawn"}


@pytest.mark.behaviour("API-08", "TSK-02", "TSK-06", "TSK-09", "TSK-10", "TSK-12", "TSK-39")
async def test_a_start_is_durable_rings_for_its_turn_and_answers_its_repeat_as_the_first(
    database_url: str,
) -> None:
    wakes = InprocWakes()
    async with calling(database_url, wakes=wakes) as (_producer, client):
        session = await create_session(client)
        path = f"/v1/sessions/{session}/tasks"
        body = TASK | {"key": "report-1", "meta": {"tenant": "a"}, "deadline_in_s": 600}
        first = await client.post(path, json=body)
        assert first.status_code == 202, first.text
        receipt = first.json()
        assert (receipt["session_id"], receipt["after"], receipt["duplicate"]) == (session, 1, False)
        task_id = receipt["task_id"]
        assert first.headers["Location"] == receipt["links"]["task"] == f"{path}/{task_id}"
        assert wakes.rings == [("turns", (receipt["turn_id"],))]
        again = await client.post(path, json=body)
        assert (again.status_code, again.json()) == (200, receipt | {"duplicate": True})
        other = await client.post(path, json=body | {"instructions": "Something else."})
        assert (other.status_code, other.json()["code"]) == (409, "task.conflict")
        state = (await client.get(receipt["links"]["task"])).json()
        assert (state["status"], state["finished"], state["text"]) == ("pending", False, None)
        assert (state["mode"], state["instructions"]) == ("spawn", "Find out.")
        turn = (await client.get(f"/v1/turns/{receipt['turn_id']}")).json()
        assert (turn["origin"], turn["priority"], turn["session_id"]) == ("task", "background", task_id)
        child = (await client.get(receipt["links"]["session"])).json()
        assert (child["parent"], child["turns"]) == (session, 0)


@pytest.mark.behaviour("API-08")
async def test_a_key_names_one_task_of_its_session(database_url: str) -> None:
    async with calling(database_url) as (_producer, client):
        sessions = [await create_session(client) for _ in range(2)]
        ids = []
        for session in sessions:
            answers = [
                await client.post(
                    f"/v1/sessions/{session}/tasks", json=TASK, headers={"Idempotency-Key": "first"}
                )
                for _ in range(2)
            ]
            assert [a.status_code for a in answers] == [202, 200]
            ids += [a.json()["task_id"] for a in answers]
        assert (ids[0], ids[2]) == (ids[1], ids[3])
        assert ids[0] != ids[2]
        both = await client.post(
            f"/v1/sessions/{sessions[0]}/tasks",
            json=TASK | {"key": "other"},
            headers={"Idempotency-Key": "first"},
        )
        assert (both.status_code, both.json()["fields"]["field"]) == (422, "Idempotency-Key")


WRONG: tuple[tuple[str, dict[str, Any], int, str], ...] = (
    ("no instructions", {"instructions": None}, 422, "/instructions"),
    ("empty instructions", {"instructions": ""}, 422, "/instructions"),
    ("blank instructions", {"instructions": " \n"}, 422, "/instructions"),
    ("instructions with a NUL", {"instructions": "a\x00"}, 422, "/instructions"),
    ("a body too large", {"instructions": "x" * (INSTRUCTIONS_MAX_BYTES + 1)}, 413, ""),
    ("no mode", {"mode": None}, 422, "/mode"),
    ("another mode", {"mode": "copy"}, 422, "/mode"),
    ("an empty key", {"key": ""}, 422, "/key"),
    ("a long key", {"key": "x" * 257}, 422, "/key"),
    ("an id", {"task_id": "t"}, 422, "/task_id"),
    ("an agent of nobody", {"agent": "nobody"}, 422, "/agent"),
    ("a large meta", {"meta": {"x": "y" * 70_000}}, 413, "/meta"),
    ("a deadline that is over", {"deadline_in_s": 0}, 422, "/deadline_in_s"),
    ("a deadline too far", {"deadline_in_s": 1e9}, 422, "/deadline_in_s"),
    ("longer than the agent may", {"max_duration_s": 80_000}, 422, "/max_duration_s"),
    ("a field of nobody", {"priority": "normal"}, 422, "/priority"),
)


@pytest.mark.behaviour("API-08", "API-12", "API-13")
@pytest.mark.parametrize(("change", "status", "field"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
async def test_a_start_that_breaks_a_bound_names_its_place_and_stores_nothing(
    database_url: str, change: dict[str, Any], status: int, field: str
) -> None:
    async with calling(database_url) as (_producer, client):
        session = await create_session(client)
        before = count_rows(database_url)
        answer = await client.post(f"/v1/sessions/{session}/tasks", json=TASK | change)
        assert (answer.status_code, answer.json()["fields"]["field"]) == (status, field), answer.text
        assert count_rows(database_url) == before


@pytest.mark.behaviour("API-08", "API-16", "TSK-03", "TSK-04", "TSK-47")
async def test_what_cannot_be_started_or_is_not_there_is_refused_by_its_code(database_url: str) -> None:
    async with calling(database_url) as (producer, client):
        session = await create_session(client)
        path = f"/v1/sessions/{session}/tasks"
        started = [await client.post(path, json=TASK) for _ in range(2)]
        assert [answer.status_code for answer in started] == [202, 202]
        one = started[0].json()["task_id"]
        before = count_rows(database_url)
        third = await client.post(path, json=TASK)
        assert (third.status_code, third.json()["code"]) == (429, "task.limit")
        assert int(third.headers["Retry-After"]) >= 1
        nested = await client.post(f"/v1/sessions/{one}/tasks", json=TASK)
        assert (nested.status_code, nested.json()["code"]) == (422, "task.nested")
        missing = {
            (r.status_code, r.json()["code"])
            for r in [
                await client.get(f"{path}/nothing"),
                await client.get(f"{path}/no%20id%21"),
                await client.post(f"{path}/nothing/cancel"),
                await client.get(f"{path}/{session}"),
            ]
        }
        assert missing == {(404, "task.missing")}
        assert (await client.get("/v1/sessions/nobody/tasks")).json()["code"] == "session.missing"
        assert (await client.post("/v1/sessions/nobody/tasks/reconcile")).json()["code"] == "session.missing"
        async with producer.client(await producer.key_for("bob")) as bob:
            for response in (
                await bob.get(f"{path}/{one}"),
                await bob.post(f"{path}/{one}/cancel"),
                await bob.get(path),
                await bob.post(path, json=TASK),
                await bob.post(f"{path}/reconcile"),
            ):
                assert response.status_code == 404
        after = count_rows(database_url)
        assert after["turns"] == before["turns"]


@pytest.mark.behaviour("API-08", "TSK-39")
async def test_tasks_are_read_in_pages_the_newest_first(database_url: str) -> None:
    async with calling(database_url, tasks_max_running=20) as (_producer, client):
        session = await create_session(client)
        path = f"/v1/sessions/{session}/tasks"
        started = [(await client.post(path, json=TASK)).json()["task_id"] for _ in range(5)]
        seen: list[str] = []
        cursor: str | None = None
        while True:
            page = (
                await client.get(path, params={"limit": "2"} | ({"cursor": cursor} if cursor else {}))
            ).json()
            seen += [one["task_id"] for one in page["tasks"]]
            cursor = page["next"]
            if cursor is None:
                break
        assert seen == started[::-1]


@pytest.mark.behaviour("API-08", "TSK-40")
async def test_a_cancel_is_durable_and_a_repeat_answers_as_the_first(database_url: str) -> None:
    async with calling(database_url) as (_producer, client):
        session = await create_session(client)
        task_id = (await client.post(f"/v1/sessions/{session}/tasks", json=TASK)).json()["task_id"]
        path = f"/v1/sessions/{session}/tasks/{task_id}"
        for _ in range(2):
            assert (await client.post(f"{path}/cancel")).json() == {"cancelled": True, "status": "cancelled"}
        assert (await client.get(path)).json()["status"] == "cancelled"
        reconciled = (await client.post(f"/v1/sessions/{session}/tasks/reconcile")).json()
        assert reconciled == {"woken": [], "delivered": []}
        assert (await client.get(f"/v1/sessions/{session}")).json()["inbox_waiting"] == 0


@pytest.mark.behaviour("API-08", "TSK-41", "TSK-43")
async def test_a_reconcile_wakes_what_waits_and_delivers_what_is_owed_once(database_url: str) -> None:
    wakes = InprocWakes()
    async with calling(database_url, wakes=wakes) as (producer, client):
        session = await create_session(client)
        path = f"/v1/sessions/{session}/tasks"
        waiting = (await client.post(path, json=TASK)).json()
        late = (await client.post(path, json=TASK | {"deadline_in_s": 0.05})).json()
        wakes.rings.clear()
        while not await producer.parts.queue.expire():  # its deadline comes
            pass
        done = (await client.post(f"{path}/reconcile")).json()
        assert done == {"woken": [waiting["task_id"]], "delivered": [late["task_id"]]}
        [(queue, ids)] = wakes.rings
        assert queue == "turns" and waiting["turn_id"] in ids and len(ids) == 2
        assert (await client.post(f"{path}/reconcile")).json()["delivered"] == []
        head = (await client.get(f"/v1/sessions/{session}")).json()
        assert head["inbox_waiting"] == 1


@pytest.mark.behaviour("API-08", "TSK-10")
async def test_a_start_whose_answer_is_lost_is_started_once(database_url: str) -> None:
    async with calling(database_url) as (producer, client):
        session = await create_session(client)
        store = producer.parts.tasks
        starts = []

        class Lossy:
            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

            async def start(self, *given: Any) -> Any:
                starts.append(await store.start(*given))
                if len(starts) == 1:
                    raise StoreUnavailable("the database went away before it answered")
                return starts[-1]

        object.__setattr__(producer.parts, "tasks", Lossy())
        answer = await client.post(f"/v1/sessions/{session}/tasks", json=TASK)
        assert (answer.status_code, answer.json()["duplicate"]) == (202, False)
        assert len({one.turn_id for one in starts}) == 1


@pytest.mark.behaviour("API-08")
async def test_a_start_is_stored_before_anything_is_rung(database_url: str) -> None:
    wakes = InprocWakes()

    async def fail() -> None:
        raise FailpointError("task.unrung")

    failpoints = Failpoints({"task.unrung": fail})
    async with calling(database_url, wakes=wakes, failpoints=failpoints) as (_producer, client):
        session = await create_session(client)
        answer = await client.post(f"/v1/sessions/{session}/tasks", json=TASK)
        assert (answer.status_code, wakes.rings) == (500, [])
        [listed] = (await client.get(f"/v1/sessions/{session}/tasks")).json()["tasks"]
        assert listed["status"] == "pending"

"""The OpenAPI document against the service: requests that it allows and forbids, and answers that it must know."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, assume, given, settings
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.config import GenerationConfig, ProjectConfig, ProjectsConfig, SchemathesisConfig
from schemathesis.core.result import Ok

from producer.app import create_app
from shared.database.embedded import EmbeddedServers
from tests.support.producer_process import ProducerProcess, run_cli
from tests.support.servers import TEMPLATE

#: Requests of one operation in one way: all of them together take well under a minute.
EXAMPLES: Final = 8
TIMEOUT_S: Final = 15.0


def without_parts() -> Any:
    raise AssertionError("the document alone needs no parts")


WITHOUT_NUL: Final = GenerationConfig(allow_x00=False)
DOCUMENT: Final = create_app(without_parts).openapi()
SCHEMA: Final = schemathesis.openapi.from_dict(
    DOCUMENT,
    # A NUL is refused everywhere (decision 22), which the schema of any JSON cannot say.
    config=SchemathesisConfig(projects=ProjectsConfig(default=ProjectConfig(generation=WITHOUT_NUL))),
)
OPERATIONS: Final[dict[str, APIOperation[Any, Any, Any, Any]]] = {
    found.ok().label: found.ok() for found in SCHEMA.get_all_operations() if isinstance(found, Ok)
}
#: A stream of a session goes on for ever.
ENDLESS: Final = "GET /v1/sessions/{session_id}/events"


def can_be_wrong(label: str) -> bool:
    """Whether a request of this operation can break the document at all."""
    method, path = label.split(" ")
    operation = DOCUMENT["paths"][path][method.lower()]
    return bool(operation.get("parameters") or operation.get("requestBody"))


RIGHT, WRONG = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
WAYS: Final = [
    *((label, RIGHT) for label in OPERATIONS),
    *((label, WRONG) for label in OPERATIONS if can_be_wrong(label)),
]
NAMED_WAYS: Final = [(label, mode) for label, mode in WAYS if "{" in label and label != ENDLESS]


def name_of(value: object) -> str | None:
    return value.value if isinstance(value, GenerationMode) else None


@dataclass(frozen=True)
class Service:
    """A real producer, a caller's key, and ids of things of that caller."""

    url: str
    headers: dict[str, str]
    ids: dict[str, str]


@pytest.fixture(scope="module")
def service(servers: EmbeddedServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder, name = tmp_path_factory.mktemp("schema"), f"schema_{uuid.uuid4().hex[:12]}"
    url = servers.create_database(name, template=TEMPLATE)
    key = run_cli("keys", "create", "--owner", "ann", cwd=folder, DATABASE_URL=url).stdout.strip()
    headers = {"Authorization": f"Bearer {key}"}
    with ProducerProcess(folder, DATABASE_URL=url, TURNKEEPER_LOOPBACK_OWNER="") as producer:
        producer.await_ready()
        yield Service(producer.url, headers, make_things(producer.url, headers))
    servers.drop_database(name)


def make_things(url: str, headers: dict[str, str]) -> dict[str, str]:
    """Make one thing of each kind that a path can name; the turn has ended, so that following it ends too."""
    with httpx2.Client(base_url=url, headers=headers, timeout=TIMEOUT_S, trust_env=False) as client:
        session = client.post("/v1/sessions", json={}).json()["session_id"]
        turn = client.post(f"/v1/sessions/{session}/turns", json={"message": "x"}).json()
        client.post(turn["links"]["cancel"]).raise_for_status()
        correction = {"text": "x", "expected_revision": None, "operation_id": "op"}
        client.put("/v1/memory/documents/notes", json=correction).raise_for_status()
    ids = {"session_id": session, "turn_id": turn["turn_id"], "document_id": "notes"}
    return ids | {"intent_id": str(uuid.uuid4())}


def exercise(service: Service, label: str, mode: GenerationMode, **fixed: Any) -> None:
    """Send generated requests of an operation, and require that the document knows what is answered."""

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=OPERATIONS[label].as_strategy(generation_mode=mode, **fixed))
    def send(case: Case[Any]) -> None:
        assume(not (fixed and wants_stream(case)))
        if mode is RIGHT:
            leave_out_what_no_schema_can_say(case)
        case.call_and_validate(base_url=service.url, headers=service.headers, timeout=TIMEOUT_S)

    send()


def leave_out_what_no_schema_can_say(case: Case[Any]) -> None:
    """A cursor that was given out, an agent of the app and what it allows, one key in two places, a turn to go on from."""
    for part, names in ((case.query, ["cursor"]), (case.body, ["agent", "max_duration_s", "key", "resumes"])):
        if isinstance(part, dict):
            for name in names:
                part.pop(name, None)


def wants_stream(case: Case[Any]) -> bool:
    """Whether the answer would be a stream: of a turn that nobody runs here."""
    stream = (case.query or {}).get("stream", "false")
    return str(stream).lower() not in ("false", "0", "off", "no", "n", "f")


@pytest.mark.behaviour("API-12")
@pytest.mark.parametrize(("label", "mode"), WAYS, ids=name_of)
def test_generated_requests_are_answered_as_the_document_says(
    service: Service, label: str, mode: GenerationMode
) -> None:
    exercise(service, label, mode)


@pytest.mark.behaviour("API-12")
@pytest.mark.parametrize(("label", "mode"), NAMED_WAYS, ids=name_of)
def test_generated_requests_about_what_is_there_are_answered_as_the_document_says(
    service: Service, label: str, mode: GenerationMode
) -> None:
    exercise(service, label, mode, path_parameters=service.ids)

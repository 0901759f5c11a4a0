"""The table from errors to HTTP answers."""

from __future__ import annotations

import inspect
from uuid import uuid4

import orjson
import pytest
from fastapi.exceptions import RequestValidationError

from producer.problems import (
    MEDIA_TYPE,
    STATUSES,
    headers_of,
    internal_problem,
    json_pointer,
    problem_of,
    problem_of_status,
    problem_of_validation,
    problem_response,
    status_of,
)
from shared.domain import errors as e


@pytest.mark.behaviour("API-12")
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (e.MalformedInput("x"), 400),
        (e.Unauthenticated("x"), 401),
        (e.InvalidCredentials("x"), 401),
        (e.SessionMissing("x"), 404),
        (e.TurnMissing("x"), 404),
        (e.SessionBusy("x"), 409),
        (e.TurnDuplicate("x"), 409),
        (e.SessionExists("x"), 409),
        (e.InputTooLarge("x", field="/a", bound="1"), 413),
        (e.UnsupportedMedia("x"), 415),
        (e.InvalidInput("x", field="/a", bound="1"), 422),
        (e.KeyConflict("x"), 422),
        (e.AttachmentRejected("x"), 422),
        (e.QueueFull("x"), 429),
        (e.StoreDefect("x"), 500),
        (e.Draining("x"), 503),
        (e.TurnRefused("x"), 503),
        (e.SessionContended("x"), 503),
        (e.StoreBusy("x"), 503),
        (e.StoreUnavailable("x"), 503),
    ],
)
def test_each_error_has_the_status_of_who_must_act(error: e.TurnkeeperError, status: int) -> None:
    assert status_of(error) == status


def test_every_error_class_of_ours_has_a_status_through_its_family() -> None:
    classes = [c for _, c in inspect.getmembers(e, inspect.isclass) if issubclass(c, e.TurnkeeperError)]
    assert len(classes) > 30
    assert all(any(kind in STATUSES for kind in cls.__mro__) for cls in classes)


def test_a_problem_carries_code_title_detail_and_fields() -> None:
    turn = uuid4()
    response = problem_response(problem_of(e.SessionBusy("a turn is open", turn=turn)), request_id="r1")
    assert response.status_code == 409
    assert response.media_type == MEDIA_TYPE
    assert orjson.loads(bytes(response.body)) == {
        "type": "urn:turnkeeper:problem:session.busy",
        "title": "Session is busy",
        "status": 409,
        "code": "session.busy",
        "detail": "a turn is open",
        "fields": {"turn": str(turn)},
        "errors": [],
        "request_id": "r1",
    }


@pytest.mark.behaviour("API-12")
def test_what_broke_inside_is_not_told() -> None:
    told = problem_of(e.StoreDefect("relation turns, password hunter2", statement="admit")).model_dump_json()
    assert "hunter2" not in told
    assert "admit" not in told
    assert "store.defect" in told


@pytest.mark.behaviour("API-12")
def test_limits_and_trouble_outside_say_when_to_come_again() -> None:
    assert headers_of(e.QueueFull("x", retry_after_s=1.2))["Retry-After"] == "2"
    assert headers_of(e.StoreBusy("x", retry_after_s=0.1))["Retry-After"] == "1"
    assert "Retry-After" not in headers_of(e.SessionBusy("x"))


def test_a_missing_key_is_told_how_to_authenticate() -> None:
    assert headers_of(e.Unauthenticated("x"))["WWW-Authenticate"].startswith("Bearer")


def test_an_oversized_body_ends_the_connection() -> None:
    assert headers_of(e.InputTooLarge("x", field="", bound="1"))["Connection"] == "close"


@pytest.mark.behaviour("API-12")
def test_validation_points_at_each_place_and_repeats_no_value() -> None:
    error = RequestValidationError(
        [
            {"type": "extra", "loc": ("body", "a/b", 0), "msg": "not permitted", "input": "hunter2"},
            {"type": "range", "loc": ("query", "limit"), "msg": "too large", "input": 10**9},
        ]
    )
    problem = problem_of_validation(error)
    assert problem.status == 422
    assert [(p.pointer, p.parameter) for p in problem.errors] == [("/a~1b/0", None), (None, "limit")]
    assert "hunter2" not in problem.model_dump_json()


def test_a_bound_broken_inside_the_body_points_there_and_one_of_a_header_names_it() -> None:
    inside = problem_of(e.InvalidInput("x", field="/message", bound="b")).errors[0]
    header = problem_of(e.InvalidInput("x", field="Idempotency-Key", bound="b")).errors[0]
    assert (inside.pointer, inside.parameter) == ("/message", None)
    assert (header.pointer, header.parameter) == (None, "Idempotency-Key")


def test_unknown_routes_and_methods_have_codes_of_their_own() -> None:
    assert problem_of_status(404, "Not Found").code == "route.missing"
    assert problem_of_status(405, "Method Not Allowed").code == "route.method"
    assert internal_problem().status == 500


def test_the_pointer_of_the_whole_document_is_empty() -> None:
    assert json_pointer([]) == ""

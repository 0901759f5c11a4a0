"""The logs of a process: one form for all loggers, ids in, what people wrote out."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator

import psycopg
import pytest
from pydantic import BaseModel, ValidationError

from shared.domain.errors import CorruptRecord, StoreDefect, TurnkeeperError
from shared.telemetry.logs import WITHHELD, configure_logs, log_context


@pytest.fixture(autouse=True)
def root_logger_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.behaviour("OPS-10")
def test_a_line_is_one_json_object_with_its_ids() -> None:
    out = io.StringIO()
    configure_logs("json", "info", stream=out)
    with log_context(request="r1"):
        logging.getLogger("producer.x").info("turn admitted", extra={"turn": "t1", "session": "s1"})
    line = json.loads(out.getvalue())
    assert line["event"] == "turn admitted"
    assert (line["request"], line["turn"], line["session"]) == ("r1", "t1", "s1")
    assert (line["level"], line["logger"]) == ("info", "producer.x")


@pytest.mark.behaviour("OPS-10")
def test_what_people_wrote_and_who_they_are_is_withheld_whatever_logger_adds_it() -> None:
    out = io.StringIO()
    configure_logs("json", "info", stream=out)
    logging.getLogger("some.library").warning("x", extra={"prompt": "hunter2", "owner": "ann", "turn": "t1"})
    line = json.loads(out.getvalue())
    assert (line["prompt"], line["owner"], line["turn"]) == (WITHHELD, WITHHELD, "t1")
    assert "hunter2" not in out.getvalue()


@pytest.mark.behaviour("OPS-10")
def test_the_console_form_is_for_people_and_holds_the_same() -> None:
    out = io.StringIO()
    configure_logs("console", "info", stream=out)
    logging.getLogger("x").info("hello", extra={"turn": "t1"})
    assert "hello" in out.getvalue()
    assert "t1" in out.getvalue()
    assert not out.getvalue().startswith("{")


def test_the_level_is_the_settings_and_a_second_configuration_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure_logs("json", "info", stream=first)
    configure_logs("json", "warning", stream=second)
    logging.getLogger("x").info("not this")
    logging.getLogger("x").warning("this")
    assert first.getvalue() == ""
    assert json.loads(second.getvalue())["event"] == "this"


def test_an_exception_is_in_its_line() -> None:
    out = io.StringIO()
    configure_logs("json", "info", stream=out)
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("x").exception("failed")
    assert "ValueError: why" in json.loads(out.getvalue())["exception"]


#: Not in the lines that raise: a traceback shows those.
SAID = "My favourite colour is teal."
ROW = f"new row\nDETAIL: Failing row contains (ann-5c1d, {SAID})."


class Stored(BaseModel):
    count: int


def refused_value() -> None:
    try:
        Stored.model_validate({"count": SAID})
    except ValidationError as error:
        raise CorruptRecord("a record does not decode", seq=3) from error


def refused_row() -> None:
    try:
        raise psycopg.errors.CheckViolation(ROW)
    except psycopg.Error:
        give_up()


def give_up() -> None:
    """Raise with the driver's error as a context that nobody named as the cause."""
    raise StoreDefect("the database refused a statement")


@pytest.mark.behaviour("OPS-10")
@pytest.mark.parametrize("fail", [refused_value, refused_row])
def test_a_logged_error_names_its_causes_and_repeats_no_value_of_theirs(fail: Callable[[], None]) -> None:
    out = io.StringIO()
    configure_logs("json", "info", stream=out)
    try:
        fail()
    except TurnkeeperError as error:
        logging.getLogger("t").error("failed", exc_info=error)
        text = json.loads(out.getvalue())["exception"]
        assert error.message in text
    assert "which led to" in text and fail.__name__ in text
    assert ("ValidationError" in text) or ("CheckViolation" in text)
    assert "teal" not in text and "ann-5c1d" not in text


def test_every_member_of_a_group_is_told() -> None:
    out = io.StringIO()
    configure_logs("json", "info", stream=out)
    group = ExceptionGroup("both", [KeyError("left"), ValueError("right")])
    logging.getLogger("t").error("failed", exc_info=group)
    text = json.loads(out.getvalue())["exception"]
    assert "left" in text and "right" in text

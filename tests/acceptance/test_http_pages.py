"""The pages for integrators: their examples run as they stand, and the tables of the HTTP page say what is so."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from producer.app import create_app
from producer.problems import FRAMEWORK_CODES, STATUSES
from shared.database.embedded import EmbeddedServers
from shared.database.migrate import migrate
from shared.domain import errors
from shared.domain.bounds import BODY_MAX_BYTES, BODY_MAX_DEPTH, TURN_BODY_MAX_BYTES
from shared.domain.errors import TurnkeeperError
from shared.settings import Settings
from tests.support.servers import TUNE
from tests.support.system import System

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
PAGE: Final = (DOCS / "http.md").read_text(encoding="utf-8")
BASE: Final = "BASE=http://localhost:8000"
needs_jq: Final = pytest.mark.skipif(shutil.which("jq") is None, reason="the examples of the pages use jq")


def rows_of(title: str) -> list[list[str]]:
    """Return the cells of the table under a heading, without its head."""
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    home = tmp_path_factory.mktemp("pages")
    with EmbeddedServers(home / "servers", tune=TUNE) as pair:
        migrate(pair.database_url)
        with System(pair, home / "run") as system:
            system.start_producer()
            system.start_worker()
            yield system


def shown_by(page: str, system: System) -> str:
    """Run every shell block of a page as one script and return what it prints."""
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(blocks).replace(BASE, f"BASE={system.http.base_url}")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.behaviour("API-08")
@needs_jq
def test_every_example_of_the_page_on_inboxes_runs_as_it_stands(system: System) -> None:
    told = json.loads(shown_by("inbox.md", system))
    assert (told["id"], told["seq"], told["pending"], told["duplicate"]) == ("build-17", 1, 1, False)
    assert system.finished(told["turn_id"])["outcome"] == "completed"
    assert "Build 17 failed: two tests." in system.records(told["session_id"])[1]["data"]


@pytest.mark.behaviour("API-08")
@needs_jq
def test_every_example_of_the_page_on_tasks_runs_as_it_stands(system: System) -> None:
    decoder, rest, told = json.JSONDecoder(), shown_by("tasks.md", system).strip(), []
    while rest:
        value, end = decoder.raw_decode(rest)
        told.append(value)
        rest = rest[end:].lstrip()
    task, listed, _, cancelled = told
    assert (task["status"], bool(task["text"]), listed) == ("completed", True, 1)
    assert cancelled["cancelled"] is False, "it was over"


@pytest.mark.behaviour("API-01", "API-02", "API-03", "API-07")
@needs_jq
def test_every_example_of_the_page_runs_as_it_stands(system: System) -> None:
    shown = shown_by("http.md", system)
    assert '"outcome": "completed"' in shown
    assert shown.count("event: turn.reply") == 2
    assert shown.count("event: end") == 2
    assert '"duplicate": true' in shown
    assert '"code": "turn.key-conflict"' in shown
    # The turn had long finished when it was cancelled.
    assert '"reason": "finished"' in shown


def test_every_json_block_of_the_page_is_json() -> None:
    blocks = re.findall(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len([json.loads(block) for block in blocks]) == 2


def without_parts() -> None:
    raise AssertionError("the document alone needs no parts")


def test_the_page_lists_every_route() -> None:
    document = create_app(without_parts).openapi()  # type: ignore[arg-type]  # only its routes are looked at
    served = {(m.upper(), path) for path, methods in document["paths"].items() for m in methods}
    listed = set()
    for row in rows_of("Routes"):
        *methods, path = re.findall(r"[A-Z]+(?=`|,| )|/[\w/{}]+", row[0])
        listed |= {(method, path) for method in methods}
    plain = {(method, re.sub(r"\{\w+\}", "{id}", path)) for method, path in served}
    assert listed == plain


@pytest.mark.behaviour("API-12")
def test_the_page_gives_every_code_its_status() -> None:
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TurnkeeperError)
    ]
    statuses = {
        kind.code: next(STATUSES[base] for base in kind.__mro__ if base in STATUSES) for kind in kinds
    }
    statuses |= {code: status for status, code in FRAMEWORK_CODES.items()}
    told = {
        code: {int(status) for status in row[0].split(",")}
        for row in rows_of("Errors")
        for code in re.findall(r"`([\w.-]+)`", row[1])
    }
    wrong = {code: allowed for code, allowed in told.items() if statuses.get(code) not in allowed}
    assert wrong == {}
    assert {status for allowed in told.values() for status in allowed} == {
        400, 401, 404, 405, 409, 413, 415, 422, 429, 500, 503
    }  # fmt: skip


def test_the_page_tells_the_bounds_that_hold() -> None:
    told = {row[0]: row[1] for row in rows_of("Bounds")}
    fields = Settings.model_fields
    assert told["body of a turn"] == f"{TURN_BODY_MAX_BYTES // 2**20} MiB"
    assert told["other bodies"] == f"{BODY_MAX_BYTES // 2**20} MiB"
    assert told["depth of a body"] == str(BODY_MAX_DEPTH)
    per_session, per_owner = (
        fields["queued_turns_per_session"].default,
        fields["queued_turns_per_owner"].default,
    )
    assert told["waiting turns of a session, of an owner"] == f"{per_session}; {per_owner:,}"
    writes, burst = fields["writes_per_s"].default, fields["writes_burst"].default
    assert told["writes of an owner"] == f"{writes:g} a second, {burst} at once"

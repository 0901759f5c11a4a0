"""The page for integrators: its examples run as they stand, and its tables say what is so."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from producer.app import create_app
from producer.problems import FRAMEWORK_CODES, STATUSES
from shared.database.embedded import EmbeddedServers
from shared.domain import errors
from shared.domain.bounds import BODY_MAX_BYTES, BODY_MAX_DEPTH, TURN_BODY_MAX_BYTES
from shared.domain.errors import TurnkeeperError
from shared.settings import Settings
from tests.support.system import System

PAGE: Final = (Path(__file__).resolve().parents[2] / "docs" / "http.md").read_text(encoding="utf-8")
BASE: Final = "BASE=http://localhost:8000"


def rows_of(title: str) -> list[list[str]]:
    """Return the cells of the table under a heading, without its head."""
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.behaviour("API-01", "API-02", "API-03", "API-07")
@pytest.mark.skipif(shutil.which("jq") is None, reason="the examples of the page use jq")
def test_every_example_of_the_page_runs_as_it_stands(own_servers: EmbeddedServers, tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    with System(own_servers, tmp_path / "run") as system:
        system.start_producer()
        system.start_worker()
        script = "\n".join(blocks).replace(BASE, f"BASE=http://127.0.0.1:{system.port}")
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    shown = done.stdout
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

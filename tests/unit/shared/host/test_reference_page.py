"""The reference page of the vocabulary: it is current, it names every kind once, and its examples run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from shared.domain.errors import InvalidInput
from shared.host.endings import TURN_BEGIN_CODES
from shared.host.reference import WRITERS, render_reference
from shared.sessions.vocabulary import JOURNAL_KINDS, RESERVED_KINDS, SCHEMAS, journal_schema_of

ROOT: Final = Path(__file__).resolve().parents[4]
PAGE: Final = ROOT / "docs" / "reference" / "records.md"
PRINTED: Final = {
    "a turn": "stored through 3\ncups 1\nopen None\n",
    "an inbox": "asked ('build-17',) Build 17 failed: two tests.\nDrained(turns=1, pending=0, stopped='empty')\n",
    "a resume": "refused: None\nturn 2 resumes 1\nturn.not-resumable superseded\n",
    "a task": "[Background task <task> completed]\n<task-output>\ndone: count the cups\n</task-output>\ncompleted\n",
}


def examples_of(page: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)


EXAMPLES: Final = dict(
    zip(
        ("a turn", "an adapter of a host's own", "an inbox", "a resume", "a task"),
        [
            example
            for page in ("sessions", "inbox", "resuming", "tasks")
            for example in examples_of(f"{page}.md")
        ],
        strict=True,
    )
)


@pytest.mark.behaviour("SES-140")
def test_the_reference_page_is_what_the_code_says() -> None:
    """Write it again with ``PAGE.write_text(render_reference())``."""
    page = render_reference()
    assert PAGE.read_text(encoding="utf-8") == page
    for kind in RESERVED_KINDS:
        assert f"`{kind}`" in page
    for code in TURN_BEGIN_CODES:
        assert f"`{code}`" in page


@pytest.mark.behaviour("SES-140", "SES-141")
def test_each_kind_of_the_framework_has_its_schema_and_no_other_kind_has_one() -> None:
    for kind in JOURNAL_KINDS:
        assert journal_schema_of(kind) is SCHEMAS.get(kind)
    assert set(SCHEMAS) <= JOURNAL_KINDS
    for kind in ("note.added", *(RESERVED_KINDS - JOURNAL_KINDS)):
        with pytest.raises(InvalidInput):
            journal_schema_of(kind)


@pytest.mark.behaviour("SES-139", "SES-145", "SES-149", "SES-151", "SES-152", "SES-153")
def test_each_kind_of_the_framework_has_one_writer() -> None:
    assert WRITERS.keys() == JOURNAL_KINDS
    by_memory = {kind for kind, writer in WRITERS.items() if writer.startswith("memory")}
    assert by_memory == {kind for kind in JOURNAL_KINDS if kind.startswith("memory.")} | {"turn.reply"}
    assert {kind for kind, writer in WRITERS.items() if writer == "background tasks"} == {
        kind for kind in JOURNAL_KINDS if kind.startswith("task.")
    }
    assert WRITERS["request.prepared"].startswith("the turn, before each model call")
    assert "inbox" in WRITERS["inbox.dropped"] and WRITERS["inbox.queued"] == "a delivery"


@pytest.mark.behaviour("KIT-04")
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_of_the_pages_on_sessions_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(EXAMPLES[name], name, "exec"), {"__name__": "example"})
    assert re.sub(r"ses_\w+", "<task>", capsys.readouterr().out) == PRINTED.get(name, "")

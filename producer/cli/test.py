"""``turnkeeper test``: everything that must hold before a change is done; with arguments, pytest alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import typer

from shared.domain.errors import ConfigError

ROOT: Final = Path(__file__).resolve().parents[2]
#: Most tests wait more than they work: one process more than cores, each with servers of its own, whole files each. In the
#: order of the folders: sorted by their numbers of tests, files of a few long tests would come last, each waited for alone.
SIDE_BY_SIDE: Final = (
    *("-n", str(min(8, 1 + (os.cpu_count() or 1))), "--dist", "loadfile", "--no-loadscope-reorder"),
    *("-m", "not alone"),
)
#: Tests that want the machine for themselves.
ALONE: Final = ("-m", "alone")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def command(context: typer.Context) -> None:
    """Run ruff, mypy, the import contracts and pytest, and stop at the first that fails; arguments go to pytest."""
    if not (ROOT / "tests").is_dir():
        raise ConfigError("tests run in a checkout only", field="test")
    if not context.args:
        for argv in _checks(Path(sys.executable).parent):
            print(f"== {' '.join((Path(argv[0]).name, *argv[1:]))}", flush=True)
            status = subprocess.run(argv, cwd=ROOT, check=False).returncode
            if status != 0:
                raise typer.Exit(status)
        print(f"== pytest {' '.join(ALONE)}", flush=True)
    os.chdir(ROOT)
    os.execv(sys.executable, [sys.executable, "-m", "pytest", "-q", *(context.args or ALONE)])


def _checks(programs: Path) -> Iterator[list[str]]:
    """Yield the checks that come before the tests, the quickest first."""
    yield [str(programs / "ruff"), "check"]
    yield [str(programs / "ruff"), "format", "--check"]
    yield [str(programs / "mypy")]
    yield [str(programs / "lint-imports")]
    yield [sys.executable, "-m", "pytest", "-q", *SIDE_BY_SIDE]

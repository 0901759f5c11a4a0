"""Makes the checkout's ``.venv`` what ``pyproject.toml`` and ``constraints.txt`` say; run by ``./turnkeeper`` by path.

Standard library only: nothing is installed yet. Several first runs at once wait for one another. What was installed is
kept as copies of both files beside a note of the folder and the extras, written last, so that the script's check is
two comparisons and an interrupted installation counts as none.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

INPUTS: Final = ("pyproject.toml", "constraints.txt")
STAMPS: Final = "turnkeeper"
FAILED_STATUS: Final = 1


def main(arguments: list[str]) -> int:
    """Bring ``<root>/.venv`` up to date with the named extras: ``bootstrap.py <root> embedded[,test]``."""
    root, extras = Path(arguments[0]), arguments[1]
    with (root / "turnkeeper").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_current(root, extras):
            return 0
        try:
            _install(root, extras)
        except subprocess.CalledProcessError as error:
            sys.stderr.write(f"turnkeeper: set-up failed: {' '.join(map(str, error.cmd))}\n")
            return FAILED_STATUS
        except _SetUpError as error:
            sys.stderr.write(f"turnkeeper: {error}\n")
            return FAILED_STATUS
        _write_stamps(root, extras)
    return 0


class _SetUpError(Exception):
    """The machine lacks something; the message names it."""


def is_current(root: Path, extras: str) -> bool:
    """Say whether the last complete installation was of these files, this folder and at least these extras."""
    stamps = root / ".venv" / STAMPS
    try:
        folder, installed = (stamps / "installed").read_text().splitlines()
        same = all((stamps / name).read_bytes() == (root / name).read_bytes() for name in INPUTS)
    except (OSError, ValueError):
        return False
    has_all = set(extras.split(",")) <= set(installed.split(","))
    return same and folder == str(root) and has_all and (root / ".venv/bin/python").exists()


def _install(root: Path, extras: str) -> None:
    venv = root / ".venv"
    uv = shutil.which("uv")
    shutil.rmtree(venv / STAMPS, ignore_errors=True)
    if not _is_usable(venv):
        sys.stderr.write("turnkeeper: making .venv\n")
        shutil.rmtree(venv, ignore_errors=True)
        _make_venv(venv, uv)
    sys.stderr.write("turnkeeper: installing the pinned dependencies (once)\n")
    python = str(venv / "bin" / "python")
    tool = [uv, "pip", "install", "--quiet", "--python", python] if uv else _pip(python)
    wanted = ["-c", str(root / "constraints.txt"), "-e", f"{root}[{extras}]"]
    # Our output is the command's: an installer's chatter goes to the error stream.
    subprocess.run([*tool, *wanted], check=True, stdout=sys.stderr, cwd=root)


def _pip(python: str) -> list[str]:
    return [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]


def _is_usable(venv: Path) -> bool:
    """Say whether the folder's Python runs and is the one we would make it with (it may be of another machine)."""
    try:
        code = "import sys; print(sys.version_info[:2] >= (3, 11) and sys.prefix)"
        ran = subprocess.run(
            [venv / "bin" / "python", "-c", code], capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return Path(ran.stdout.strip()).resolve() == venv.resolve()


def _make_venv(venv: Path, uv: str | None) -> None:
    if uv:
        subprocess.run([uv, "venv", "--quiet", "--seed", "--python", sys.executable, str(venv)], check=True)
        return
    probe = subprocess.run([sys.executable, "-c", "import ensurepip, venv"], capture_output=True, check=False)
    if probe.returncode != 0:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise _SetUpError(
            f"this Python cannot make virtual environments: install python{version}-venv (on Debian and Ubuntu: "
            f"apt install python{version}-venv), or install uv"
        )
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)


def _write_stamps(root: Path, extras: str) -> None:
    stamps = root / ".venv" / STAMPS
    stamps.mkdir(exist_ok=True)
    for name in INPUTS:
        shutil.copyfile(root / name, stamps / name)
    (stamps / "installed").write_text(f"{root}\n{extras}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The door of the command line: finds the command's module, runs it, turns typed errors into one line.

A module offers ``command`` (one function) or ``app`` (a ``typer.Typer``, for several). The help text
imports none of them.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import keyword
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import typer

from shared.domain.errors import TurnkeeperError

COMMANDS: Final[Mapping[str, str]] = {
    "dev": "Run everything on this machine: servers, migrations, producer, workers, Flower.",
    "demo": "Show it: a fact told in one session, recalled in another, withdrawn.",
    "torture": "Prove it: kill, cut and restart everything under load, and count what was lost.",
    "chat": "Talk to a running producer from this terminal.",
    "status": "Show pools, workers and what is owed.",
    "retry": "Put items that were given up back into their pool.",
    "move-revision": "Give waiting turns of an unserved agent revision another one.",
    "export": "Write a session to a transfer file.",
    "import": "Make a session from a transfer file.",
    "verify": "Recheck the digest chain of a session or a transfer file.",
    "prune": "Take away what is old and owed to nobody; archive old records.",
    "serve": "Run the producer.",
    "worker": "Run one worker process of a pool.",
    "migrate": "Bring the database to this version's schema.",
    "keys": "Create, list and revoke API keys.",
    "owners": "Show and set what one owner may: caps, quotas, rates.",
    "bench": "Measure it beside baselines: empty Celery jobs, bare commits, plain routes.",
    "test": "Check everything: lint, types, layers, tests.",
    "spec": "Count the behaviour rows that tests prove.",
}

USAGE_STATUS: Final = 2
INTERRUPTED_STATUS: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 2 for a typed error or wrong usage, 130 for Ctrl-C.

    A command that ends with a status of its own raises ``SystemExit``.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    name, rest = (words[0], words[1:]) if words else ("", [])
    if name in ("", "-h", "--help", "help"):
        print(_help())
        return 0
    if name == "--version":
        print(f"turnkeeper {importlib.metadata.version('turnkeeper')}")
        return 0
    if name not in COMMANDS:
        print(f"turnkeeper: no command {name!r}; see turnkeeper --help", file=sys.stderr)
        return USAGE_STATUS
    # Last, so that a host's modules beside it are found and never stand before ours.
    sys.path.append(str(Path.cwd()))
    try:
        return _run(name, rest)
    except TurnkeeperError as error:
        print(f"turnkeeper: {error.message} [{error.code}]", file=sys.stderr)
        return USAGE_STATUS
    except KeyboardInterrupt:
        return INTERRUPTED_STATUS


def module_of(name: str) -> str:
    """Return the module of a command."""
    plain = name.replace("-", "_")
    return f"producer.cli.{plain}_" if keyword.iskeyword(plain) else f"producer.cli.{plain}"


def _run(name: str, arguments: list[str]) -> int:
    module = importlib.import_module(module_of(name))
    app: typer.Typer | None = getattr(module, "app", None)
    if app is None:
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        app.command()(module.command)
    app(args=arguments, prog_name=f"turnkeeper {name}")
    return 0


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = (f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items())
    return "\n".join(("Usage: turnkeeper COMMAND [OPTIONS]; each command has --help.", "", *lines))

"""The command line: ``turnkeeper <command>``. Each command is a module of its own, imported only when it is called."""

from producer.cli.entry import main

__all__ = ["main"]

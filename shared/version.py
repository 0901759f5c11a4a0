"""The version of this distribution, as processes report it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def _read() -> str:
    try:
        return version("turnkeeper")
    except PackageNotFoundError:
        return "0.0.0+source"


VERSION = _read()

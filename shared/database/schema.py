"""The range of schema versions this code runs on: expand in one release, contract in the next (core 11)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared.domain.errors import SchemaOutOfRange

#: The schema this code was written for.
VERSION = 6
#: The oldest code that may run on a schema this code's migrations made.
COMPATIBLE_FROM = 2


def require_compatible(row: Mapping[str, Any] | None, *, code_version: int = VERSION) -> None:
    """Raise ``SchemaOutOfRange`` unless ``compatible_from <= code_version <= version`` (OPS-05)."""
    if row is None:
        raise SchemaOutOfRange(
            "the database has no schema version; run `turnkeeper migrate`", code=code_version
        )
    version, compatible_from = int(row["version"]), int(row["compatible_from"])
    if not compatible_from <= code_version <= version:
        raise SchemaOutOfRange(
            f"this code is for schema {code_version}; the database is at {version} and takes {compatible_from}..{version}",
            code_version=code_version,
            version=version,
            compatible_from=compatible_from,
        )

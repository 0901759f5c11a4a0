"""``turnkeeper migrate``: bring the database to this version's schema (OPS-05)."""

from __future__ import annotations

from typing import Annotated

import typer

from producer.dev.running import find_database_url
from shared.database.migrate import check as check_schema
from shared.database.migrate import migrate
from shared.settings import load_settings


def command(
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; fail when the schema is behind or too new.")
    ] = False,
) -> None:
    """Migrate, or check; both may run at any time and from several machines at once."""
    url = find_database_url(load_settings())
    version = check_schema(url) if check else migrate(url)
    print(f"schema {version}")

"""Alembic migrations. SQL functions are versioned by name; a release expands, the next one contracts.

One Alembic revision a schema version; its statements lie in ``sql/<revision>/`` and run in the order of the file names.
"""

from pathlib import Path
from typing import Final

from alembic import op

SQL: Final = Path(__file__).with_name("sql")


def apply_folder(revision: str) -> None:
    """Run every SQL file of a revision on the migration's connection, in its transaction."""
    for path in sorted((SQL / revision).glob("*.sql")):
        op.get_bind().exec_driver_sql(path.read_text(encoding="utf-8").replace("%", "%%"))

"""The durable core: sessions, records, turns, keys, ledger, leases, workers, API keys.

Revision ID: 0001
"""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql" / "0001"


def upgrade() -> None:
    """Make every table and function of the core."""
    for path in sorted(SQL.glob("*.sql")):
        op.get_bind().exec_driver_sql(path.read_text(encoding="utf-8").replace("%", "%%"))


def downgrade() -> None:
    """There is no way back from the first version but a new database."""
    raise RuntimeError("schema 0001 cannot be undone")

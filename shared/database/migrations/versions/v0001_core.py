"""The durable core: sessions, records, turns, keys, ledger, leases, workers, API keys.

Revision ID: 0001
"""

from shared.database.migrations import apply_folder

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make every table and function of the core."""
    apply_folder(revision)


def downgrade() -> None:
    """There is no way back from the first version but a new database."""
    raise RuntimeError("schema 0001 cannot be undone")

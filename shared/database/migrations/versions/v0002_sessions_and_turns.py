"""Sessions and turns complete: turns begun by a host, interruption, priorities, bounds, forks.

Revision ID: 0002
"""

from shared.database.migrations import apply_folder

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add what schema 2 has over schema 1; code of schema 1 still runs on it."""
    apply_folder(revision)


def downgrade() -> None:
    """A schema goes forward only: restore a backup instead."""
    raise RuntimeError("schema 0002 cannot be undone")

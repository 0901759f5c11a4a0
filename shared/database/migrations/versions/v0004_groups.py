"""Group commit: one function that does for several sessions what theirs do for one.

Revision ID: 0004
"""

from shared.database.migrations import apply_folder

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add what schema 4 has over schema 3; code of schema 2 and 3 still runs on it."""
    apply_folder(revision)


def downgrade() -> None:
    """A schema goes forward only: restore a backup instead."""
    raise RuntimeError("schema 0004 cannot be undone")

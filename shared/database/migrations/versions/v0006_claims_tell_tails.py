"""Claims tell how their sessions' logs stand, for workers that remember a history up to there.

Revision ID: 0006
"""

from shared.database.migrations import apply_folder

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add what schema 6 has over schema 5; code of schema 2 to 5 still runs on it."""
    apply_folder(revision)


def downgrade() -> None:
    """A schema goes forward only: restore a backup instead."""
    raise RuntimeError("schema 0006 cannot be undone")

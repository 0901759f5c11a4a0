"""Lean statements: fewer of them a turn, checks whose plan is kept, no index that opening a turn would touch.

Revision ID: 0005
"""

from shared.database.migrations import apply_folder

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add what schema 5 has over schema 4; code of schema 2 to 4 still runs on it."""
    apply_folder(revision)


def downgrade() -> None:
    """A schema goes forward only: restore a backup instead."""
    raise RuntimeError("schema 0005 cannot be undone")

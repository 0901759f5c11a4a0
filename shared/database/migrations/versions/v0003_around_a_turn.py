"""What surrounds a turn: the inbox, background tasks, resumes, archives and retention.

Revision ID: 0003
"""

from shared.database.migrations import apply_folder

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add what schema 3 has over schema 2; code of schema 2 still runs on it."""
    apply_folder(revision)


def downgrade() -> None:
    """A schema goes forward only: restore a backup instead."""
    raise RuntimeError("schema 0003 cannot be undone")

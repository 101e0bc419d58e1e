"""An index that has all that the order of the queue is made of.

Revision: 0022, after 0021; made 2026-11-23.
"""

from __future__ import annotations

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

COLUMNS = "state", "owner", "priority", "created_at", "id"


def upgrade() -> None:
    """Bring the schema from the version before to this one."""
    op.drop_index("ix_experiments_state_priority_created_at", "experiments")
    op.create_index(f"ix_experiments_{'_'.join(COLUMNS)}", "experiments", COLUMNS)

"""An index from which all trials are counted, for monitoring.

Revision: 0004, after 0003; made 2026-11-22.
"""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

NAME = "ix_trials_state_tracked_ended_at_started_at"


def upgrade() -> None:
    """Bring the schema from the version before to this one."""
    op.create_index(NAME, "trials", ["state", "tracked", "ended_at", "started_at"])

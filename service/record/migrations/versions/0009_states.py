"""States of experiments that say all: what a person wants is no column of its own any more.

Revision: 0009, after 0008; made 2026-11-22.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from the version before to this one."""
    op.execute(
        "UPDATE experiments SET state = 'cancelling' WHERE state = 'running' AND intent = 'cancel'"
    )
    op.drop_column("experiments", "intent")
    op.add_column("experiments", sa.Column("left_at", sa.Double(), nullable=True))
    op.add_column(
        "experiments", sa.Column("idle_seconds", sa.Double(), nullable=False, server_default="0")
    )
    op.execute("UPDATE experiments SET left_at = finished_at")

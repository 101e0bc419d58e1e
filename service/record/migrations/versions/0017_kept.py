"""Which checkpoints of an experiment are left, and what is being removed of them.

Revision: 0017, after 0014; made 2026-11-22.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from the version before to this one."""
    op.add_column("experiments", sa.Column("kept", sa.String(length=8), nullable=True))
    op.add_column("experiments", sa.Column("pruning", sa.String(length=8), nullable=True))
    op.add_column("experiments", sa.Column("pruned_at", sa.Double(), nullable=True))

"""What population-based training made of a trial, and the step of an experiment's last round.

Revision: 0008, after 0007; made 2026-11-22.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from the version before to this one."""
    op.add_column("trials", sa.Column("lineage", sa.JSON(none_as_null=True), nullable=True))
    steps = sa.Column("round_step", sa.BigInteger(), nullable=False, server_default="0")
    op.add_column("experiments", steps)

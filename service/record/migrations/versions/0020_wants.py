"""What running experiments want of the cluster, so that they share it.

Revision: 0020, after 0017; made 2026-11-22.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from the version before to this one."""
    op.add_column("experiments", sa.Column("wants", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    """Bring the schema back to the version before."""
    op.drop_column("experiments", "wants")

"""What an experiment's driver tells people now: why it comes on slowly.

Revision: 0011, after 0010; made 2026-11-22.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from the version before to this one."""
    op.add_column("experiments", sa.Column("notices", sa.JSON(none_as_null=True), nullable=True))

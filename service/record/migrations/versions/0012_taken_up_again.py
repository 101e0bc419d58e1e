"""Experiments that are taken up again after they were over.

Revision: 0012, after 0011; made 2026-11-22.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from the version before to this one."""
    op.add_column(
        "experiments", sa.Column("edition", sa.Integer(), nullable=False, server_default="0")
    )
    op.add_column(
        "experiments", sa.Column("closed", sa.Boolean(), nullable=False, server_default=sa.false())
    )

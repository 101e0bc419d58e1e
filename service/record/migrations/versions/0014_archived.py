"""Experiments that are archived, so that lists leave them out.

Revision: 0014, after 0013; made 2026-11-22.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from the version before to this one."""
    op.add_column("experiments", sa.Column("archived_at", sa.Double(), nullable=True))

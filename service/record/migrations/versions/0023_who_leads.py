"""Which service leads, of those that share the database.

Revision: 0023, after 0022; made 2026-11-24.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from the version before to this one."""
    op.create_table(
        "leaders",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("term", sa.Integer(), nullable=False),
        sa.Column("about", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("heartbeat_at", sa.Double(), nullable=False),
    )

"""MLflow's experiment of each run, which the address of its page names.

Revision: 0002, after 0001; made 2026-11-22.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from the version before to this one."""
    op.add_column("experiments", sa.Column("run_project", sa.Text(), nullable=True))
    op.add_column("trials", sa.Column("run_project", sa.Text(), nullable=True))

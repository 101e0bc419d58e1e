"""Which trials of an experiment a person has asked to stop.

Revision: 0026, after 0025; made 2026-12-01.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from the version before to this one."""
    op.add_column("experiments", sa.Column("stops", sa.JSON()))

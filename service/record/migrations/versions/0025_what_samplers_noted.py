"""What a sampler noted with a trial that it drew.

Revision: 0025, after 0024; made 2026-11-24.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from the version before to this one."""
    op.add_column("trials", sa.Column("sampler_state", sa.JSON()))

"""Trials that are opened again after their end, and their place in the ranking.

Revision: 0005, after 0004; made 2026-11-22.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

BY_RANK = {
    "ix_trials_experiment_id_rank_number": ["experiment_id", "rank", "number"],
    "ix_trials_experiment_id_arm_rank_number_state": [
        *("experiment_id", "arm", "rank", "number", "state"),
    ],
}
BY_TIER = {
    "ix_trials_experiment_id_tier_rank_number": ["experiment_id", "tier", "rank", "number"],
    "ix_trials_experiment_id_arm_tier_rank_number_state": [
        *("experiment_id", "arm", "tier", "rank", "number", "state"),
    ],
}


def upgrade() -> None:
    """Bring the schema from the version before to this one."""
    op.add_column("trials", sa.Column("earlier", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("trials", sa.Column("tier", sa.Integer(), nullable=False, server_default="0"))
    _replace_indexes(BY_RANK, BY_TIER)


def _replace_indexes(old: dict[str, list[str]], new: dict[str, list[str]]) -> None:
    for name in old:
        op.drop_index(name, table_name="trials")
    for name, columns in new.items():
        op.create_index(name, "trials", columns)

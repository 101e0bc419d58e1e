"""Indexes from which pages count the trials of each arm, find its best, and list one state.

Revision: 0003, after 0002; made 2026-11-22.
"""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

BEFORE = "ix_trials_experiment_id_state_step_steps"
STATES = (
    "ix_trials_experiment_id_state_number_step_steps",
    ["experiment_id", "state", "number", "step", "steps"],
)
ARMS = (
    "ix_trials_experiment_id_arm_rank_number_state",
    ["experiment_id", "arm", "rank", "number", "state"],
)


def upgrade() -> None:
    """Bring the schema from the version before to this one."""
    for name, columns in (STATES, ARMS):
        op.create_index(name, "trials", columns)
    op.drop_index(BEFORE, "trials")

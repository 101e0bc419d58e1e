"""How many trials of each state an experiment has: kept by triggers, in each change's transaction.

Revision: 0021, after 0020; made 2026-11-22.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

COUNTED = "trials", "step", "steps"
LEAVE = """
    UPDATE trial_counts
    SET trials = trials - 1, step = step - OLD.step, steps = steps - OLD.steps
    WHERE experiment_id = OLD.experiment_id AND state = OLD.state;
"""
ENTER = """
    INSERT INTO trial_counts (experiment_id, state, trials, step, steps)
    VALUES (NEW.experiment_id, NEW.state, 1, NEW.step, NEW.steps)
    ON CONFLICT (experiment_id, state) DO UPDATE SET
        trials = trial_counts.trials + 1,
        step = trial_counts.step + excluded.step,
        steps = trial_counts.steps + excluded.steps;
"""
CHANGED = "OLD.state <> NEW.state OR OLD.step <> NEW.step OR OLD.steps <> NEW.steps"
COUNT = {
    "sqlite": (
        f"CREATE TRIGGER trials_enter AFTER INSERT ON trials BEGIN {ENTER} END",
        f"CREATE TRIGGER trials_leave AFTER DELETE ON trials BEGIN {LEAVE} END",
        "CREATE TRIGGER trials_change AFTER UPDATE OF state, step, steps ON trials "
        f"WHEN {CHANGED} BEGIN {LEAVE} {ENTER} END",
    ),
    "postgresql": (
        "CREATE FUNCTION count_trials() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF TG_OP <> 'INSERT' THEN {LEAVE} END IF; "
        f"IF TG_OP <> 'DELETE' THEN {ENTER} END IF; "
        "RETURN NULL; END $$",
        "CREATE TRIGGER trials_enter_or_leave AFTER INSERT OR DELETE ON trials "
        "FOR EACH ROW EXECUTE FUNCTION count_trials()",
        "CREATE TRIGGER trials_change AFTER UPDATE OF state, step, steps ON trials "
        f"FOR EACH ROW WHEN ({CHANGED}) EXECUTE FUNCTION count_trials()",
    ),
}


def upgrade() -> None:
    """Bring the schema from the version before to this one."""
    op.create_table(
        "trial_counts",
        sa.Column("experiment_id", sa.String(length=32), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in COUNTED),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["experiments.id"],
            name=op.f("fk_trial_counts_experiments"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("experiment_id", "state", name=op.f("pk_trial_counts")),
    )
    op.execute(
        "INSERT INTO trial_counts (experiment_id, state, trials, step, steps) "
        "SELECT experiment_id, state, count(*), sum(step), sum(steps) FROM trials "
        "GROUP BY experiment_id, state"
    )
    for statement in COUNT[op.get_bind().dialect.name]:
        op.execute(statement)

"""The first schema.

Revision: 0001, the first one; made 2026-11-20.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from the version before to this one."""
    op.create_table(
        "experiments",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("spec", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("metric", sa.Text(), nullable=False),
        sa.Column("unit", sa.Text(), nullable=False),
        sa.Column("better", sa.String(length=8), nullable=False),
        sa.Column("baseline", sa.Double(), nullable=True),
        sa.Column("trial_steps", sa.BigInteger(), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("intent", sa.String(length=8), nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("tracked", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("claimed_at", sa.Double(), nullable=True),
        sa.Column("claimed_steps", sa.BigInteger(), nullable=False),
        sa.Column("deaths", sa.Integer(), nullable=False),
        sa.Column("progress_mark", sa.BigInteger(), nullable=False),
        sa.Column("idempotency_key", sa.String(length=255), nullable=True),
        sa.Column("fingerprint", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_experiments")),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_experiments_idempotency_key")),
    )
    with op.batch_alter_table("experiments", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_experiments_created_at_id"), ["created_at", "id"], unique=False
        )
        batch_op.create_index(batch_op.f("ix_experiments_name_id"), ["name", "id"], unique=False)
        batch_op.create_index(
            batch_op.f("ix_experiments_state_priority_created_at"),
            ["state", "priority", "created_at"],
            unique=False,
        )
        batch_op.create_index(batch_op.f("ix_experiments_tracked"), ["tracked"], unique=False)

    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("experiment_id", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("data", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["experiments.id"],
            name=op.f("fk_events_experiments"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_events_experiment_id_id"), ["experiment_id", "id"], unique=False
        )

    op.create_table(
        "trials",
        sa.Column("experiment_id", sa.String(length=32), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("arm", sa.Text(), nullable=False),
        sa.Column("params", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("config", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("config_hash", sa.String(length=64), nullable=True),
        sa.Column("seed", sa.BigInteger(), nullable=True),
        sa.Column("replicates", sa.Integer(), nullable=True),
        sa.Column("steps", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("rank", sa.Double(), nullable=False),
        sa.Column("result", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("tracked", sa.Boolean(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["experiments.id"],
            name=op.f("fk_trials_experiments"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("experiment_id", "number", name=op.f("pk_trials")),
    )
    with op.batch_alter_table("trials", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_trials_config_hash_state"), ["config_hash", "state"], unique=False
        )
        batch_op.create_index(
            batch_op.f("ix_trials_experiment_id_rank_number"),
            ["experiment_id", "rank", "number"],
            unique=False,
        )
        batch_op.create_index(
            batch_op.f("ix_trials_experiment_id_state_step_steps"),
            ["experiment_id", "state", "step", "steps"],
            unique=False,
        )

    op.create_table(
        "attempts",
        sa.Column("experiment_id", sa.String(length=32), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("token", sa.String(length=32), nullable=False),
        sa.Column("place", sa.JSON(none_as_null=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id", "number"],
            ["trials.experiment_id", "trials.number"],
            name=op.f("fk_attempts_trials"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("experiment_id", "number", "attempt", name=op.f("pk_attempts")),
    )
    op.create_table(
        "reports",
        sa.Column("experiment_id", sa.String(length=32), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("metrics", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id", "number"],
            ["trials.experiment_id", "trials.number"],
            name=op.f("fk_reports_trials"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("experiment_id", "number", "step", name=op.f("pk_reports")),
    )

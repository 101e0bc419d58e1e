"""The schema of the record as 0.2 left it, for tests that bring it up to date."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations

WORDS = "entries of the audit log are never changed"
APPEND_ONLY = {
    "sqlite": (
        "CREATE TRIGGER audit_is_append_only BEFORE UPDATE ON audit "
        f"BEGIN SELECT RAISE(ABORT, '{WORDS}'); END",
    ),
    "postgresql": (
        "CREATE FUNCTION refuse_to_change_audit() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{WORDS}'; END $$",
        "CREATE TRIGGER audit_is_append_only BEFORE UPDATE ON audit "
        "FOR EACH ROW EXECUTE FUNCTION refuse_to_change_audit()",
    ),
}
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


def make_schema_of_0_2(connection: sa.Connection) -> None:
    """Make it in an empty database, with the number of its version."""
    op = Operations(MigrationContext.configure(connection))
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("user_name", sa.String(length=64), nullable=True),
        sa.Column("token", sa.String(length=20), nullable=True),
        sa.Column("address", sa.String(length=64), nullable=True),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("refused", sa.Boolean(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_audit_refused_id"), "audit", ["refused", "id"])
    op.create_table(
        "experiments",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("owner", sa.String(length=64), server_default="operator", nullable=False),
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
        sa.Column("total", sa.BigInteger(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("notices", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("wants", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("run_project", sa.Text(), nullable=True),
        sa.Column("tracked", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("left_at", sa.Double(), nullable=True),
        sa.Column("idle_seconds", sa.Double(), server_default="0", nullable=False),
        sa.Column("trial_seconds", sa.Double(), server_default="0", nullable=False),
        sa.Column("cpu_seconds", sa.Double(), server_default="0", nullable=False),
        sa.Column("gpu_seconds", sa.Double(), server_default="0", nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("claimed_at", sa.Double(), nullable=True),
        sa.Column("claimed_steps", sa.BigInteger(), nullable=False),
        sa.Column("edition", sa.Integer(), server_default="0", nullable=False),
        sa.Column("closed", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("archived_at", sa.Double(), nullable=True),
        sa.Column("kept", sa.String(length=8), nullable=True),
        sa.Column("pruning", sa.String(length=8), nullable=True),
        sa.Column("pruned_at", sa.Double(), nullable=True),
        sa.Column("round_step", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("deaths", sa.Integer(), nullable=False),
        sa.Column("progress_mark", sa.BigInteger(), nullable=False),
        sa.Column("idempotency_key", sa.String(length=255), nullable=True),
        sa.Column("trace", sa.String(length=64), nullable=True),
        sa.Column("fingerprint", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_experiments")),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_experiments_idempotency_key")),
    )
    op.create_index(op.f("ix_experiments_created_at_id"), "experiments", ["created_at", "id"])
    op.create_index(op.f("ix_experiments_name_id"), "experiments", ["name", "id"])
    op.create_index(op.f("ix_experiments_owner_state"), "experiments", ["owner", "state"])
    op.create_index(
        op.f("ix_experiments_state_owner_priority_created_at_id"),
        "experiments",
        ["state", "owner", "priority", "created_at", "id"],
    )
    op.create_index(op.f("ix_experiments_tracked"), "experiments", ["tracked"])
    op.create_table(
        "leaders",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("term", sa.Integer(), nullable=False),
        sa.Column("about", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("heartbeat_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_leaders")),
    )
    op.create_table(
        "users",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("removed_at", sa.Double(), nullable=True),
        sa.Column("max_experiments", sa.Integer(), nullable=True),
        sa.Column("max_trials", sa.BigInteger(), nullable=True),
        sa.Column("max_spec_bytes", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_users")),
    )
    op.create_table(
        "deliveries",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("experiment_id", sa.String(length=32), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("due_at", sa.Double(), nullable=True),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("delivered_at", sa.Double(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["experiments.id"],
            name=op.f("fk_deliveries_experiments"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deliveries")),
    )
    op.create_index(op.f("ix_deliveries_due_at"), "deliveries", ["due_at"])
    op.create_index(op.f("ix_deliveries_experiment_id"), "deliveries", ["experiment_id"])
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
    op.create_index(op.f("ix_events_experiment_id_id"), "events", ["experiment_id", "id"])
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("user_name", sa.String(length=64), nullable=False),
        sa.Column("scope", sa.String(length=8), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["user_name"], ["users.name"], name=op.f("fk_tokens_users")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("digest", name=op.f("uq_tokens_digest")),
    )
    op.create_index(op.f("ix_tokens_user_name"), "tokens", ["user_name"])
    op.create_table(
        "trial_counts",
        sa.Column("experiment_id", sa.String(length=32), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("trials", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("steps", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["experiments.id"],
            name=op.f("fk_trial_counts_experiments"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("experiment_id", "state", name=op.f("pk_trial_counts")),
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
        sa.Column("tier", sa.Integer(), server_default="0", nullable=False),
        sa.Column("rank", sa.Double(), nullable=False),
        sa.Column("result", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("lineage", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("run_project", sa.Text(), nullable=True),
        sa.Column("tracked", sa.Boolean(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("trial_seconds", sa.Double(), server_default="0", nullable=False),
        sa.Column("cpu_seconds", sa.Double(), server_default="0", nullable=False),
        sa.Column("gpu_seconds", sa.Double(), server_default="0", nullable=False),
        sa.Column("earlier", sa.JSON(none_as_null=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["experiments.id"],
            name=op.f("fk_trials_experiments"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("experiment_id", "number", name=op.f("pk_trials")),
    )
    op.create_index(op.f("ix_trials_config_hash_state"), "trials", ["config_hash", "state"])
    op.create_index(
        op.f("ix_trials_experiment_id_arm_tier_rank_number_state"),
        "trials",
        ["experiment_id", "arm", "tier", "rank", "number", "state"],
    )
    op.create_index(
        op.f("ix_trials_experiment_id_state_number_step_steps"),
        "trials",
        ["experiment_id", "state", "number", "step", "steps"],
    )
    op.create_index(
        op.f("ix_trials_experiment_id_tier_rank_number"),
        "trials",
        ["experiment_id", "tier", "rank", "number"],
    )
    op.create_index(
        op.f("ix_trials_state_tracked_ended_at_started_at"),
        "trials",
        ["state", "tracked", "ended_at", "started_at"],
    )
    op.create_table(
        "webhooks",
        sa.Column("experiment_id", sa.String(length=32), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["experiments.id"],
            name=op.f("fk_webhooks_experiments"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("experiment_id", "url", name=op.f("pk_webhooks")),
    )
    op.create_table(
        "attempts",
        sa.Column("experiment_id", sa.String(length=32), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("counted_at", sa.Double(), nullable=True),
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
    for statements in (APPEND_ONLY, COUNT):
        for statement in statements[connection.dialect.name]:
            op.execute(statement)
    connection.exec_driver_sql(
        "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, "
        "CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
    )
    connection.exec_driver_sql("INSERT INTO alembic_version VALUES ('0023')")

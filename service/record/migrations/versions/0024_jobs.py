"""One table of jobs: messages to webhooks, experiments to delete, checkpoints to remove.

Analyses and reproductions come from their folders: `state_files` reads those.

Revision: 0024, after 0023; made 2026-11-24.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from the version before to this one."""
    json = sa.JSON(none_as_null=True)
    jobs = op.create_table(
        "jobs",
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("key", sa.String(length=32), nullable=False),
        sa.Column("experiment_id", sa.String(length=32), nullable=True),
        sa.Column("owner", sa.String(length=64), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("request", json, nullable=False),
        sa.Column("outcome", json, nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("due_at", sa.Double(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("kind", "key", name=op.f("pk_jobs")),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["experiments.id"],
            name=op.f("fk_jobs_experiments"),
            ondelete="CASCADE",
        ),
    )
    op.create_index(op.f("ix_jobs_kind_due_at"), "jobs", ["kind", "due_at"])
    op.create_index(op.f("ix_jobs_experiment_id"), "jobs", ["experiment_id"])
    connection = op.get_bind()
    found = connection.execute(
        sa.text(
            "SELECT 'webhook' AS kind, d.id AS key, d.experiment_id, e.owner, d.url, "
            "d.kind AS type, NULL AS keep, d.at AS created_at, d.due_at, d.tries, "
            "d.delivered_at AS finished_at, d.error FROM deliveries d "
            "JOIN experiments e ON e.id = d.experiment_id "
            "UNION ALL SELECT 'deletion', id, id, owner, NULL, NULL, NULL, created_at, created_at, "
            "0, NULL, NULL FROM experiments WHERE state = 'deleting' "
            "UNION ALL SELECT 'pruning', id, id, owner, NULL, NULL, pruning, created_at, "
            "created_at, 0, NULL, NULL FROM experiments WHERE pruning IS NOT NULL"
        )
    )
    rows = [dict(row) for row in found.mappings()]
    for row in rows:
        given = {name: row.pop(name) for name in ("url", "type", "keep")}
        row["request"] = {name: value for name, value in given.items() if value is not None}
        ended = "finished" if row["finished_at"] is not None else "failed"
        row["state"] = "queued" if row["due_at"] is not None else ended
    if rows:
        op.bulk_insert(jobs, rows)
    op.drop_table("deliveries")
    op.drop_column("experiments", "pruning")

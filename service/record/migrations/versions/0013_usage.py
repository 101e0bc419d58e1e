"""What trials and experiments have used, counted where attempts report and end.

Revision: 0013, after 0012; made 2026-11-22.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from eigensweep.service.record.usage import devices_of

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

COLUMNS = ("trial_seconds", "cpu_seconds", "gpu_seconds")


def upgrade() -> None:
    """Bring the schema from the version before to this one."""
    op.add_column("attempts", sa.Column("counted_at", sa.Double(), nullable=True))
    for table in ("experiments", "trials"):
        for name in COLUMNS:
            column: sa.Column[float] = sa.Column(
                name, sa.Double(), nullable=False, server_default="0"
            )
            op.add_column(table, column)
    op.execute(
        "UPDATE trials SET trial_seconds = COALESCE((SELECT SUM(ended_at - started_at) "
        "FROM attempts WHERE attempts.experiment_id = trials.experiment_id "
        "AND attempts.number = trials.number), 0)"
    )
    connection = op.get_bind()
    experiments = sa.table("experiments", sa.column("id"), sa.column("spec", sa.JSON()))
    for id, spec in connection.execute(sa.select(experiments.c.id, experiments.c.spec)).all():
        devices = devices_of(spec or {})
        connection.execute(
            sa.text(
                "UPDATE trials SET cpu_seconds = trial_seconds * :cpus, "
                "gpu_seconds = trial_seconds * :gpus WHERE experiment_id = :id"
            ),
            {"cpus": devices.cpus, "gpus": devices.gpus, "id": id},
        )
    for name in COLUMNS:
        op.execute(
            f"UPDATE experiments SET {name} = COALESCE((SELECT SUM({name}) FROM trials "
            "WHERE trials.experiment_id = experiments.id), 0)"
        )

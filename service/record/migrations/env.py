"""Alembic's environment: run by `migrate`, or by `alembic` for a new version of the schema."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from eigensweep.service.record import database
from eigensweep.service.record.tables import Base
from eigensweep.service.settings import Settings


def run(connection: Connection) -> None:
    """Bring the schema behind a connection up to date."""
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=connection.dialect.name == "sqlite",
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    with database.engine(Settings().database).begin() as opened:
        run(opened)

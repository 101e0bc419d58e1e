"""Alembic's environment: run by `migrate`, or by `alembic` for a new version of the schema.

Versions lead forward only. There is no way back, since what a newer version has written would be
lost on it without a word.
"""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.tables import Base
from eigensweep.service.settings import Settings, StartError


def run(connection: Connection) -> None:
    """Bring the schema behind a connection up to date."""
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=connection.dialect.name == "sqlite",
    )
    _refuse_to_go_back()
    with context.begin_transaction():
        context.run_migrations()


def _refuse_to_go_back() -> None:
    wanted = context.get_revision_argument()
    for have in context.get_context().get_current_heads():
        not_later = {each.revision for each in context.script.walk_revisions("base", have)}
        if wanted != have and (wanted is None or wanted in not_later):
            raise StartError(
                f"the record has schema {have}, and there is no way back to {wanted or 'none'}: "
                "install the version of Eigensweep that belongs to it, or go on from a backup that "
                "was made before"
            )


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    with database.engine(Settings().database).begin() as opened:
        run(opened)

"""The versions of the record's schema. The service brings it up to date when it starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy.exc import DBAPIError

from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.tables import Base
from eigensweep.service.settings import StartError

FIRST: Final = "0023"
"""The earliest schema that is brought up to date: the last of 0.2. Schemas are named by numbers."""

THROUGH: Final = (
    "start it once with the last Eigensweep 0.2 (commit f9ac8f7), which brings it up to date, and "
    "then install this version"
)
"""What to do with a record whose schema is earlier."""


class RecordUnusableError(StartError):
    """The database of the record cannot be opened, read or changed."""


def migrate(url: str) -> None:
    """Bring the database to this version's schema; an empty one gets it at once.

    Raises:
        StartError: if its schema is newer than this version, or too old for it.
        RecordUnusableError: if the database does not answer, or is none.
    """
    config = _configure()
    try:
        with (
            try_database(url),
            database.engine(url).execution_options(mode="writes").begin() as connection,
        ):
            here = MigrationContext.configure(connection)
            if here.get_current_revision() is None:
                Base.metadata.create_all(connection, checkfirst=False)
                here.stamp(ScriptDirectory.from_config(config), "head")
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except CommandError as error:
        have, _ = compare_versions(url)
        if is_too_old(have):
            raise StartError(
                f"the record has schema {have}, and this version begins with {FIRST}: {THROUGH}. "
                "Nothing was changed"
            ) from error
        raise StartError(
            f"the record was written by a newer version of Eigensweep ({error}): install that "
            "version, since a schema never goes back, or set EIGENSWEEP_HOME or "
            "EIGENSWEEP_DATABASE_URL to another place, such as a restored backup"
        ) from error


@contextmanager
def try_database(url: str) -> Iterator[None]:
    """Raise RecordUnusableError in place of an error that says that the database is away."""
    try:
        yield
    except (DBAPIError, FileNotFoundError, PermissionError) as error:
        if isinstance(error, DBAPIError) and database.is_damaged(error):
            raise RecordUnusableError(database.explain_damage(url, error.orig)) from error
        place = database.show_place(url)
        what = error.orig if isinstance(error, DBAPIError) else error
        raise RecordUnusableError(
            f"the database of the record at {place} cannot be used: {what}; start it, or set "
            "EIGENSWEEP_DATABASE_URL to another one"
        ) from error


def is_too_old(schema: str | None) -> bool:
    """Tell whether a schema is earlier than the first that this code knows."""
    return schema is not None and schema < FIRST


def list_revisions() -> list[str]:
    """Return the versions of the schema that this code knows, the newest first."""
    return [each.revision for each in ScriptDirectory.from_config(_configure()).walk_revisions()]


def compare_versions(url: str) -> tuple[str | None, str]:
    """Return the version of a database's schema, None if it has none, and that of this code.

    Raises:
        SQLAlchemyError: if the database does not answer.
    """
    newest = ScriptDirectory.from_config(_configure()).get_current_head()
    assert newest is not None
    with database.engine(url).connect() as connection:
        return MigrationContext.configure(connection).get_current_revision(), newest


def _configure() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return config

"""The record's schema, version by version, brought up to date when the service starts."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.util import CommandError

from eigensweep.service.record import database
from eigensweep.service.settings import StartError


class NewerRecordError(StartError):
    """The database was written by a newer version of the service."""


def migrate(url: str) -> None:
    """Bring the database to this version's schema, creating it if it is empty.

    Raises:
        NewerRecordError: if it has a version that this one does not know.
    """
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    with database.engine(url).execution_options(writes=True).begin() as connection:
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            raise NewerRecordError(
                f"the record was written by a newer version of Eigensweep ({error}): install that "
                "version, or set EIGENSWEEP_HOME or EIGENSWEEP_DATABASE_URL to another place"
            ) from error

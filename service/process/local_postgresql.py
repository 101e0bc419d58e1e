"""A PostgreSQL server of our own, for a development cluster, behind a socket of its user's.

Nothing of it listens on a network, so it needs no password: who may enter the socket's folder may
use the databases.
"""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, Self
from urllib.parse import quote

from eigensweep.private_folders import UnsafeFolderError, make_private
from eigensweep.service.settings import StartError

LOGIN: Final = "eigensweep"
SERVER_USER: Final = "postgres"
"""The user whose processes it has if we are root, which PostgreSQL refuses to be."""
PLACE_OF_ROOTS: Final = Path("/var/tmp")
"""Where root's databases lie: `SERVER_USER` may enter it, and seldom root's own folders."""
INSTALLED: Final = "/usr/lib/postgresql/*/bin/initdb"


class NoPostgresqlError(StartError):
    """No PostgreSQL is installed, or it cannot make its databases here."""


def find_programs() -> Path | None:
    """Return the folder of PostgreSQL's programs: by PATH, else Debian's newest; None: no such."""
    installed = sorted(glob.glob(INSTALLED), key=_read_version, reverse=True)
    found = shutil.which("initdb") or next(iter(installed), None)
    return None if found is None else Path(os.path.realpath(found)).parent


def _read_version(path: str) -> int:
    version = Path(path).parts[-3]
    return int(version) if version.isdecimal() else 0


@dataclass(frozen=True)
class LocalPostgresql:
    """Where a server has its programs, its databases and its socket."""

    programs: Path
    data: Path
    sockets: Path
    user: str | None
    """Whose processes they are; None: this user's."""

    @classmethod
    def choose(cls, folder: Path, sockets: Path) -> Self:
        """Return the server whose databases lie in `folder` and whose socket in `sockets`.

        If we are root, both lie in a folder of `SERVER_USER` below `PLACE_OF_ROOTS`, whose name
        follows from `folder`.

        Raises:
            NoPostgresqlError: if PostgreSQL or the user for it is missing.
        """
        programs = find_programs()
        if programs is None:
            raise NoPostgresqlError(
                "PostgreSQL is not installed (no `initdb` on PATH or in /usr/lib/postgresql): "
                "install it, or give `--sqlite` to do without it"
            )
        if os.geteuid() != 0:
            return cls(programs, folder / "postgresql", sockets, None)
        try:
            pwd.getpwnam(SERVER_USER)
        except KeyError:
            raise NoPostgresqlError(
                f"PostgreSQL does not run as root, and there is no user '{SERVER_USER}': run this "
                "as another user, or give `--sqlite` to do without PostgreSQL"
            ) from None
        ours = place_of_root(folder)
        return cls(programs, ours / "data", ours, SERVER_USER)

    def make(self) -> None:
        """Make the databases' folder, if it is not there yet.

        Raises:
            NoPostgresqlError: if that fails; the message ends with what PostgreSQL said.
            UnsafeFolderError: if the folder belongs to somebody else.
        """
        if self.user is None:
            make_private(self.data)
        else:
            _make_for(self.user, self.sockets)
        if (self.data / "PG_VERSION").exists():
            return
        words = ["-U", LOGIN, "--auth-local=trust", "--auth-host=reject", "-E", "UTF8"]
        command = [str(self.programs / "initdb"), "-D", str(self.data), "--locale=C", *words]
        done = subprocess.run(
            command, capture_output=True, text=True, user=self.user, cwd=self.sockets
        )
        if done.returncode != 0:
            raise NoPostgresqlError(
                f"PostgreSQL cannot make its databases in {self.data}: {done.stderr.strip()}"
            )

    @property
    def command(self) -> list[str]:
        """The command of the server."""
        words = ["-D", str(self.data), "-k", str(self.sockets), "-c", "listen_addresses="]
        return [str(self.programs / "postgres"), *words]

    def url(self, database: str) -> str:
        """Return the SQLAlchemy URL of a database."""
        return f"postgresql+psycopg://{LOGIN}@/{database}?host={quote(str(self.sockets))}"

    def make_databases(self, names: list[str]) -> bool:
        """Make those databases that are not there yet; return False while nobody answers."""
        import psycopg

        try:
            with psycopg.connect(
                host=str(self.sockets), user=LOGIN, dbname="postgres", autocommit=True
            ) as connection:
                rows = connection.execute("SELECT datname FROM pg_database").fetchall()
                for name in set(names) - {row[0] for row in rows}:
                    connection.execute(f'CREATE DATABASE "{name}"')
        except psycopg.OperationalError:
            return False
        return True


def place_of_root(folder: Path) -> Path:
    """Return where the databases of a cluster in `folder` lie if root started it."""
    name = sha256(str(folder.resolve()).encode()).hexdigest()[:12]
    return PLACE_OF_ROOTS / f"eigensweep-postgresql-{name}"


def _make_for(user: str, folder: Path) -> None:
    """Make a folder for another user alone, or accept one that is."""
    owner = pwd.getpwnam(user)
    try:
        folder.mkdir(mode=0o700)
        os.chown(folder, owner.pw_uid, owner.pw_gid)
    except FileExistsError:
        found = folder.lstat()
        if not folder.is_dir() or folder.is_symlink() or found.st_uid != owner.pw_uid:
            raise UnsafeFolderError(
                f"{folder} is not a folder of user '{user}': remove it if you do not know it"
            ) from None
        folder.chmod(0o700)

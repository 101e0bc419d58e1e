"""A PostgreSQL server for tests that need a real one, where its programs are installed."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from helpers.waiting import wait_until


class PostgresqlServer:
    """A PostgreSQL server of our own in a folder of its own, reached by a socket there."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.url = f"postgresql://me@/postgres?host={folder}"
        self._programs, self._folder = programs, folder
        self._user: list[str] = []
        if os.geteuid() == 0:  # PostgreSQL refuses to be root
            self._user = ["runuser", "-u", "postgres", "--"]
            shutil.chown(folder, "postgres")
        made = ("-U", "me", "-A", "trust", "--no-sync", "-E", "UTF8")
        self._run("initdb", "-D", str(folder / "data"), *made)

    def start(self) -> None:
        wait_until(lambda: self._find_first() is None)  # it was killed and may not be gone yet
        options = f"-k {self._folder} -c listen_addresses='' -c fsync=off"
        self._control("-o", options, "-l", str(self._folder / "log"), "-t", "60", "start")

    def stop(self) -> None:
        self._control("-m", "immediate", "stop")

    def processes(self) -> list[psutil.Process]:
        """Return all of its processes."""
        first = self._find_first()
        return [] if first is None else [first, *first.children(recursive=True)]

    def create_database(self, name: str, template: str = "template1") -> str:
        """Return the URL of a fresh database: a copy of the template, which nobody may use now."""
        self._run("createdb", "-U", "me", "-h", str(self._folder), "-T", template, name)
        return self.url.replace("/postgres?", f"/{name}?")

    def _find_first(self) -> psutil.Process | None:
        """Return the process that started the others, None if there is no trace of it."""
        try:
            number = (self._folder / "data/postmaster.pid").read_text().split()[0]
            return psutil.Process(int(number))
        except (FileNotFoundError, psutil.NoSuchProcess):
            return None

    def _control(self, *words: str) -> None:
        self._run("pg_ctl", "-D", str(self._folder / "data"), "-w", *words)

    def _run(self, program: str, *words: str) -> None:
        command = [*self._user, str(self._programs / program), *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self._folder)
        log = self._folder / "log"
        words = log.read_text()[-2000:] if log.exists() else ""
        assert done.returncode == 0, done.stdout + done.stderr + words


@contextmanager
def run_postgresql() -> Iterator[PostgresqlServer | None]:
    """Run a server; give None where PostgreSQL is not installed."""
    installed = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"), reverse=True)
    found = shutil.which("initdb") or next(iter(installed), None)
    if found is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="pg-") as folder:
        server = PostgresqlServer(Path(os.path.realpath(found)).parent, Path(folder))
        server.start()
        yield server
        server.stop()

"""The MLflow server that the service starts unless it is given one: a child of its process."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from eigensweep.common.private_folders import keep_secret
from eigensweep.service.counters import RESTARTS
from eigensweep.service.process import mlflow_app

logger = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
STOP_SECONDS: Final = 4.0
"""How long the server may take to end before it is killed."""
LONGEST_PAUSE: Final = 60.0
"""Seconds between two starts of a server that ends by itself, at most."""
LOOK_SECONDS: Final = 30.0
"""Between two looks whether a server that lives still answers."""
LOOKS: Final = 10
"""So many in a row without an answer end a server that had answered; one may begin slowly."""

LOG_BYTES: Final = 16 * 1024
LONGEST_WORDS: Final = 300
ERROR_LINE: Final = re.compile(r"[\w.]*(Error|Exception)\b.*:|ERROR: +\[Errno ")
"""The last line of a traceback, or what uvicorn says of a port that is taken."""


class MlflowServer:
    """An MLflow server for this machine only, with its database and artifacts in one folder.

    It is one process, without MLflow's job runners and without telemetry, and answers only who
    sends `token`. The token outlives the service, as drivers on a cluster do. `claim` holds the
    port for it, also while it begins anew.

    Raises:
        OSError: if the folder cannot be written.
    """

    def __init__(self, folder: Path, port: int, claim: socket.socket | None = None) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.token = keep_secret(folder / "token")
        self.url = f"http://{HOST}:{port}"
        self._folder = folder
        self._port, self._claim = port, claim
        self._process: subprocess.Popen[bytes] | None = None
        self._pause = 1.0
        self._not_before = 0.0
        self._log_begins = 0
        """Size of the log when the server was started last."""
        self._said = ""
        self._looks_left, self._look_at = 0, 0.0
        self._database: int | None = None
        """The inode of the database with which the server answers; None before it has."""

    def start(self) -> None:
        """Start the server; it answers some seconds later."""
        command = [
            *(sys.executable, "-m", mlflow_app.__name__, "--host", HOST, "--port", str(self._port)),
            *("--artifacts", str(self._folder / "artifacts"), "--with-parent"),
        ]
        own = {
            mlflow_app.TOKEN: self.token,
            "MLFLOW_BACKEND_STORE_URI": f"sqlite:///{self._folder / 'mlflow.db'}",
        }
        self._looks_left, self._look_at = 0, time.monotonic() + LOOK_SECONDS
        self._database = None
        with self.log.open("ab") as log:
            self._log_begins = log.tell()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=os.environ | own,
                start_new_session=True,  # a group of its own, which Ctrl-C does not reach
            )

    def watch(self, find_problem: Callable[[], str | None]) -> None:
        """Start the server again if it has ended, or has long been silent; call it regularly.

        `find_problem` asks it, and returns None if it answers. Pauses between starts grow. No retry
        library waits here: the caller's loop has other work.
        """
        now = time.monotonic()
        if self._process is not None and self._process.poll() is None and now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._end_if_silent(find_problem())
        if self._process is None or self._process.poll() is None or now < self._not_before:
            return
        self._said = _read_last_words(self.log, self._log_begins)
        status = self._process.returncode
        logger.warning(
            "MLflow ended, starting it again status=%s log=%s: %s", status, self.log, self._said
        )
        self._not_before = now + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._signal(signal.SIGKILL)
        RESTARTS.labels("mlflow").inc()
        self.start()

    def _end_if_silent(self, problem: str | None) -> None:
        if problem is None or self._database is not None:
            self._end_if_replaced()
        if problem is None:
            self._looks_left = LOOKS
        elif self._looks_left:
            self._looks_left -= 1
            if not self._looks_left:
                logger.warning("MLflow has been silent for long, ending it: %s", problem)
                self._signal(signal.SIGKILL)

    def _end_if_replaced(self) -> None:
        """End a server whose database was removed or replaced: it would fail at every write."""
        file = self._folder / "mlflow.db"
        now = file.stat().st_ino if file.exists() else -1
        if self._database not in (None, now):
            logger.warning("MLflow's database is another file, starting MLflow again file=%s", file)
            self._signal(signal.SIGKILL)
        self._database = now

    def explain_end(self) -> str:
        """Return what the server said before it was started again; no words if it never was."""
        return f"it was started again, and had said before: {self._said}" if self._said else ""

    def begin_to_stop(self) -> None:
        """Send the server the signal to end."""
        self._signal(signal.SIGTERM)

    def stop(self) -> None:
        """End the server and all that it started."""
        self._signal(signal.SIGTERM)
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        if self._claim is not None:
            self._claim.close()

    def _signal(self, ending: signal.Signals) -> None:
        """Send a signal to the server and all that it started."""
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, ending)

    @property
    def log(self) -> Path:
        """File of what the server prints."""
        return self._folder / "server.log"


def _read_last_words(log: Path, begin: int) -> str:
    """Return the last error in a log from byte `begin` on, or its last line."""
    try:
        with log.open("rb") as file:
            file.seek(max(begin, file.seek(0, os.SEEK_END) - LOG_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError as error:
        return f"nothing that can be read ({error})"
    said = [line.strip() for line in lines if line.strip()]
    errors = [line for line in said if ERROR_LINE.match(line)]
    return (errors or said or ["nothing"])[-1][:LONGEST_WORDS]

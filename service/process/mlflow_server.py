"""The MLflow server that the service starts unless it is given one: a child of its process."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
STOP_SECONDS: Final = 4.0
"""How long the server may take to end before it is killed."""
LONGEST_PAUSE: Final = 60.0
"""Seconds between two starts of a server that ends by itself, at most."""
QUIET: Final = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # thirteen processes without use here
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
}


class MlflowServer:
    """An MLflow server for this machine only, with its database and artifacts in one folder.

    It is one process, without MLflow's job runners and without telemetry.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self.url = f"http://{HOST}:{port}"
        self._folder = folder
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._pause = 1.0
        self._not_before = 0.0

    def start(self) -> None:
        """Start the server; it answers some seconds later."""
        self._folder.mkdir(parents=True, exist_ok=True)
        command = [
            *(sys.executable, "-m", "mlflow", "server", "--workers", "1"),
            *("--host", HOST, "--port", str(self._port)),
            *("--backend-store-uri", f"sqlite:///{self._folder / 'mlflow.db'}"),
            *("--artifacts-destination", str(self._folder / "artifacts"), "--serve-artifacts"),
        ]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=os.environ | QUIET,
                start_new_session=True,  # a group of its own, which Ctrl-C does not reach
            )

    def restart_if_ended(self) -> None:
        """Start the server again if it has ended by itself; call it regularly.

        Pauses between starts grow. No retry library waits here: the caller's loop has other work.
        """
        now = time.monotonic()
        if self._process is None or self._process.poll() is None or now < self._not_before:
            return
        logger.warning(
            "MLflow ended, starting it again status=%s log=%s", self._process.returncode, self.log
        )
        self._not_before = now + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._signal(signal.SIGKILL)
        self.start()

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

    def _signal(self, ending: signal.Signals) -> None:
        """Send a signal to the server and all that it started."""
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, ending)

    @property
    def log(self) -> Path:
        """File of what the server prints."""
        return self._folder / "server.log"

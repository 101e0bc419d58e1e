"""Runs Python modules of ours as child processes, one at a time, each in a folder of its own.

Runs in the service's process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from eigensweep.service.settings import Mlflow

LONGEST_SECONDS: Final = 2 * 3600.0
"""A child that takes longer is killed, and has failed."""
LOG_LINES: Final = 20
"""How many of the last lines of a failed process become part of the error."""


@dataclass
class ChildRunner:
    """Runs one child at a time. The child gets MLflow's secret, and a few processors."""

    module: str
    mlflow: Mlflow | None = None
    _child: subprocess.Popen[bytes] | None = None

    def run(self, folder: Path, order: str) -> str | None:
        """Run a child to its end, with `order` as its input; return why it failed, if it did."""
        secret: dict[str, str] = {}
        if self.mlflow is not None and self.mlflow.token is not None:
            secret["MLFLOW_TRACKING_TOKEN"] = self.mlflow.token
        threads = str(min(4, max(1, (os.cpu_count() or 1) // 2)))
        with (folder / "log").open("wb") as log:
            child = self._child = subprocess.Popen(
                [sys.executable, "-m", self.module, str(folder)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=folder,
                env={"OMP_NUM_THREADS": threads, **os.environ, **secret},
                start_new_session=True,  # a group of its own, which Ctrl-C does not reach
            )
        try:
            child.communicate(order.encode(), timeout=LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            return f"it took longer than {LONGEST_SECONDS / 3600:.0f} hours"
        if child.returncode == 0:
            return None
        lines = (folder / "log").read_text(errors="replace").splitlines()[-LOG_LINES:]
        return "\n".join([f"its process ended with status {child.returncode}", *lines])

    def kill(self) -> None:
        """Kill the child that runs, if there is one."""
        child = self._child
        if child is not None:
            with suppress(ProcessLookupError):  # it may end at this moment
                child.kill()

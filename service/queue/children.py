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
from typing import Final, TypeVar

from pydantic import BaseModel

from eigensweep.analyses.messages import OUTCOME
from eigensweep.service.settings import Mlflow

LONGEST_SECONDS: Final = 2 * 3600.0
"""The longest run of a child in seconds; after that it is killed, and has failed."""
LOG_LINES: Final = 20
"""The last lines of a failed process that become part of the error."""

Outcome = TypeVar("Outcome", bound=BaseModel)


class StoppedError(RuntimeError):
    """The service stops, and has killed the child."""


@dataclass
class ChildRunner:
    """Runs one child at a time. The child gets MLflow's secret, and a few processors."""

    module: str
    mlflow: Mlflow | None = None
    _child: subprocess.Popen[bytes] | None = None
    _is_over: bool = False

    def make(self, folder: Path, order: BaseModel, kind: type[Outcome]) -> Outcome:
        """Run a child that writes files into a folder; return the outcome among them.

        Raises:
            StoppedError: if it was killed.
            OSError: if it cannot be started.
        """
        (folder / OUTCOME).unlink(missing_ok=True)
        problem = self.run(folder, order.model_dump_json())
        try:
            return kind.model_validate_json((folder / OUTCOME).read_bytes())
        except (OSError, ValueError):
            return kind(error=problem or "its process ended without writing an outcome")

    def run(self, folder: Path, order: str) -> str | None:
        """Run a child to its end, with `order` as its input; return why it failed, if it did.

        Raises:
            StoppedError: if it was killed.
            OSError: if it cannot be started.
        """
        secret: dict[str, str] = {}
        if self.mlflow is not None and self.mlflow.token is not None:
            secret["MLFLOW_TRACKING_TOKEN"] = self.mlflow.token
        threads = str(min(4, max(1, (os.cpu_count() or 1) // 2)))
        folder.mkdir(parents=True, exist_ok=True)
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
        if self._is_over:
            child.kill()
        try:
            child.communicate(order.encode(), timeout=LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            return f"it took longer than {LONGEST_SECONDS / 3600:.0f} hours"
        if self._is_over:
            raise StoppedError
        if child.returncode == 0:
            return None
        lines = (folder / "log").read_text(errors="replace").splitlines()[-LOG_LINES:]
        return "\n".join([f"its process ended with status {child.returncode}", *lines])

    def kill(self) -> None:
        """Kill the running child, and refuse to start others from now on."""
        self._is_over = True
        if self._child is not None:
            with suppress(ProcessLookupError):  # it may end at this moment
                self._child.kill()

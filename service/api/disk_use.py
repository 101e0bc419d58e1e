"""What takes disk space, measured now and then. Runs in the service's process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from eigensweep.service.settings import Settings
from eigensweep.workers.shared.disk_use import StoreUse, measure, measure_store

FRESH_SECONDS: Final = 5.0
"""Seconds for which what was measured is shown again at least."""
SHARE: Final = 0.02
"""The most of the time that measuring takes, however often it is asked for."""


@dataclass(frozen=True)
class Measured:
    """Bytes of each part of what the service keeps, with its place, and of each experiment."""

    parts: dict[str, tuple[str, int]]
    experiments: dict[str, StoreUse]


@dataclass
class DiskUse:
    """Measures folders again when that is old: the longer it took, the older."""

    settings: Settings
    clock: Callable[[], float] = time.monotonic
    _found: Measured | None = None
    _not_before: float = float("-inf")
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def read(self) -> Measured:
        """Return the bytes of each part of the home folder, and of each experiment."""
        with self._turn:
            if self._found is None or self.clock() >= self._not_before:
                began = self.clock()
                self._found = self._measure()
                took = self.clock() - began
                self._not_before = self.clock() + max(FRESH_SECONDS, took / SHARE)
            return self._found

    def _measure(self) -> Measured:
        home, storage = self.settings.home, self.settings.storage_folder
        experiments = measure_store(storage)
        record = [*home.glob("eigensweep.db*")]
        logs = [home / "mlflow" / "server.log"]
        places = {
            "record": (home / "eigensweep.db", record),
            "studies": (home / "optuna", [home / "optuna"]),
            "mlflow": (home / "mlflow", [home / "mlflow"]),
            "logs": (logs[0], logs),
            "analyses": (home / "analyses", [home / "analyses"]),
            "reproductions": (home / "reproductions", [home / "reproductions"]),
            "ray": (home / "ray", [home / "ray"]),
            "corpora": (self.settings.corpora, [self.settings.corpora]),
        }
        sizes = {name: sum(map(measure, paths)) for name, (_, paths) in places.items()}
        sizes["mlflow"] -= sizes["logs"]
        parts = {name: (str(path), sizes[name]) for name, (path, _) in places.items()}
        for name in ("checkpoints", "weights", "curves"):
            parts[name] = (storage, sum(getattr(each, name) for each in experiments.values()))
        return Measured(parts, experiments)

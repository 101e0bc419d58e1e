"""Experiments on a real Ray, launched as often as a test likes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from file_ledger import FileLedger
from waiting import PATIENCE, wait_until

from eigensweep.workers.cluster.ray_cluster import DriverHandle, RayCluster
from eigensweep.workers.shared.messages import DriverOptions


class Launched:
    """One experiment with its files."""

    def __init__(
        self, cluster: RayCluster, folder: Path, id: str, spec: dict[str, Any], **options: Any
    ) -> None:
        self.cluster, self.folder, self.id, self.spec = cluster, folder, id, spec
        self.ledger = FileLedger(folder / f"{id}.json", id)
        self._options = options

    def options(self, **other: Any) -> DriverOptions:
        folders = {"storage": str(self.folder / "store"), "optuna": str(self.folder / "optuna")}
        return DriverOptions(**{**folders, **self._options, **other})

    def launch(self, **other: Any) -> DriverHandle:
        return self.cluster.launch(self.id, self.spec, self.ledger, self.options(**other))

    def run(self) -> Self:
        self.finish(self.launch())
        return self

    def finish(self, handle: DriverHandle) -> None:
        assert handle.wait(PATIENCE) == "ended", handle.error

    def until(self, seen: Callable[[], Any]) -> Any:
        return wait_until(seen, lambda: self.ledger.read("history"), pause=0.05)

    def trials(self) -> list[Any]:
        return self.ledger.load()

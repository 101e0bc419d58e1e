"""Experiments on a real Ray, launched as often as a test likes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest
from file_ledger import FileLedger
from waiting import wait_until

from eigensweep.common.own_packages import find_plugins
from eigensweep.protocol.code import own_code, own_parts
from eigensweep.protocol.ledger import Ledger
from eigensweep.protocol.messages import DriverOptions
from eigensweep.workers.cluster.drivers import DriverProcess, Drivers
from eigensweep.workers.cluster.ray_cluster import RayCluster
from eigensweep.workers.driver.process.driver_order import DriverOrder

HERE = Path(__file__).parent
PLUGINS = HERE.parent / "plugins"


@contextmanager
def toys_on_path() -> Iterator[None]:
    """Let a cluster's processes find the toys' package, and this one, which may drive trials there.

    Both must have the same packages that add models.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{HERE}:{PLUGINS}")
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.syspath_prepend(PLUGINS)
        _forget_own_code()
        yield
    _forget_own_code()


class Cluster(RayCluster):
    """A Ray with drivers that are forked for it."""

    drivers: Drivers | None = None

    def launch(
        self, experiment: str, spec: dict[str, Any], ledger: Ledger, options: DriverOptions
    ) -> DriverProcess:
        """Start a driver on this node; return it at once."""
        if self.drivers is None:
            self.drivers = Drivers()
            self.drivers.start()
        order = DriverOrder(experiment, spec, ledger, options, self.place.address)
        return self.drivers.launch(order, f"{self.place.logs}/driver-{experiment}.log")

    def find(self, experiment: str) -> DriverProcess | None:
        """Return the driver of an experiment that still works."""
        return None if self.drivers is None else self.drivers.find(experiment)

    def stop(self) -> None:
        if self.drivers is not None:
            self.drivers.stop(kill=True)
        super().stop()


def _forget_own_code() -> None:
    find_plugins.cache_clear()
    own_code.cache_clear()
    own_parts.cache_clear()


def wait_for(driver: DriverProcess) -> str:
    """Return how a driver is once it is over."""
    wait_until(lambda: driver.state() != "running", lambda: driver, pause=0.02)
    return driver.state()


class Launched:
    """One experiment with its files."""

    def __init__(
        self, cluster: Cluster, folder: Path, id: str, spec: dict[str, Any], **options: Any
    ) -> None:
        self.cluster, self.folder, self.id, self.spec = cluster, folder, id, spec
        self.ledger = FileLedger(folder / f"{id}.json", id)
        self._options = options

    def options(self, **other: Any) -> DriverOptions:
        folder = str(self.folder / "store")
        return DriverOptions(**{"storage": folder, **self._options, **other})

    def launch(self, **other: Any) -> DriverProcess:
        return self.cluster.launch(self.id, self.spec, self.ledger, self.options(**other))

    def run(self) -> Self:
        self.finish(self.launch())
        return self

    def finish(self, handle: DriverProcess) -> None:
        assert wait_for(handle) == "ended", handle.death

    def until(self, seen: Callable[[], Any]) -> Any:
        return wait_until(seen, lambda: self.ledger.read("history"), pause=0.05)

    def trials(self) -> list[Any]:
        return self.ledger.load()

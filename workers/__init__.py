"""What trains trials and runs experiments: the public face of the package.

A name is imported when it is first used, so that a caller of one part does not load the others:
neither torch nor Ray nor MLflow is imported here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workers.checkpoints import CurvePoint as CurvePoint
    from workers.checkpoints import Snapshot as Snapshot
    from workers.checkpoints import StaleAttemptError as StaleAttemptError
    from workers.checkpoints import Store as Store
    from workers.cluster import ClusterError as ClusterError
    from workers.cluster import DriverHandle as DriverHandle
    from workers.cluster import RayCluster as RayCluster
    from workers.driver import DriverOptions as DriverOptions
    from workers.driver import run_experiment as run_experiment
    from workers.durable_files import StorageError as StorageError
    from workers.durable_files import write_whole as write_whole
    from workers.ledger import Finished as Finished
    from workers.ledger import Ledger as Ledger
    from workers.ledger import StaleWriteError as StaleWriteError
    from workers.ledger import TrialEntry as TrialEntry
    from workers.replicates import TrialResult as TrialResult
    from workers.replicates import train as train
    from workers.results import summarise as summarise
    from workers.training import Training as Training

_HOME = {
    "CurvePoint": "checkpoints",
    "Snapshot": "checkpoints",
    "StaleAttemptError": "checkpoints",
    "Store": "checkpoints",
    "ClusterError": "cluster",
    "DriverHandle": "cluster",
    "RayCluster": "cluster",
    "DriverOptions": "driver",
    "run_experiment": "driver",
    "StorageError": "durable_files",
    "write_whole": "durable_files",
    "Finished": "ledger",
    "Ledger": "ledger",
    "StaleWriteError": "ledger",
    "TrialEntry": "ledger",
    "TrialResult": "replicates",
    "train": "replicates",
    "summarise": "results",
    "Training": "training",
}
"""Which module each exported name lives in."""


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'workers' has no attribute '{name}'")
    return getattr(import_module(f"workers.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_HOME)

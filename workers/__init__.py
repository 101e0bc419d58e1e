"""What trains trials and runs experiments: the public face of the package.

A name is imported when it is first used, so that a caller of one part does not load the others:
neither torch nor Ray nor MLflow is imported here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eigensweep.workers.cluster.ray_cluster import ClusterError as ClusterError
    from eigensweep.workers.cluster.ray_cluster import DriverHandle as DriverHandle
    from eigensweep.workers.cluster.ray_cluster import RayCluster as RayCluster
    from eigensweep.workers.driver.experiment import run_experiment as run_experiment
    from eigensweep.workers.processes.notebook import TrialResult as TrialResult
    from eigensweep.workers.processes.notebook import train as train
    from eigensweep.workers.shared.checkpoints import Snapshot as Snapshot
    from eigensweep.workers.shared.checkpoints import Store as Store
    from eigensweep.workers.shared.curves import CurvePoint as CurvePoint
    from eigensweep.workers.shared.durable_files import StorageError as StorageError
    from eigensweep.workers.shared.durable_files import write_whole as write_whole
    from eigensweep.workers.shared.head import StaleAttemptError as StaleAttemptError
    from eigensweep.workers.shared.ledger import Finished as Finished
    from eigensweep.workers.shared.ledger import Ledger as Ledger
    from eigensweep.workers.shared.ledger import StaleWriteError as StaleWriteError
    from eigensweep.workers.shared.ledger import TrialEntry as TrialEntry
    from eigensweep.workers.shared.messages import DriverOptions as DriverOptions
    from eigensweep.workers.shared.messages import ReplicateResult as ReplicateResult
    from eigensweep.workers.shared.messages import Result as Result
    from eigensweep.workers.shared.results import summarise as summarise
    from eigensweep.workers.trial.training import Training as Training

_HOME = {
    "CurvePoint": "shared.curves",
    "Snapshot": "shared.checkpoints",
    "StaleAttemptError": "shared.head",
    "Store": "shared.checkpoints",
    "ClusterError": "cluster.ray_cluster",
    "DriverHandle": "cluster.ray_cluster",
    "RayCluster": "cluster.ray_cluster",
    "DriverOptions": "shared.messages",
    "ReplicateResult": "shared.messages",
    "Result": "shared.messages",
    "run_experiment": "driver.experiment",
    "StorageError": "shared.durable_files",
    "write_whole": "shared.durable_files",
    "Finished": "shared.ledger",
    "Ledger": "shared.ledger",
    "StaleWriteError": "shared.ledger",
    "TrialEntry": "shared.ledger",
    "TrialResult": "processes.notebook",
    "train": "processes.notebook",
    "summarise": "shared.results",
    "Training": "trial.training",
}
"""Which module each exported name lives in."""


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'eigensweep.workers' has no attribute '{name}'")
    return getattr(import_module(f"eigensweep.workers.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_HOME)

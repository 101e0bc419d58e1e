"""Removes what an experiment has left outside of the record: its runs and checkpoints.

In its own process: `python -m eigensweep.workers.driver.deletion FOLDER < order.json`. Each step
may be done twice. MLflow comes first, since it may be away: then all is left as it is.
"""

from __future__ import annotations

import json
import sys

from eigensweep.store.checkpoints import Store
from eigensweep.store.upkeep import corpora
from eigensweep.workers.tracking.mlflow_runs import Runs


def remove(
    experiment: str, project: str, storage: str, mlflow_uri: str | None, run_id: str | None = None
) -> None:
    """Remove an experiment's runs in MLflow, its checkpoints and curves.

    They are in the project of its own run, `run_id`, whatever that is called by now. MLflow keeps
    removed runs until `mlflow gc` empties its trash.

    Raises:
        AwayError: if MLflow does not answer; nothing is removed then.
        StorageError: if the store's files cannot be removed.
    """
    if mlflow_uri is not None:
        Runs(mlflow_uri, project, experiment, run_id).delete_all()
    store = Store(storage)
    corpora.release(store, corpora.list_users(store, experiment))
    store.files.remove_all(experiment)


if __name__ == "__main__":
    remove(**json.load(sys.stdin))

"""Send an analysis to MLflow as artifacts: to the run of its subject, or to a run of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from eigensweep.analyses.messages import AnalysisOrder
from eigensweep.workers.tracking.mlflow_runs import (
    AwayError,
    MlflowRefusedError,
    RunContent,
    Runs,
    flatten,
)

T = TypeVar("T")

PROJECT: Final = "analyses"
"""MLflow's experiment for analyses of matrices, which belong to no experiment of ours."""
PAUSES: Final = (1.0, 3.0)
"""Seconds between tries while MLflow is away."""


class NotDeliveredError(RuntimeError):
    """MLflow has not taken an analysis; the message says why."""


def deliver(order: AnalysisOrder, files: Sequence[Path]) -> str:
    """Keep `files` as artifacts below `analyses/`; return the id of the run that holds them.

    The run is that of the subject. For an analysis of matrices it is a run named after the
    analysis, made once for each `order.id`.

    Raises:
        NotDeliveredError: if MLflow is away, refuses, or has no run of the subject yet.
    """
    if order.mlflow_uri is None:
        raise NotDeliveredError("this service has no MLflow")
    if order.subject is not None and order.subject.run_id is None:
        raise NotDeliveredError("MLflow has no run of it yet")
    uri = order.mlflow_uri
    return _persist(lambda: _deliver(order, uri, files))


def deliver_files(uri: str, run_id: str, files: Sequence[Path], folder: str) -> None:
    """Keep `files` as artifacts of a run, below `folder`.

    Raises:
        NotDeliveredError: if MLflow is away or refuses.
    """
    _persist(lambda: Runs(uri, PROJECT, run_id).keep_all(run_id, files, folder))


def _persist(send: Callable[[], T]) -> T:
    for pause in (*PAUSES, None):
        try:
            return send()
        except MlflowRefusedError as error:
            raise NotDeliveredError(f"MLflow refuses it: {error}") from error
        except AwayError as error:
            if pause is None:
                raise NotDeliveredError(f"MLflow is away: {error}") from error
            time.sleep(pause)
    raise AssertionError


def _deliver(order: AnalysisOrder, uri: str, files: Sequence[Path]) -> str:
    runs = Runs(uri, PROJECT, order.id)
    folder = f"analyses/{order.name}-{order.id}"
    if order.subject is not None:
        assert order.subject.run_id is not None
        runs.keep_all(order.subject.run_id, files, folder)
        return order.subject.run_id
    run_id = runs.get(None, None, order.name, {"eigensweep.analysis": order.name})
    runs.send(run_id, RunContent(params=flatten(order.options)))
    runs.flush_all()
    runs.keep_all(run_id, files, folder)
    runs.end(run_id, "FINISHED")
    runs.flush_all()
    return run_id

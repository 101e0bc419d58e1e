"""An analysis as artifacts in MLflow: on the run it looks at, or on a run of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from eigensweep.workers.tracking.mlflow_runs import (
    AwayError,
    Content,
    RefusedError,
    Runs,
    flattened,
)

PROJECT: Final = "analyses"
"""MLflow's experiment for those that belong to no trial and no experiment."""
PAUSES: Final = (1.0, 3.0)
"""Seconds between tries while MLflow is away."""


class NotDeliveredError(RuntimeError):
    """MLflow has not taken an analysis; the message says why."""


def deliver(
    uri: str | None,
    id: str,
    name: str,
    options: dict[str, Any],
    run_id: str | None,
    own_run: bool,
    files: Sequence[Path],
) -> str:
    """Keep `files` as artifacts below `analyses/`; return the id of the run that holds them.

    With `own_run` that is a run named after the analysis, made once for each `id`.

    Raises:
        NotDeliveredError: if MLflow is away, refuses, or has no such run yet.
    """
    if uri is None:
        raise NotDeliveredError("this service has no MLflow")
    if run_id is None and not own_run:
        raise NotDeliveredError("MLflow has no run of it yet")
    for pause in (*PAUSES, None):
        try:
            return _deliver(uri, id, name, options, run_id, files)
        except RefusedError as error:
            raise NotDeliveredError(f"MLflow refuses it: {error}") from error
        except AwayError as error:
            if pause is None:
                raise NotDeliveredError(f"MLflow is away: {error}") from error
            time.sleep(pause)
    raise AssertionError


def _deliver(
    uri: str,
    id: str,
    name: str,
    options: dict[str, Any],
    run_id: str | None,
    files: Sequence[Path],
) -> str:
    runs = Runs(uri, PROJECT, id)
    if run_id is not None:
        runs.keep_all(run_id, files, f"analyses/{name}-{id}")
        return run_id
    run_id = runs.get(None, None, name, {"eigensweep.analysis": name})
    runs.send(run_id, Content(params=flattened(options)))
    runs.keep_all(run_id, files, f"analyses/{name}-{id}")
    runs.end(run_id, "FINISHED")
    return run_id

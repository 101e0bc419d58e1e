"""From a posted spec to a row of the queue."""

from __future__ import annotations

import hashlib
import json
import time

from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.record.journal import finite
from eigensweep.service.record.record import new_id
from eigensweep.service.record.tables import Experiment


def queued(spec: ExperimentSpec, idempotency_key: str | None = None) -> Experiment:
    """Return the row of an experiment that waits, from a spec that passed `check_spec`."""
    content = finite(spec.model_dump(mode="json"))
    metric = spec.objective_metric
    return Experiment(
        id=new_id(),
        name=spec.name,
        project=spec.project,
        priority=spec.priority,
        spec=content,
        metric=metric.name,
        unit=metric.unit,
        better=metric.better,
        baseline=spec.baseline,
        trial_steps=_trial_steps(spec),
        state="queued",
        total=spec.trial_count(),
        created_at=time.time(),
        idempotency_key=idempotency_key,
        fingerprint=hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest(),
    )


def _trial_steps(spec: ExperimentSpec) -> int | None:
    """Return the budget of each replicate of a trial, None where the search varies it."""
    varied = {path for arm in spec.arms_ for path in arm.space}
    if any(path.startswith(("training.", "task.")) for path in varied):
        return None
    try:
        return spec.training.resolve(spec.task).steps
    except ValueError:
        return None

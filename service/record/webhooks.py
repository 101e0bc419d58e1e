"""What a webhook is told of the end of an experiment. Runs in the service's process."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

from sqlalchemy.orm import Session

from eigensweep.results.ranking import RANKED
from eigensweep.service.record import database
from eigensweep.service.record.queries import count_states
from eigensweep.service.record.tables import ExperimentRow, JobRow


def make_message(url: str, job: JobRow) -> dict[str, object] | None:
    """Return the content of a message; None if its experiment was deleted meanwhile."""
    return database.read(url, partial(_describe, job))


def _describe(job: JobRow, session: Session) -> dict[str, object] | None:
    if (experiment := session.get(ExperimentRow, job.experiment_id)) is None:
        return None
    counts = count_states(session, [experiment.id])[experiment.id]
    trials = {state: count.trials for state, count in sorted(counts.items())}
    error = experiment.error.strip().rsplit("\n", 1)[-1][:300] if experiment.error else None
    return {
        "type": job.request["type"],
        "timestamp": datetime.fromtimestamp(job.created_at, UTC).isoformat(),
        "data": {
            "id": experiment.id,
            "name": experiment.name,
            "project": experiment.project,
            "state": job.request["type"].removeprefix("experiment."),
            "error": error,
            "metric": experiment.metric,
            "trials": trials,
            "ranked": sum(trials.get(state, 0) for state in RANKED),
            "page": f"/experiments/{experiment.id}",
        },
    }

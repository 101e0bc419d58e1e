"""What is known of a trial that was cut off, from the curves that its process has committed."""

from __future__ import annotations

from eigensweep.protocol.ledger import TrialEntry
from eigensweep.results.ranking import cost
from eigensweep.results.seeds import summarise
from eigensweep.results.trial_result import ReplicateResult, Result
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.store.checkpoints import Store, replicate_key
from eigensweep.tasks.base import Metric

SCORES = "valid/"
"""Beginning of the names of validation scores in a curve."""


def read_so_far(store: Store, experiment: str, entry: TrialEntry, metric: Metric) -> Result | None:
    """Return the best evaluation of each seed up to its last commit; None before the first one.

    `metric` is the objective's. A seed that has not been evaluated after a step is left out.

    Raises:
        StorageError: if the store cannot be read.
    """
    found = []
    for seed in TrialConfig.from_dict(entry.config).seeds:
        points = store.points(replicate_key(experiment, entry.number, seed))
        scored = [each for each in points if each.step and SCORES + metric.name in each.metrics]
        if not scored:
            continue
        best = min(scored, key=lambda each: cost(each.metrics[SCORES + metric.name], metric.better))
        scores = {
            name.removeprefix(SCORES): value
            for name, value in best.metrics.items()
            if name.startswith(SCORES)
        }
        found.append(
            ReplicateResult(
                seed=seed,
                value=scores[metric.name],
                best_step=best.step,
                step=points[-1].step,
                valid=scores,
                code=entry.config.get("code"),
            )
        )
    return summarise(found) if found else None

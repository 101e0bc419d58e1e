"""Takes up the results of a reproduction that another machine has kept in a file.

Each of its experiments is recorded as ended, with the trials and curves of the file and without
weights. From then on their results are found like all others, by the hash of the configuration, so
that they are not trained again. Runs in the service's process.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from sqlalchemy import select

from eigensweep.reports.messages import KeptExperiment, KeptTrial, Results
from eigensweep.reports.results import join_blocks, name_origin
from eigensweep.results.ranking import RANKED, cost
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.service.record.changes.posting import make_row
from eigensweep.service.record.journal import budget_of, replace_non_finite
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.rows import RowSession
from eigensweep.service.record.sql.tables import ExperimentRow, TrialRow
from eigensweep.store.checkpoints import Store, replicate_key, trial_key
from eigensweep.store.upkeep.thinning import thin_out


def take_up(url: str, results: Results, storage: str) -> None:
    """Record the experiments of a file of results, except those that were taken up before.

    Raises:
        StorageError: if the curves cannot be written to the store.
    """
    for experiment in results.experiments:
        trials = [each for each in experiment.trials if each.is_ended]
        if trials and experiment.id is None:
            _take_up(url, results, experiment, trials, storage)


def _take_up(
    url: str,
    results: Results,
    experiment: KeptExperiment,
    trials: list[KeptTrial],
    storage: str,
) -> None:
    row = _make_row(results, experiment, len(trials))
    same = select(ExperimentRow.id).where(ExperimentRow.idempotency_key == row.idempotency_key)
    if database.read(url, lambda session: session.scalars(same).first()) is not None:
        return
    rows = [_make_trial(results, each, row) for each in trials]
    for trial in trials:
        _write_curves(storage, row.id, trial)
    database.write(url, partial(_add, [row, *rows]))


def _add(new: Sequence[object], rows: RowSession) -> None:
    for each in new:
        rows.add(each)


def _make_row(results: Results, experiment: KeptExperiment, total: int) -> ExperimentRow:
    spec = ExperimentSpec.from_stored(experiment.spec)
    words = f"Results that were taken up from a file, trained on {results.origin}"
    spec = spec.model_copy(update={"name": f"{spec.name}, taken up", "description": words})
    made = int(results.made_at.timestamp())
    key = f"results-{results.name}-{results.budget}-{experiment.label}-{made}"
    row = make_row(spec, key)
    row.state, row.tracked, row.total = "completed", True, total
    row.started_at = row.finished_at = row.left_at = time.time()
    row.kept = "none"  # files of results bring curves, and no checkpoint
    return row


def _make_trial(results: Results, trial: KeptTrial, row: ExperimentRow) -> TrialRow:
    result, config = name_origin(trial, results.origin), dict(trial.config or {})
    TrialConfig.from_dict(config)  # refuses what is no configuration
    state = "diverged" if result.outcome == "diverged" else "completed"
    return TrialRow(
        experiment_id=row.id,
        number=trial.number,
        arm=trial.arm,
        params=trial.params,
        config=config,
        config_hash=trial.config_hash,
        seed=config.get("seed", 0),
        replicates=result.replicates,
        steps=budget_of(config),
        state=state,
        step=result.step,
        value=result.value,
        rank=cost(result.value if state in RANKED else None, row.better),
        result=replace_non_finite(result.to_dict()),
        tracked=True,
        ended_at=time.time(),
    )


def _write_curves(storage: str, experiment: str, trial: KeptTrial) -> None:
    """Write the curves into the store, as those of a trial whose checkpoints were removed."""
    store = Store(storage)
    for seed, blocks in trial.curves.items():
        points = join_blocks(blocks)
        key = replicate_key(experiment, trial.number, seed)
        store.begin(key, 1)
        store.commit(key, 1, points[-1].step, {}, points)
    thin_out(store, trial_key(experiment, trial.number), "none", 1)

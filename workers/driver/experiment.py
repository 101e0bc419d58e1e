"""The driver of one experiment: a function of its spec and its ledger.

Started for the first time or for the tenth, it does the same: it takes up what the ledger says is
unfinished, asks for more until the search is exhausted, and stays until MLflow holds everything.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
import yaml
from ray import tune

from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.workers.driver.capacity import bundle, room, why_no_room
from eigensweep.workers.driver.schedulers import Past, scheduler
from eigensweep.workers.driver.searcher import (
    LIVE,
    EverySecond,
    ExperimentSearch,
    Halt,
    Live,
    Recorder,
)
from eigensweep.workers.driver.study import Study, open_storage
from eigensweep.workers.driver.sweep import Job, Sweep
from eigensweep.workers.shared.checkpoints import cancel_mark
from eigensweep.workers.shared.ledger import OBJECTIVE, Ledger, TrialEntry
from eigensweep.workers.shared.states import OPEN_TRIALS
from eigensweep.workers.tracking.tracker import Subject, Tracker
from eigensweep.workers.trial.trainable import TrialTrainable, own_code

logger = logging.getLogger(__name__)

TUNE_SETTINGS = {
    "RAY_AIR_NEW_OUTPUT": "0",  # with verbose=0: silence
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a trial that diverged has no objective
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000",  # snapshots are never read back
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}


@dataclass(frozen=True)
class DriverOptions:
    """What a driver is told by the deployment, and no spec may choose. All paths are absolute."""

    storage: str
    """Folder of checkpoints and curves; on a cluster one that every node shares."""
    optuna: str
    """Folder of Optuna's journals, or the URL of a database."""
    mlflow_uri: str | None = None
    """None: nothing is tracked."""
    data_root: str | None = None
    """Folder of corpora."""
    retries: int = 3
    """How many processes a trial may lose before it counts as failed."""
    checkpoint_seconds: float = 10.0
    """Training that a lost process costs at most; commits that cost little come more often."""
    concurrency: int | None = None
    """Trials at once; None: as many as the cluster has room for."""
    room_seconds: float = 0.0
    """How long to wait for a node that a trial fits on before the experiment counts as failed."""

    def __post_init__(self) -> None:
        for path in (self.storage, self.data_root or "/"):
            if not Path(path).is_absolute():
                raise ValueError(f"a driver needs absolute paths; '{path}' is none")


def run_experiment(
    experiment: str, spec: dict[str, Any], ledger: Ledger, options: DriverOptions
) -> None:
    """Run an experiment to its end, or what is left of it, and deliver it to MLflow.

    Raises:
        StaleWriteError: if another driver has taken over. Nothing is recorded of any exception:
            whoever started the driver starts another one.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    parsed = ExperimentSpec.from_stored(spec)
    tracker = _tracker(experiment, parsed, ledger, options)
    study = Study(
        open_storage(options.optuna, experiment),
        experiment,
        parsed.space(),
        method=parsed.search.method,
        seed=parsed.search.seed,
        better=parsed.objective_metric.better,
    )
    sweep = Sweep(
        parsed,
        ledger,
        study,
        retries=options.retries,
        watch=tracker.see if tracker else lambda entry: None,
    )
    why_stop = EverySecond(_reasons(experiment, parsed, ledger, study, options))
    if tracker:
        tracker.start()
    try:
        if why_stop() is None and sweep.has_work():
            _wait_for_room(parsed, options, why_stop)
        if (reason := why_stop()) is not None:
            sweep.cancel(reason)
        elif sweep.has_work() and not room(parsed.resources):
            sweep.cancel(why_no_room(parsed.resources), "failed")
        elif sweep.has_work():
            LIVE[experiment] = Live(sweep, _orders(experiment, parsed, options), why_stop)
            folder = Path(options.storage) / experiment / "tune"
            _tune(experiment, parsed, sweep, _concurrency(parsed, options), folder)
        if not sweep.is_over:
            raise RuntimeError("Ray Tune returned although trials are open")
        state, error = sweep.close()
        ledger.end(state, error)
        logger.info("experiment ended experiment=%s state=%s", experiment, state)
        if tracker is None:
            ledger.set_tracked(None)
        else:
            tracker.close(state, error, sweep.best())
            tracker.wait()
    finally:
        LIVE.pop(experiment, None)
        if tracker:
            tracker.abandon()


def _wait_for_room(spec: ExperimentSpec, options: DriverOptions, why_stop: EverySecond) -> None:
    """Return once a node is there that a trial fits on, or patience is over, or a reason to stop.

    The nodes of a cluster come and go; what waits in the queue should outlive that.
    """
    deadline = time.monotonic() + options.room_seconds
    while not room(spec.resources) and time.monotonic() < deadline and why_stop() is None:
        time.sleep(1)


def _tune(
    experiment: str, spec: ExperimentSpec, sweep: Sweep, concurrency: int, folder: Path
) -> None:
    """Run Ray Tune until the sweep is over. What it writes into `folder` is never read back."""
    os.environ.update(TUNE_SETTINGS)
    configs = [TrialConfig.from_dict(e.config) for e in sweep.entries.values() if e.config]
    last = max(config.training.steps or 1 for config in configs)
    first = spec.scheduler.min_steps or min(spec.rung_steps(config)[0] for config in configs)
    shutil.rmtree(folder, ignore_errors=True)
    tune.Tuner(
        TrialTrainable,
        tune_config=tune.TuneConfig(
            search_alg=ExperimentSearch(experiment, concurrency),
            scheduler=scheduler(
                spec.scheduler.name,
                better=spec.objective_metric.better,
                min_steps=min(first, last),
                max_steps=last,
                reduction_factor=spec.scheduler.reduction_factor,
                min_samples=spec.scheduler.min_samples,
                past=[
                    Past(f"earlier-{entry.number}", _objectives(entry))
                    for entry in sweep.entries.values()
                    if entry.state not in OPEN_TRIALS
                ],
            ),
            num_samples=-1,
            reuse_actors=True,
            trial_name_creator=_short_name,
            trial_dirname_creator=_short_name,
        ),
        run_config=tune.RunConfig(
            name=experiment,
            storage_path=str(folder),
            callbacks=[Recorder(experiment)],
            stop=Halt(experiment),
            failure_config=tune.FailureConfig(max_failures=0),
            checkpoint_config=tune.CheckpointConfig(
                checkpoint_frequency=0, checkpoint_at_end=False
            ),
            verbose=0,
        ),
    ).fit()
    shutil.rmtree(folder, ignore_errors=True)


def _orders(
    experiment: str, spec: ExperimentSpec, options: DriverOptions
) -> Callable[[Job], dict[str, Any]]:
    """Return what makes of a job the plain dict that a trial's process is given."""
    code = own_code()

    def order(job: Job) -> dict[str, Any]:
        entry = job.entry
        return {
            "experiment": experiment,
            "number": entry.number,
            "attempt": job.attempt,
            "donor": job.donor and [job.donor.experiment_id, job.donor.number],
            "config": entry.config,
            "rungs": spec.rung_steps(TrialConfig.from_dict(entry.config)),
            "reported": max(entry.reports, default=0),
            "reports": _objectives(entry),
            "storage": options.storage,
            "data_root": options.data_root,
            "checkpoint_seconds": options.checkpoint_seconds,
            "resources": bundle(spec.resources),
            "code": code,
        }

    return order


def _reasons(
    experiment: str, spec: ExperimentSpec, ledger: Ledger, study: Study, options: DriverOptions
) -> Callable[[], str | None]:
    """Return what tells why everything should stop now, None while it should not."""
    limit = spec.limits.wall_seconds
    deadline = None if limit is None else study.started_at(time.time()) + limit
    mark = cancel_mark(options.storage, experiment)

    def reason() -> str | None:
        found = None
        if ledger.intent() == "cancel":
            found = "cancelled on request"
        elif deadline is not None and time.time() > deadline:
            found = f"limits.wall_seconds: {limit:g} seconds are over"
        if found is not None:
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
        return found

    return reason


def _concurrency(spec: ExperimentSpec, options: DriverOptions) -> int:
    bounds = [room(spec.resources), options.concurrency, spec.limits.concurrency]
    return max(1, min(bound for bound in bounds if bound is not None))


def _objectives(entry: TrialEntry) -> list[tuple[int, float]]:
    """Return step and objective of a trial's rung reports."""
    return [(s, m[OBJECTIVE]) for s, m in sorted(entry.reports.items()) if OBJECTIVE in m]


def _short_name(trial: Any) -> str:
    return f"{trial.config['number']:05d}-{trial.config['attempt']}-{trial.trial_id}"


def _tracker(
    experiment: str, spec: ExperimentSpec, ledger: Ledger, options: DriverOptions
) -> Tracker | None:
    if options.mlflow_uri is None:
        return None
    subject = Subject(
        id=experiment,
        name=spec.name,
        project=spec.project,
        description=spec.description,
        spec=yaml.safe_dump(spec.model_dump(mode="json", exclude_unset=True), sort_keys=False),
        better=spec.objective_metric.better,
        tags={"eigensweep.versions": _versions(), "eigensweep.git": _git_revision()},
    )
    return Tracker(options.mlflow_uri, subject, ledger, options.storage)


def _versions() -> str:
    names = ("eigensweep", "torch", "ray", "optuna", "mlflow")
    found = []
    for name in names:
        with suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    return ", ".join([*found, f"python {platform.python_version()}"])


def _git_revision() -> str:
    """Return the revision of our own code, `unknown` where it is not in a repository."""
    command = ["git", "-C", own_code()["folder"], "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()

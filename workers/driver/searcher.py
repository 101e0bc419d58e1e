"""How Ray Tune meets a sweep: it asks the searcher, tells the recorder, and obeys the stopper.

Tune pickles and copies all three, so they hold an experiment's id only; the live sweep is found
under it in this process. Everything here is called in Tune's loop, one call at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.search import ConcurrencyLimiter, Searcher, SearchGenerator
from ray.tune.stopper import Stopper

from eigensweep.workers.driver.sweep import Job, Sweep
from eigensweep.workers.shared.states import Outcome

LONGEST_CAUSE = 1500
"""Characters of Ray's account of a lost process that are kept."""


class Live:
    """What an experiment's driver works with."""

    def __init__(
        self,
        sweep: Sweep,
        order: Callable[[Job], dict[str, Any]],
        why_stop: Callable[[], str | None],
    ) -> None:
        self.sweep = sweep
        self.order = order
        """Makes of a job the plain dict that a trial's process is given."""
        self.why_stop = why_stop
        """Returns why everything should stop now, None while it should not."""


LIVE: dict[str, Live] = {}
"""The experiments that are driven in this process."""


class ExperimentSearcher(Searcher):
    """Hands out the sweep's jobs."""

    def __init__(self, experiment: str) -> None:
        super().__init__()
        self.experiment = experiment

    def suggest(self, trial_id: str) -> Any:
        live = LIVE[self.experiment]
        job = live.sweep.next_job()
        return None if job is None else live.order(job)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Do nothing: the recorder hears the same, with the whole result and the error."""

    def save(self, checkpoint_path: str) -> None:
        """Write an empty file: Tune's snapshots are never read back."""
        Path(checkpoint_path).touch()

    def restore(self, checkpoint_path: str) -> None:
        raise NotImplementedError("a driver starts from the ledger, never from Tune's snapshot")


class ExperimentSearch(SearchGenerator):
    """The searcher as Tune asks it: some trials at once, and over when no trial waits.

    What has said that it is over may go on: a trial whose process dies waits again. Tune, which
    keeps one idle process for the next trial, lets go of it only if no next one is to come; other
    experiments then have its place while the last trials train.
    """

    def __init__(self, experiment: str, concurrency: int) -> None:
        super().__init__(
            ConcurrencyLimiter(ExperimentSearcher(experiment), max_concurrent=concurrency)
        )
        self.experiment = experiment

    def is_finished(self) -> bool:
        return LIVE[self.experiment].sweep.is_handed_out


class Recorder(tune.Callback):
    """Writes what happens to trials into the sweep, and through it into ledger and Optuna."""

    def __init__(self, experiment: str) -> None:
        self.experiment = experiment

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **context: Any
    ) -> None:
        self._sweep.begin(trial.config["number"], trial.config["attempt"])

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **c: Any
    ) -> None:
        report = result["report"]
        self._sweep.report(
            trial.config["number"], report["step"], report["metrics"], report["place"]
        )

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **context: Any
    ) -> None:
        """Record the end. What the trial did not end itself was stopped by the scheduler."""
        report = trial.last_result["report"]
        outcome: Outcome = report["outcome"] or "pruned"
        self._sweep.end(trial.config["number"], outcome, report["result"], report["error"])

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **context: Any
    ) -> None:
        """Record that the process was lost; the trainable itself never raises for a bug."""
        self._sweep.lose(trial.config["number"], trial.config["attempt"], _cause(trial))

    @property
    def _sweep(self) -> Sweep:
        return LIVE[self.experiment].sweep


class Halt(Stopper):
    """Stops all trials when the person or a limit says so."""

    def __init__(self, experiment: str) -> None:
        self.experiment = experiment

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        """Tell whether to stop, having marked every open trial: Tune tells nobody about them."""
        live = LIVE[self.experiment]
        reason = live.why_stop()
        if reason is not None:
            live.sweep.cancel(reason)
        return reason is not None


class EverySecond:
    """A question that is asked at most once a second and keeps its last answer in between."""

    def __init__(self, ask: Callable[[], str | None], seconds: float = 1.0) -> None:
        self._ask, self._seconds = ask, seconds
        self._answer: str | None = None
        self._asked_at = float("-inf")

    def __call__(self) -> str | None:
        if self._answer is None and time.monotonic() - self._asked_at >= self._seconds:
            self._asked_at = time.monotonic()
            self._answer = self._ask()
        return self._answer


def _cause(trial: Trial) -> str:
    """Return Ray's account of the loss of a trial's process, from the file where Tune puts it."""
    try:
        account = Path(trial.error_file or "").read_text()
    except OSError:
        return "unknown"
    _, _, last = account.rpartition("Failure # ")
    _, _, words = last.partition("\n")
    return words.strip()[:LONGEST_CAUSE]

"""Ray Tune's loop for one experiment, which forgets ended trials.

Tune keeps every trial until its loop is over, with configuration and results, and walks over all of
them whenever a trial starts. The ledger has all that, so here an ended trial is dropped at once.
Tune's snapshots are not written, since nobody reads them. A process that was ended for lack of
memory counts as a dead one. A starting actor is not cancelled when another becomes idle. A subclass
of Tune's own controller does this, whose interface is for developers (`DeveloperAPI`): `tune.Tuner`
accepts no other controller.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from ray import tune
from ray.air.execution import PlacementGroupResourceManager
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Experiment, Trial
from ray.tune.schedulers import TrialScheduler
from ray.tune.utils.log import set_verbosity

from eigensweep.protocol.messages import Report
from eigensweep.workers.driver.tune.actor_events import PromptActorManager
from eigensweep.workers.driver.tune.searcher import ExperimentSearch, Halt, Live, Recorder
from eigensweep.workers.driver.tune.trainable import TrialTrainable

RENEW_SECONDS: Final = 1.0
"""Between two looks at what waits for a slot."""


def run_tune(experiment: str, live: Live, scheduler: TrialScheduler, folder: Path) -> None:
    """Run Tune until the search is over and no trial runs, or the experiment must stop.

    `folder` is what Tune wants to write to. What it writes there is never read back.
    """
    asked = Experiment(
        experiment,
        TrialTrainable,
        num_samples=-1,
        storage_path=str(folder),
        checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
        trial_name_creator=_short_name,
        trial_dirname_creator=_short_name,
        max_failures=0,
    )
    set_verbosity(0)
    controller: Any = Controller(
        live,
        search_alg=ExperimentSearch(live, asked.spec),
        scheduler=scheduler,
        stopper=Halt(live),
        callbacks=[Recorder(live)],
        trial_checkpoint_config=asked.checkpoint_config,
        storage=asked.storage,
        reuse_actors=True,
    )
    controller.update_max_pending_trials()
    controller.setup_experiments([asked], -1)
    try:
        while not controller.is_finished():
            controller.step()
    finally:
        controller.cleanup()


class Controller(TuneController):
    """Tune's controller, which drops trials that have ended and lets each process come up."""

    def __init__(self, live: Live, **options: Any) -> None:
        super().__init__(**options)
        self._live, self._renew_at = live, 0.0
        self._actor_manager = PromptActorManager(PlacementGroupResourceManager())

    def checkpoint(self, force: bool = False, wait: bool = False) -> None:
        """Write nothing: a driver starts from the ledger, never from Tune's snapshot."""

    def _maybe_reuse_cached_actor(self, trial: Trial) -> bool:
        """Give an idle process to this trial, or to a trial that waits for a slot.

        Tune would cancel the starting process of a trial as soon as another process is idle. If
        trials are shorter than the start of a process, no further process would ever come up. So
        here a trial waits for its own starting process, unless no other trial wants the idle one.
        """
        if self._has_slot(trial):
            waiting = [
                each
                for each in self.get_trials()  # type: ignore[no-untyped-call]
                if each.status == Trial.PENDING
                and each.placement_group_factory == trial.placement_group_factory
                and not self._has_slot(each)
            ]
            asked = next((each for each in waiting if each in self._trial_to_actor), None)
            if asked is not None:
                super()._maybe_reuse_cached_actor(asked)
            if waiting or not self.search_alg.is_finished():
                return False
        return bool(super()._maybe_reuse_cached_actor(trial))

    def _update_trial_queue(self, blocking: bool = False, timeout: int = 600) -> bool:
        """Ask for the next trial, and wait at most a second for it if there is no other one.

        Tune would wait ten minutes, without a look whether the experiment should stop, and longer
        where the clock goes back.
        """
        if super()._update_trial_queue(False):
            return True
        if blocking and not self.is_finished():  # type: ignore[no-untyped-call]
            time.sleep(min(timeout, 1))
        return False

    def _maybe_cache_trial_actor(self, trial: Trial) -> bool:
        """Keep a process for the next trial, unless its node or device is unfit or drains.

        A process that could not use its device never can.
        """
        report: Report | None = getattr(trial, "report", None)
        if report is not None and report.lost and report.lost_by in ("node", "device"):
            return False
        place = None if report is None else report.place
        node = None if place is None else place.node_id
        if node is not None and self._live.should_leave(node):
            return False
        return bool(super()._maybe_cache_trial_actor(trial))

    def _has_slot(self, trial: Trial) -> bool:
        """Whether the trial's own process has been started, ready or not."""
        actor = self._trial_to_actor.get(trial)
        return actor is not None and self._actor_manager.is_actor_started(actor)

    def step(self) -> None:
        """Handle one event, as Tune does, and drop the trials that have ended by then."""
        super().step()  # type: ignore[no-untyped-call]
        if time.monotonic() >= self._renew_at:
            self._renew_at = time.monotonic() + RENEW_SECONDS
            self._renew()
        ended = self._stopped_trials | self._failed_trials
        if ended:
            trials = self.get_trials()  # type: ignore[no-untyped-call]
            trials[:] = [trial for trial in trials if trial not in ended]
            self.get_live_trials().difference_update(ended)  # type: ignore[no-untyped-call]
            self._stopped_trials.clear()
            self._failed_trials.clear()
        self._trials_to_cache.clear()  # what the next snapshot would hold

    def _renew(self) -> None:
        """Hand out again what waits for a slot and avoids nodes that it may go to by now.

        What a trial asks Ray for never changes, and the nodes that are left may be full or gone.
        """
        for trial in list(self.get_trials()):  # type: ignore[no-untyped-call]
            waits = trial.status == Trial.PENDING and not self._has_slot(trial)
            if waits and self._live.sweep.avoids_too_much(trial.order):
                self.stop_trial(trial)  # type: ignore[no-untyped-call]
                if trial in self._staged_trials:
                    self._unstage_trial_with_resources(trial)


def _short_name(trial: Any) -> str:
    return f"{trial.order.number:05d}-{trial.order.attempt}-{trial.trial_id}"

"""What Ray Tune calls, one at a time: a search, a recorder of reports and ends, and a stopper."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Any, Final, Protocol

import ray
from ray import tune
from ray.exceptions import RayActorError
from ray.tune.experiment import Trial
from ray.tune.search import SearchAlgorithm
from ray.tune.stopper import Stopper

from eigensweep.protocol.ledger import RungReport, StaleWriteError
from eigensweep.protocol.messages import LostBy, Order, Report
from eigensweep.training.memory_limit import read_last_words
from eigensweep.workers.driver.nodes.places import find_place, place_actor
from eigensweep.workers.driver.sweep import Sweep
from eigensweep.workers.driver.tune.actor_events import MemoryShortageError
from eigensweep.workers.driver.tune.trainable import request_place
from eigensweep.workers.processes.forked import ForkedEndedError, ForkedLostError, ForkedShortError
from eigensweep.workers.processes.runner import REPORT
from eigensweep.workers.processes.trial_process import TrialProcess

LONGEST_CAUSE = 1500
"""Characters of Ray's account of a lost process that are kept."""

SAME_FOR_ALL: Final = (
    "storage",
    "checkpoint_config",
    "trial_name_creator",
    "trial_dirname_creator",
    "max_failures",
)
"""What each of Tune's trials gets from its experiment."""


class Live(Protocol):
    """An experiment that is driven in this process; `ExperimentDriver` is one."""

    sweep: Sweep

    def must_stop(self) -> bool:
        """Return whether Tune is to end all trials now; they are recorded before."""

    def next_order(self) -> Order | None:
        """Return the order for the next trial; None: no trial waits, or none has room."""

    def is_full(self) -> bool:
        """Return whether no trial may begin until one ends, here or in another experiment."""

    def should_leave(self, node: str) -> bool:
        """Return whether a process on this node should have no further trial."""

    def end_stalled(self) -> Set[int]:
        """Record the trials that make no progress as stalled; return their numbers."""

    def find_stops(self) -> Set[int]:
        """Return the trials that a person has asked to stop."""

    def find_missing_commit(self, order: Order, report: Report) -> str | None:
        """Return what the store lacks of what a report says is committed; None: nothing."""


class OrderJson(dict[str, object]):
    """An order as plain data. Tune copies it deeply for each process; nobody changes it."""

    def __deepcopy__(self, _: object) -> dict[str, object]:
        return dict(self)


class OwnTrial(Trial):
    """A trial of Tune's loop that asks Ray for nothing but its process.

    Tune's own trial looks its class up in Ray's head five times, asks the process for values that
    each of our reports has, and makes a folder for files of errors.
    """

    report: Report
    """The newest report; missing before the first one."""
    loss: BaseException | None = None
    """How its process was lost."""

    def __init__(self, name: str, order: Order, **options: Any) -> None:
        self.order = order
        config = OrderJson(order.to_dict())
        super().__init__(name, config=config, stub=True, **options)  # does not look for the class

    def get_trainable_cls(self) -> type[TrialProcess]:
        return TrialProcess

    def create_placement_group_factory(self) -> None:
        own: Any = self  # Tune's attributes without types
        own.placement_group_factory = request_place(self.order)

    def should_stop(self, result: Mapping[str, Any]) -> bool:
        """Take note of a report, which Tune asks about before anybody else hears of it."""
        self.report = Report.from_dict(json.loads(result[REPORT]))
        return bool(super().should_stop(result))  # type: ignore[no-untyped-call]

    def set_ray_actor(self, ray_actor: Any) -> None:
        self.temporary_state.ray_actor = ray_actor

    def init_local_path(self) -> None:
        own: Any = self  # Tune's attributes without types
        own.relative_logdir = own.storage.trial_dir_name = own.custom_dirname

    def handle_error(self, exc: Any = None) -> None:
        """Keep an error.

        Tune would write it to files that nobody reads. With a full disk the driver would die of it.
        """
        self.loss = exc
        self.run_metadata.num_failures += 1


class ExperimentSearch(SearchAlgorithm):
    """Hands out the sweep's jobs; finished when no trial waits, or none may begin now.

    A finished search may go on later, because a trial whose process dies waits again, or because
    another trial may begin. Tune keeps one idle process for the next trial and ends it when the
    search is finished, so that other experiments can use its slot while the last trials train.
    """

    def __init__(self, live: Live, asked: Mapping[str, Any]) -> None:
        """`asked` has what is the same for all of Tune's trials."""
        self._live, self._asked = live, asked

    def next_trial(self) -> OwnTrial | None:
        order = None if self.is_finished() else self._live.next_order()
        if order is None:
            return None
        same = {name: self._asked[name] for name in SAME_FOR_ALL}
        trial_id = Trial.generate_id()  # type: ignore[no-untyped-call]
        return OwnTrial(self._asked["run"], order, trial_id=trial_id, **same)

    def is_finished(self) -> bool:
        return self._live.sweep.is_handed_out or self._live.is_full()


class Recorder(tune.Callback):
    """Writes what happens to trials into the sweep, and through it into ledger and Optuna."""

    def __init__(self, live: Live) -> None:
        self._live, self._sweep = live, live.sweep

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Any, **context: Any
    ) -> None:
        order: Order = trial.order
        place = find_place(trial.temporary_state.ray_actor, order)
        self._sweep.begin(order.number, order.attempt, place)

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Any, result: object, **context: Any
    ) -> None:
        """Record an intermediate report; `on_trial_complete` records the last one.

        Tune calls this for the report of a lost attempt, too, before it calls the trial complete.
        """
        report: Report = trial.report
        if report.damage is not None:
            self._sweep.note_damage(trial.order.number, report.damage)
        if report.outcome is None:
            comes_on = report.lost is None or report.lost_by == "pause"
            self._sweep.report(
                trial.order.number, report.step, report.metrics, report.place, comes_on=comes_on
            )

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Any, **context: Any
    ) -> None:
        """Record the end. A trial that did not end by itself was stopped by the scheduler.

        If the driver does not see its commits, the trial has trained into another store, and is
        lost.

        A trial that an engine or a disk lost, that was paused, or that waits for the others of its
        population, ends here for Tune, so that Tune keeps its process. One that never had a process
        waits again: it avoids fewer nodes by now.
        """
        order: Order = trial.order
        report: Report | None = getattr(trial, "report", None)
        if report is None:
            self._sweep.lose(order.number, order.attempt, "it has other nodes to go to", by="pause")
            return
        lack = None if report.lost else self._live.find_missing_commit(order, report)
        if lack is not None:
            report = replace(report, lost=lack, lost_by="disk")
        if report.lost is not None:
            self._sweep.lose(
                order.number,
                order.attempt,
                report.lost,
                by=report.lost_by,
                place=report.place,
            )
            return
        if report.outcome is None and self._sweep.waits_for_others(order.number):
            self._sweep.arrive(order.number, order.attempt)
        elif report.outcome == "diverged" and self._sweep.waits_for_others(order.number):
            self._sweep.arrive(order.number, order.attempt, diverged=report.result)
        else:
            told = RungReport(report.step, report.metrics, report.place)
            last = None if report.outcome is None else told
            self._sweep.end(
                order.number, report.outcome or "pruned", report.result, report.error, last
            )

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Any, **context: Any
    ) -> None:
        """Record that the process was lost; a trial's process itself never raises for a bug.

        A process that ended itself, because its trial held too much memory, has failed: another
        attempt would need as much. A process that Ray or the kernel ended because its node had no
        memory left has not failed. Where none could start, its node is left out, if there are
        others.
        """
        order, loss = trial.order, trial.loss
        if (words := read_last_words(order)) is not None:
            self._sweep.end(order.number, "failed", error=words)
            return
        by: LostBy = "process"
        cause, place = getattr(loss, "cause", None), None
        if isinstance(loss, MemoryShortageError) or isinstance(cause, ForkedShortError):
            by = "memory"
        elif isinstance(cause, ForkedLostError):
            by = "departure"
        elif isinstance(loss, RayActorError) and loss.actor_id:
            place = place_actor(loss.actor_id, order)
            node = None if place is None else place.node_id
            if loss.actor_init_failed and self._sweep.cordons.has_others(node):
                by = "node"
        loss = cause if isinstance(cause, ForkedEndedError | StaleWriteError) else loss
        words = "unknown" if loss is None else str(loss).strip()[:LONGEST_CAUSE]
        self._sweep.lose(order.number, order.attempt, words, by=by, place=place)

    def on_step_end(self, iteration: int, trials: list[Any], **context: Any) -> None:
        """End the processes of trials that make no progress or are to stop; Tune calls this often.

        Their end is recorded before, so that the loss of the process changes nothing.
        """
        stalled, stops = self._live.end_stalled(), self._live.find_stops()
        for trial in trials if stalled or stops else []:
            number, actor = trial.order.number, trial.temporary_state.ray_actor
            if trial.status != Trial.RUNNING or actor is None:
                continue
            if number in stalled or (number in stops and self._sweep.stop(number)):
                ray.kill(actor)


class Halt(Stopper):
    """Stops all trials when a person or a limit asks for it."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def __call__(self, trial_id: str, result: object) -> bool:
        return False

    def stop_all(self) -> bool:
        """Return whether to stop. Tune reports no end of the trials that it stops then."""
        return self._live.must_stop()

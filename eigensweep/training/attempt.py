"""One attempt at a trial: its replicates, trained from rung to rung with commits. No Ray here.

`Attempt.advance` trains the replicates in this process, as many at once as the trial has cores. Who
trains them otherwise (the lanes of an engine) asks `is_ready` and `report`: what is reported is the
same.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite
from statistics import fmean

from eigensweep.common.direction import best, is_better
from eigensweep.protocol.ledger import PAUSED
from eigensweep.protocol.messages import Order, Report
from eigensweep.results.ranking import OBJECTIVE
from eigensweep.results.seeds import split_seeds, summarise
from eigensweep.results.trial_result import End, Metrics, ReplicateResult, Result
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.store import spectrum_files
from eigensweep.store.checkpoints import Store, pack, replicate_key
from eigensweep.store.commits.curves import CurvePoint, cut
from eigensweep.store.commits.kept_files import BEST, StateDict
from eigensweep.store.marks import cancel_mark, leave_mark, pause_mark
from eigensweep.store.places.durable_files import DamagedError
from eigensweep.store.spectrum_files import SpectraJson
from eigensweep.training.corpora import find_data_root
from eigensweep.training.errors import contain
from eigensweep.training.selection import ReportedTests, selected
from eigensweep.training.training import Training, set_up_thread

logger = logging.getLogger(__name__)

GLANCE_SECONDS = 1.0
"""Seconds of training between two looks whether the trial was cancelled or a commit is due."""

LIVELY_SECONDS = 2.0
"""A commit that costs little is made this often, so that curves in MLflow move."""

COMMIT_SHARE = 0.05
"""Commits take at most this share of the time, unless `checkpoint_seconds` have passed."""


class NoLongerWanted(Exception):  # noqa: N818  (not an error)
    """The experiment was cancelled while this trial was training."""


class Paused(Exception):  # noqa: N818  (not an error)
    """The experiment was paused while this trial was training."""


@dataclass
class Threads:
    """The threads that train the replicates of a trial on a CPU.

    Where it has several cores and several replicates, each of these has a thread with one core: a
    recurrent network of a few hundred units is slower with two (`python -m bench.replicates`).
    """

    at_once: int
    """How many replicates train at once."""
    cpus: float
    """Cores of each."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Set once one of them has ended with an error: the others commit what they have, and pause."""
    turn: threading.Lock = field(default_factory=threading.Lock)
    """Held by the thread that calls a function of the user's, which may not be safe for threads."""

    @classmethod
    def of(cls, config: TrialConfig, cpus: float, device: str) -> Threads:
        """Return the threads of a trial that has so many cores; on a GPU it has one."""
        at_once = min(int(cpus), config.replicates) if device == "cpu" else 1
        return cls(at_once, 1) if at_once > 1 else cls(1, cpus)

    def set_up(self) -> None:
        """Let PyTorch compute in this thread as in each of these."""
        set_up_thread(self.cpus)

    def run(self, trainings: Sequence[Callable[[], None]]) -> None:
        """Call all of them, and return when all have ended.

        After the first error no other begins, and it is raised; `Paused` only if nothing else is.
        """
        if self.at_once == 1:
            for train in trainings:
                train()
            return
        self.stop.clear()
        with ThreadPoolExecutor(self.at_once, initializer=self.set_up) as pool:
            try:
                wait(called := [pool.submit(self._call, train) for train in trainings])
            except BaseException:  # this thread is interrupted
                self.stop.set()
                raise
        for each in sorted(called, key=lambda each: isinstance(each.exception(), Paused)):
            each.result()

    def _call(self, train: Callable[[], None]) -> None:
        if self.stop.is_set():
            raise Paused
        try:
            train()
        except BaseException:
            self.stop.set()
            raise


class Attempt:
    """The replicates of one trial, picked up where the store has them."""

    @contain()
    def __init__(
        self, order: Order, device: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin the attempt that `order` describes.

        `clock` gives seconds; a commit is due when enough of them have passed.

        Raises:
            StaleAttemptError: if a later attempt has begun.
            StorageError: if the store cannot be used.
            CorpusMissingError: if the corpus is neither here nor in the store.
        """
        config = TrialConfig.from_dict(order.config)
        self._threads = Threads.of(config, order.resources["CPU"], device)
        self._threads.set_up()
        pause = pause_mark(order.storage, order.experiment)
        leave = leave_mark(order.storage, order.experiment, order.number, order.attempt)
        cancel = cancel_mark(order.storage, order.experiment)
        pause.forget()
        store = Store(order.storage)
        data_root = find_data_root(config, store, order.data_root, order.corpus)
        self.replicates = [
            Replicate(
                Training(config, seed, data_root=data_root, device=device),
                order,
                store,
                is_unwanted=cancel.exists,
                is_paused=lambda: self._threads.stop.is_set() or pause.exists() or leave.exists(),
                clock=clock,
            )
            for seed in config.seeds
        ]
        self.rungs = order.rungs
        self.reported = order.reported
        """Step of the last rung that the ledger has heard of."""
        self._seeds_go_on = order.seeds_go_on

    @property
    def rung(self) -> int:
        """The next step to report at: the first rung that was not reported."""
        return next((r for r in self.rungs if r > self.reported), self.rungs[-1])

    @property
    def reached_step(self) -> int:
        """Step of the replicate that has come furthest."""
        return max(r.training.step for r in self.replicates)

    @contain()
    def advance(self) -> Report:
        """Train to the next rung that was not reported, and return what to report there.

        A rung that lies before the checkpoint is answered from the curve, without training.
        """
        self._threads.set_up()
        try:
            self.train(self.rung)
        except NoLongerWanted:
            return self.report_cancelled()
        except Paused:
            return self.report_paused()
        report = self.report()
        if report.outcome is not None:
            self.keep_best()
        return report

    def train(self, rung: int) -> None:
        """Train the replicates to `rung`, in their order, and commit each.

        If one has diverged, those after it do not begin, unless the seeds of this trial go on.

        Raises:
            NoLongerWanted: if the experiment was cancelled.
            Paused: if it was paused; all that was trained is committed.
        """
        self._threads.run([partial(self._train, each, rung) for each in self.replicates])

    def _train(self, replicate: Replicate, rung: int) -> None:
        """Train one replicate to `rung`, unless one before it has ended the trial."""
        before = self.replicates[: self.replicates.index(replicate)]
        if not any(self._ends_all(each, rung) for each in before):
            replicate.train(rung, self._threads.at_once)

    def is_ready(self) -> bool:
        """Tell whether the next rung can be reported.

        All replicates have come to it, or one ends them all and those before it have come to it: as
        if they were trained one after another.
        """
        for replicate in self.replicates:
            if not replicate.has_come_to(self.rung):
                return False
            if self._ends_all(replicate, self.rung):
                break
        return True

    def _ends_all(self, replicate: Replicate, rung: int) -> bool:
        """Tell whether the trial is over because this replicate has diverged."""
        return replicate.has_diverged(rung) and not self._seeds_go_on

    def report(self) -> Report:
        """Return what to report at the next rung, which from now on counts as reported.

        What was trained beyond the rung does not show. Where one replicate has ended them all,
        those after it count up to the rung before, wherever they are.
        """
        rung, is_over = self.rung, False
        counted: list[tuple[Replicate, int]] = []
        """Each replicate, and the step up to which it counts."""
        for replicate in self.replicates:
            replicate.counts_to = self.reported if is_over else rung
            counted.append((replicate, replicate.counts_to))
            is_over = is_over or self._ends_all(replicate, rung)
        ended = is_over or all(r.has_ended(rung) for r in self.replicates)
        diverged = any(r.has_diverged(until) for r, until in counted)
        self.reported = rung
        result = summarise([replicate.result(until) for replicate, until in counted])
        metrics = _means_so_far(counted)
        outcome: End | None = None
        if ended:
            outcome = "diverged" if diverged else "completed"
            if result.value is not None and not diverged:
                metrics[OBJECTIVE] = result.value
        elif OBJECTIVE in metrics:
            result = replace(result, value=metrics[OBJECTIVE])
        reached = max(min(until, replicate.training.step) for replicate, until in counted)
        committed = tuple(
            (replicate.training.seed, step)
            for replicate, until in counted
            if (step := min(until, replicate.taken_step)) > 0
        )
        damage = "; ".join(filter(None, (each.damage for each in self.replicates))) or None
        return Report(reached, metrics, outcome, result, committed=committed, damage=damage)

    def report_cancelled(self) -> Report:
        """Return the report of a trial that is no longer wanted."""
        return Report(self.reached_step, outcome="cancelled")

    def report_paused(self) -> Report:
        """Return the report of a trial that gives its place back, and will go on later."""
        return Report(self.reached_step, lost=PAUSED, lost_by="pause")

    def keep_best(self) -> None:
        """Write each replicate's selected weights beside its checkpoints."""
        for replicate in self.replicates:
            replicate.keep_best()


@dataclass(frozen=True)
class Commit:
    """What a replicate is about to commit: copies, which training no longer touches."""

    step: int
    state: StateDict
    points: list[CurvePoint]
    spectra: list[tuple[int, SpectraJson]]


class Replicate:
    """One training with its place in the store."""

    def __init__(
        self,
        training: Training,
        order: Order,
        store: Store,
        is_unwanted: Callable[[], bool],
        is_paused: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin the attempt in the store and go on from what is committed there.

        `clock` gives seconds; a commit is due when enough of them have passed.
        """
        self.training, self.counts_to = training, training.steps
        """The training, and the step up to which its trial counts it."""
        self._store, self._clock = store, clock
        self._is_unwanted, self._is_paused = is_unwanted, is_paused
        self.evaluations: list[CurvePoint] = []
        """The point of every evaluation that was taken for a commit, but the one at step 0."""
        self._key = key = replicate_key(order.experiment, order.number, training.seed)
        self._attempt, self._checkpoint_seconds = order.attempt, order.checkpoint_seconds
        self.damage = store.begin(key, order.attempt)
        """What was found damaged in the store, and what this goes on from; None: nothing was."""
        if order.donor is not None:
            donor = replicate_key(order.donor.experiment, order.donor.number, training.seed)
            if training.config.training.spectra and not store.has_checkpoint(key):
                spectrum_files.copy(store, donor, key, order.attempt)
            if store.copy(donor, key, training.can_use):
                logger.info("going on from another trial donor=%s key=%s", donor, key)
            else:
                self._take_result(order, donor)
        self._shown = {f"param/{path}": value for path, value in order.shown.items()}
        snapshot, takeover = store.newest(key), order.takeover
        is_usable = snapshot is None or training.can_use(snapshot.state)
        snapshot = snapshot if is_usable else None
        if snapshot is not None and takeover is None:
            training.load_state_dict(snapshot.state)
            self._remember(snapshot.points)
        elif snapshot is not None and takeover is not None:
            training.load_state_dict(snapshot.state, takeover.source_hash)
            self._remember(_inherit(training, snapshot.points, takeover.step))
        self.taken_step = -1 if snapshot is None else snapshot.step
        """Step of the last commit that was taken, -1 if there is none."""
        self._took_end = training.is_finished
        newest = store.progress(key).step
        if self.damage is None and is_usable and self.taken_step < newest:
            behind = f"its checkpoint of step {self.taken_step}" if snapshot else "its start"
            self.damage = f"{key} goes on from {behind}: that of step {newest} is damaged or gone"
        self._committed_at = clock()
        self._cost = 0.0

    def _take_result(self, order: Order, donor: str) -> None:
        """End with the donor's result, where it is known and nothing is committed here.

        The donor may have gone on since: its curve is cut, and its best weights are left.
        """
        known = {each.seed: each for each in split_seeds(order.known or Result())}
        result = known.get(self.training.seed)
        if result is None or self._store.has_checkpoint(self._key):
            return
        try:
            points = self._store.points(donor)
        except DamagedError as error:
            logger.warning("training what is known, as its curve cannot be read: %s", error)
            return
        self.training.take_result(result)
        state = self.training.state_dict()
        own = cut(points, self.training.steps)
        if own == points:
            with suppress(FileNotFoundError):  # they may be left though its checkpoint is not
                best = self._store.kept.read(donor, BEST)
                self._store.kept.write(self._key, self._attempt, BEST, best)
        self._store.commit(self._key, self._attempt, result.step, state, own)
        logger.info("taking the result of another trial donor=%s key=%s", donor, self._key)

    def train(self, rung: int, at_once: int = 1) -> None:
        """Train to `rung`, unless that is behind us, and commit what is new there.

        `at_once` replicates of the trial share its cores, and the time that passes.
        """
        if not self.training.is_finished and self.training.step < rung:
            self.training.run(rung, self.glance, GLANCE_SECONDS, at_once)
        if self.has_news:
            self.commit()

    def has_come_to(self, rung: int) -> bool:
        """Tell whether nothing is left to train up to `rung`."""
        return self.training.is_finished or self.training.step >= rung

    def has_ended(self, rung: int) -> bool:
        """Tell whether this training was over when it came to `rung`.

        One whose first step beyond the rung failed was not: alone, it would have stopped before.
        """
        return self.training.is_finished and self.training.step + self.training.failed_step <= rung

    def has_diverged(self, rung: int) -> bool:
        """Tell whether this training had diverged when it came to `rung`."""
        return self.has_ended(rung) and self.training.outcome == "diverged"

    @property
    def has_news(self) -> bool:
        """Whether no commit was taken of the newest step, or of the end: a step may fail."""
        training = self.training
        return training.step > self.taken_step or (training.is_finished and not self._took_end)

    def is_due(self, sharing: int = 1) -> bool:
        """Tell whether it is time for a commit, where `sharing` trainings commit in turn.

        It is asked every `GLANCE_SECONDS`, and the next time would be too late.
        """
        pause = max(LIVELY_SECONDS, sharing * self._cost / COMMIT_SHARE)
        latest = self._checkpoint_seconds - GLANCE_SECONDS
        return self._clock() - self._committed_at >= min(pause, latest)

    def glance(self, update: Callable[[], None] | None = None) -> None:
        """Commit if it is time for that; `update` makes the training's tensors current.

        Raises:
            NoLongerWanted: if the experiment was cancelled.
            Paused: if it was paused; what is new is committed.
        """
        if self._is_unwanted():
            raise NoLongerWanted
        if self._is_paused():
            if self.has_news:
                self.commit(update)
            raise Paused
        if self.is_due():
            self.commit(update)

    def commit(self, update: Callable[[], None] | None = None) -> None:
        """Commit what is new, here and now; `update` makes the training's tensors current."""
        self.write(self.take(update))

    def take(self, update: Callable[[], None] | None = None) -> Commit:
        """Return what is new, for `write`; the next commit is due a while from now.

        Commits are written in the order in which they were taken. `update` makes the training's
        tensors current, where others train it; its time counts as the commit's.
        """
        training, began = self.training, self._clock()
        if update is not None:
            update()
        spectra, points = training.drain_spectra(), self._show(training.drain())
        taken = Commit(training.step, training.state_dict(), points, spectra)
        self._remember(points)
        self.taken_step, self._took_end = training.step, training.is_finished
        self._committed_at = self._clock()
        self._cost = self._committed_at - began
        return taken

    def write(self, commit: Commit) -> None:
        """Write to the store what `take` returned; any thread may do that.

        Raises:
            StaleAttemptError: if a later attempt has begun.
            StorageError: if it cannot be written.
        """
        began = self._clock()
        for step, spectra in commit.spectra:
            spectrum_files.write(self._store, self._key, self._attempt, step, spectra)
        self._store.commit(self._key, self._attempt, commit.step, commit.state, commit.points)
        self._committed_at = self._clock()
        self._cost += self._committed_at - began

    def result(self, until: int) -> ReplicateResult:
        """Return what is known at step `until`, whatever was trained beyond it.

        `seconds` is then a share of all seconds by steps.
        """
        training, now = self.training, self.training.result()
        if training.step + training.failed_step <= until:
            return now
        if training.step <= until:
            return replace(now, outcome=None, divergence=None)
        key = f"valid/{training.selection.metric.name}"
        tests = ReportedTests(training.config.task.metrics)
        seconds = now.seconds * until / training.step
        chosen: CurvePoint | None = None
        latest = self._evaluations_until(until)
        for point in latest:
            value = point.metrics.get(key)
            if value is not None and (
                chosen is None
                or is_better(value, chosen.metrics[key], training.selection.metric.better)
            ):
                chosen = point
            tests.see(_part(point, "test_now/"), scheduled=True)
        has_tests = training.config.training.test_every_evaluation
        return replace(
            now,
            outcome=None,
            divergence=None,
            value=chosen.metrics[key] if chosen else None,
            best_step=chosen.step if chosen else None,
            step=until,
            valid=_part(chosen, "valid/") if chosen else {},
            test={},
            seconds=seconds,
            reused_seconds=now.reused_seconds and min(now.reused_seconds, seconds),
            constraint=_part(latest[-1], "constraint/") if latest else {},
            best_test=tests.best if has_tests else None,
            last_test=tests.last if has_tests else None,
        )

    def scores_until(self, until: int) -> list[Metrics]:
        """Return the validation scores of each evaluation up to a step."""
        scores = (
            {name: value for name, value in point.metrics.items() if name.startswith("valid/")}
            for point in self._evaluations_until(until)
        )
        return [each for each in scores if each]

    def keep_best(self) -> None:
        """Write the weights of the selected point to `best.pt`, beside the checkpoints.

        Where that point lies beyond the step up to which the trial counts this training, the
        weights are those that an earlier checkpoint had selected. Without one nothing is written.

        Raises:
            StaleAttemptError: if a later attempt has begun.
            StorageError: if it cannot be written.
        """
        best = self.training.selection.best
        if best is not None and best.step > self.counts_to:
            earlier = self._store.newest(self._key, self.counts_to)
            best = None if earlier is None else selected(earlier.state)
        if best is None:
            return
        content = {
            "config": json.dumps(self.training.config.model_dump(mode="json")),
            "seed": self.training.seed,
            "step": best.step,
            "value": best.value,
            "weights": best.weights,
        }
        self._store.kept.write(self._key, self._attempt, BEST, pack(content))

    def _evaluations_until(self, until: int) -> list[CurvePoint]:
        """Return the evaluations up to a step, but not one that only a shorter budget asked for."""
        every, end = self.training.evaluate_every, self.training.steps
        return [
            point
            for point in self.evaluations
            if point.step <= until and (point.step % every == 0 or point.step == end)
        ]

    def _show(self, points: list[CurvePoint]) -> list[CurvePoint]:
        """Return points of the curve; those of evaluations show the values trained with, too."""
        if not self._shown:
            return points
        return [
            replace(point, metrics=point.metrics | self._shown) if _is_evaluation(point) else point
            for point in points
        ]

    def _remember(self, points: list[CurvePoint]) -> None:
        known = self.evaluations[-1].step if self.evaluations else 0
        for point in points:
            if _is_evaluation(point) and point.step > known:
                self.evaluations.append(point)


def _is_evaluation(point: CurvePoint) -> bool:
    return any(not name.startswith("train/") for name in point.metrics)


def _inherit(training: Training, points: list[CurvePoint], step: int) -> list[CurvePoint]:
    """Return the evaluations of the weights that were taken over at a step: their best until then.

    What the trial's own earlier weights have scored is no longer its result.
    """
    own, best = [point for point in points if point.step > step], training.selection.best
    if best is None or best.step > step:
        return own
    scores = {f"valid/{name}": value for name, value in best.valid.items() if isfinite(value)}
    return [CurvePoint(best.step, scores, 0), *own]


def _means_so_far(counted: list[tuple[Replicate, int]]) -> Metrics:
    """Return the best value so far and the latest evaluation, means over replicates.

    Each replicate comes with the step up to which it counts. Those that diverged are left out,
    unless all did.
    """
    counted = [each for each in counted if not each[0].has_diverged(each[1])] or counted
    metric = counted[0][0].training.selection.metric
    key = f"valid/{metric.name}"
    bests, latest = [], []
    for replicate, until in counted:
        seen = replicate.scores_until(until)
        values = [metrics[key] for metrics in seen if key in metrics]
        if not values:
            return {}
        bests.append(best(values, metric.better))
        latest.append(seen[-1])
    shared = set.intersection(*(set(metrics) for metrics in latest))
    means = {name: fmean(m[name] for m in latest) for name in sorted(shared)}
    return {OBJECTIVE: fmean(bests), **means}


def _part(point: CurvePoint, prefix: str) -> Metrics:
    """Return the metrics whose names begin with a prefix, without it."""
    return {
        name.removeprefix(prefix): value
        for name, value in point.metrics.items()
        if name.startswith(prefix)
    }

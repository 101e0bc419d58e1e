"""The driver of one experiment: a function of its spec and its ledger.

Started for the first time or for the tenth, it does the same: it takes up what the ledger says is
unfinished, asks for more until the search is exhausted, and stays until MLflow holds everything.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Set
from dataclasses import replace
from functools import partial
from pathlib import Path

import optuna
from ray import tune

from eigensweep.protocol.code import own_code, own_parts
from eigensweep.protocol.fair_shares import Demand
from eigensweep.protocol.ledger import Ended, Ledger, StaleWriteError, TrialEntry
from eigensweep.protocol.messages import (
    DriverOptions,
    Notice,
    Order,
    Params,
    Report,
    Reports,
    SpecJson,
)
from eigensweep.protocol.shares import Share, share_of, spread_lanes
from eigensweep.protocol.states import OPEN_TRIALS, ExperimentEnd
from eigensweep.results.ranking import OBJECTIVE
from eigensweep.results.trial_result import Metrics, Result
from eigensweep.search_spaces.checks.memory import limit_memory, reserve_memory
from eigensweep.search_spaces.checks.search_words import find_brackets
from eigensweep.search_spaces.space import Point
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.store.checkpoints import Store, replicate_key
from eigensweep.store.places.disk_space import DiskSpace
from eigensweep.store.places.files import is_url
from eigensweep.store.places.store_watch import StoreWatch
from eigensweep.store.upkeep.store_markers import StoreMarker, find_missing_commit
from eigensweep.training.memory import unshared_bytes
from eigensweep.workers.driver.nodes import capacity
from eigensweep.workers.driver.nodes.cordons import Cordons
from eigensweep.workers.driver.nodes.corpora import SharedCorpora
from eigensweep.workers.driver.nodes.cpu_nodes import CPU_NODES
from eigensweep.workers.driver.nodes.demand import Bundle, bundles_of, wish
from eigensweep.workers.driver.nodes.draining import Draining
from eigensweep.workers.driver.nodes.fair_share import FairShare
from eigensweep.workers.driver.nodes.lanes import choose_lanes
from eigensweep.workers.driver.search.leaders import config_to_train
from eigensweep.workers.driver.search.study import Study
from eigensweep.workers.driver.stalls import StallWatch, read_progress
from eigensweep.workers.driver.standstill import Standstill
from eigensweep.workers.driver.summary.report import write_report
from eigensweep.workers.driver.summary.so_far import read_so_far
from eigensweep.workers.driver.sweep import Job, Sweep
from eigensweep.workers.driver.tune.schedulers import make_scheduler
from eigensweep.workers.driver.tune.stopping import CANCELLED, StopReason
from eigensweep.workers.driver.tune.tune_loop import run_tune
from eigensweep.workers.tracking.subject import make_subject
from eigensweep.workers.tracking.tracker import Tracker

logger = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""How long a driver relies on what it knows of the cluster's nodes."""

MEMORY_STEP = 8 * 2**20
"""Steps in which a driver reports its own memory, so that it does not report at each look."""

PAUSE_SECONDS = 60.0
"""Seconds that pausing trials may take to commit and leave before their processes are ended."""

DELIVERY_SECONDS = 10.0
"""Seconds that a paused experiment waits until MLflow has what was committed."""

READ_SECONDS = 30.0
"""Seconds that a driver takes, in all, to read the curves of trials that are cut off: where the
store is slow and many trials are cancelled, their end comes first."""

SWITCH_SECONDS = 0.0005
"""Seconds that the delivering thread may hold Python's lock while Tune's loop waits for it. The
loop releases the lock at each database statement, and would wait 5 ms for it each time."""

TUNE_SETTINGS = {
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a trial that diverged has no objective
    "TUNE_MAX_PENDING_TRIALS_PG": "1000000",  # a driver bounds what it hands out itself
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
}


def run_experiment(experiment: str, spec: SpecJson, ledger: Ledger, options: DriverOptions) -> None:
    """Run an experiment to its end, or what is left of it, and deliver it to MLflow.

    Raises:
        StaleWriteError: if another driver has taken over. An exception is not recorded: the caller
            starts another driver.
    """
    with Standstill(lambda notice: ledger.record_notices([notice])) as watch:
        driver = ExperimentDriver(experiment, ExperimentSpec.from_stored(spec), ledger, options)
        watch.follow(driver.seen_at, driver.tell_standstill)
        driver.run()


class ExperimentDriver:
    """What one driver works with: the sweep, the reason to stop, and the delivery to MLflow."""

    def __init__(
        self, experiment: str, spec: ExperimentSpec, ledger: Ledger, options: DriverOptions
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.experiment, self.spec, self.ledger, self.options = experiment, spec, ledger, options
        better, resume_state = spec.objective_metric.better, ledger.resume_state()
        self._ended = resume_state.ended
        self.tracker: Tracker | None = None
        if options.mlflow_uri is not None:
            subject = make_subject(experiment, spec, better, resume_state.owner)
            self.tracker = Tracker(options.mlflow_uri, subject, ledger, options.storage)
        store = Store(options.storage)
        self.sweep = Sweep(
            spec,
            ledger,
            Study(spec),
            retries=options.retries,
            watch=self.tracker.see if self.tracker else lambda entry: None,
            cordons=Cordons(lambda: capacity.find_nodes(self.share), capacity.find_silent_nodes),
            take_over=partial(take_over, store, experiment),
            read_so_far=self.read_so_far,
            resume_state=resume_state,
        )
        limit = spec.limits.wall_seconds
        deadline = None if limit is None else time.monotonic() + limit - resume_state.spent_seconds
        self._watch = StoreWatch(experiment)
        self.why_stop = StopReason(
            experiment, ledger, options.storage, self._watch, limit, deadline
        )
        lanes = spec.resources.lanes
        lanes = 1 if lanes == "auto" else lanes
        self.share = share_of(reserve_memory(spec), spec.replicates, lanes)
        """What one trial asks Ray for; with `lanes: auto` it is set again once the lanes are
        chosen."""
        self.asked = share_of(spec.resources, spec.replicates, lanes)
        """The same without guessed memory, for an autoscaler: it starts no node for memory if its
        node types do not declare any."""
        self._stalls = StallWatch(
            partial(read_progress, store, experiment),
            spec.limits.stall_seconds,
            options.checkpoint_seconds,
            time.monotonic,
            lambda entry, steps: self.sweep.note_steps(entry.number, steps),
        )
        folders = [options.storage] if Path(options.storage).is_absolute() else []
        self._disks = DiskSpace(folders, options.least_free_bytes)
        self._store = store
        self._corpora = (
            SharedCorpora(store, options.data_root, experiment) if options.shares_corpora else None
        )
        self._marker = StoreMarker(store, experiment, own_parts(), self._watch)
        self._told: list[Notice] | None = None
        """The notices that the ledger has; None: those of an earlier driver."""
        self._stood_still = False
        """Whether the ledger was told so, and not yet that it goes on."""
        self._in_lanes: set[int] = set()
        """Trials in engines; the engine watches them for stalls."""
        self._slots, self._looked_at = 0, -math.inf
        self._fair = FairShare(ledger, time.monotonic)
        self._is_crowded_out = False
        """Whether Tune was stopped because other experiments have all slots."""
        self._waits_for_others = False
        self._draining = Draining(experiment, options.storage, self._watch, capacity.find_draining)
        self._paused_at: float | None = None
        self._read_seconds = 0.0
        self._has_given_up = False
        """Whether a pause was asked for, because trials fail one after another."""
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def run(self) -> None:
        """Train every trial, record the end, and wait until MLflow holds everything.

        An experiment that is paused is left where it is, for a later driver. Of one that has ended
        nothing is trained, however it ended: MLflow is brought up to date.
        """
        if self.tracker:
            self.tracker.start()
        try:
            if self._ended is None:
                self._train()
                if self._pause():
                    return
                self._ended = self._end()
            self._deliver(*self._ended)
        finally:
            if self.tracker:
                self.tracker.abandon()
            if self._scratch is not None:
                self._scratch.cleanup()

    def next_order(self) -> Order | None:
        """Return what the next trial's process is to do; None: nothing waits, or has no room."""
        if self._disks.notice() is not None or (marker := self._marker.refresh()) is None:
            return None
        if self.sweep.running >= self._concurrency() or (job := self.sweep.next_job()) is None:
            return None
        self._waits_for_others = False  # also if the trial ends before anybody looks
        order = make_order(self.experiment, self.spec, self.options, self.share, job, marker)
        if self._corpora is not None:
            order = replace(order, corpus=self._corpora.provide(order.config))
        (self._in_lanes.discard if order.engine is None else self._in_lanes.add)(order.number)
        return order

    def is_full(self) -> bool:
        """Return whether no trial may begin until one ends, here or in another experiment."""
        limit = self._concurrency()
        is_idle = not (limit or self.sweep.running)
        self._is_crowded_out = is_idle and self.sweep.prepare_next() is not None
        return self._is_crowded_out or 0 < self.sweep.running >= limit

    def should_leave(self, node: str) -> bool:
        """Return whether a process on this node should get no further trial.

        The node drains, or other trials wait for the processors beside its GPUs.
        """
        is_wanted = self._fair.leaves_gpus and CPU_NODES.has_gpus(node)
        return is_wanted or node in self.sweep.cordons.draining

    def find_stops(self) -> Set[int]:
        """Return the trials that a person has asked to stop."""
        return self.why_stop.stops

    def end_stalled(self) -> Set[int]:
        """Record the trials that make no progress as stalled; return their numbers.

        Their processes still run. While the store does not answer, no trial counts as stalled.
        """
        if self._watch.notice is not None:
            self._stalls.be_blind()
            return frozenset()
        stalled = self._stalls.look(lambda: self.sweep.training, self._in_lanes)
        for stall in stalled:
            number = stall.entry.number
            logger.warning("trial %d is stalled: %s", number, stall.words, extra={"trial": number})
            self.sweep.end(number, "stalled", error=stall.words)
        return {stall.entry.number for stall in stalled}

    def read_so_far(self, entry: TrialEntry) -> Result | None:
        """Return what the store knows of a trial that is cut off; None where it does not answer."""
        result, begun = None, time.monotonic()
        if self._watch.notice is None and self._read_seconds < READ_SECONDS:
            with self._watch.asking():
                metric = self.spec.objective_metric
                result = read_so_far(self._store, self.experiment, entry, metric)
            self._read_seconds += time.monotonic() - begun
        return result

    def find_missing_commit(self, order: Order, report: Report) -> str | None:
        """Return what the store lacks of what a report says is committed; None: nothing.

        Where the driver cannot read the store, it believes the report.
        """
        lack = None
        with self._watch.asking():
            lack = find_missing_commit(self._store, order, report)
        host = "unknown" if report.place is None else report.place.node
        return lack and f"node {host}: {lack}"

    def seen_at(self) -> float:
        """Return when it was last seen to go on, by `time.monotonic`; infinity: trials are over."""
        return self.why_stop.asked_at if self._ended is None else math.inf

    def tell_standstill(self, notice: Notice) -> None:
        """Record that it stands still; when it goes on, the notice is taken back."""
        self.ledger.record_notices([*(self._told or ()), notice])
        self._stood_still = True

    def _train(self) -> None:
        """Run the trials with Ray Tune; cancel them if there is no room or a reason to stop."""
        if self.why_stop() is None:
            self.sweep.prepare_next()  # the search may be over, if all its results are known
            if not self.sweep.is_over:
                self._wait_for_store()
                self._wait_for_room()
        if self.must_stop():
            return
        # Trials may be open and none ready: copies of a population wait for the store.
        self.sweep.prepare_next()
        if not self.sweep.is_over and not capacity.count_slots(self.share):
            why = capacity.explain_no_slot(self.share, capacity.list_living_nodes())
            self.sweep.cancel(f"resources: {why}", "failed")
        elif not self.sweep.is_over:
            self._choose_lanes()
            try:
                self._run_in_turns()
            finally:
                self._wish([])
        if not self.sweep.is_over and not self.why_stop.is_pause:
            raise RuntimeError("Ray Tune returned although trials are open")

    def must_stop(self) -> bool:
        """Return whether Tune is to end all trials now, because the experiment ends or pauses.

        If it ends, the trials are recorded as cancelled. If it pauses, they commit and leave by
        themselves within `PAUSE_SECONDS`.
        """
        self._tell()
        if self.sweep.has_given_up and not self._has_given_up:
            self._has_given_up = True
            logger.warning("trials fail one after another, pausing experiment=%s", self.experiment)
            self.ledger.request_pause("trials fail one after another")
        reason = self.why_stop()
        for number in self.find_stops():
            if self.sweep.entries[number].state == "waiting":
                self.sweep.stop(number)
        if self.why_stop.is_cancellation:
            self.sweep.cancel(CANCELLED)
            return True
        if not self.why_stop.is_pause:
            reached = reason or self.sweep.goal_reached
            if reached is not None:
                self.sweep.end_early(reached)
            return reached is not None
        self.sweep.hold()
        self._paused_at = self._paused_at or time.monotonic()
        is_late = time.monotonic() >= self._paused_at + PAUSE_SECONDS
        return is_late or not self.sweep.training

    def _tell(self) -> None:
        """Record why the experiment makes slow progress, if that has changed."""
        low, crowded, away = self._disks.notice(), self._fair.notice(), self._watch.notice
        self._draining.look(lambda: self.sweep.training)
        self.sweep.cordons.draining = self._draining.nodes
        notices = [*filter(None, (low, crowded, away)), *self.sweep.notices()]
        notices += self._draining.notices()
        stood_still, self._stood_still = self._stood_still, False
        if notices != self._told or stood_still:
            if low and low not in (self._told or ()):
                logger.warning("%s experiment=%s", low.words, self.experiment)
            self.ledger.record_notices(notices)
            self._told = notices
        waits = self._fair.has_no_place and not self.sweep.training
        self.why_stop.stop_clock(waits)
        if waits and not self._waits_for_others:
            self.ledger.record_phase("waiting_for_room")
        self._waits_for_others = waits

    def _pause(self) -> bool:
        """Record that the experiment is paused, if it is to be; return whether it is."""
        if not self.why_stop.is_pause or self.sweep.is_over:
            return False
        self.sweep.take_back()
        if self.tracker:
            self.tracker.catch_up(DELIVERY_SECONDS)
        if self.ledger.pause():
            logger.info("experiment paused experiment=%s", self.experiment)
            return True
        self.sweep.cancel(CANCELLED)
        return False

    def _wait_for_store(self) -> None:
        """Wait until the store answers, or there is a reason to stop: Tune is not begun before."""
        while self._marker.refresh() is None and not self.must_stop():
            time.sleep(1)

    def _wait_for_room(self) -> None:
        """Wait until a node has room for a trial, `room_seconds` are over, or a reason to stop.

        The nodes of a cluster come and go; an experiment in the queue should outlive that.
        """
        seconds = self.spec.limits.room_seconds
        deadline = time.monotonic() + (self.options.room_seconds if seconds is None else seconds)
        has_waited = False
        while not self._count_slots():
            if time.monotonic() >= deadline or self.why_stop() is not None:
                return
            if not has_waited:
                self.ledger.record_phase("waiting_for_room")
                self.why_stop.stop_clock(waits=True)
            has_waited = True
            time.sleep(1)
        if has_waited:
            self.ledger.record_phase("starting")
            self.why_stop.stop_clock(waits=False)

    def _run_in_turns(self) -> None:
        """Run Ray Tune until the sweep is over or must stop, with breaks while no share is left.

        With no share left it stops Tune, which would otherwise hold an idle actor.
        """
        while True:
            while self.is_full() and not self.must_stop():
                time.sleep(1)
            if self.must_stop():
                return
            self._run_tune()
            if self.sweep.is_over or not self._is_crowded_out:
                return

    def _choose_lanes(self) -> None:
        """Settle how many lanes an engine has, and how many trials share it.

        Where the spec leaves the number open, it is measured where the trials will run. It is small
        enough for the trials to spread over all GPUs.
        """
        wanted, replicates = self.spec.resources.lanes, self.spec.replicates
        if wanted is None:
            return
        most = self._count_for_each_gpu()
        lanes = wanted
        if lanes == "auto":
            provide = self._corpora.provide if self._corpora else lambda config: None
            lanes = choose_lanes(self.spec, self.options, self.why_stop, provide)
        if most is not None:
            spread = spread_lanes(lanes, replicates, most)
            if spread < lanes:
                words = "fewer lanes, so that all GPUs train lanes=%d of=%d experiment=%s"
                logger.info(words, spread, lanes, self.experiment)
            lanes = spread
        elif lanes == wanted:
            return
        reserved = reserve_memory(self.spec, lanes)
        self.share = share_of(reserved, replicates, lanes, most)
        self.asked = share_of(self.spec.resources, replicates, lanes, most)
        self._looked_at = -math.inf

    def _count_for_each_gpu(self) -> int | None:
        """Return how many trials each GPU gets if all get equally many; None: any number."""
        trials = [count for count in (self.sweep.left, *self._bounds()) if count is not None]
        engines = capacity.count_slots(self.share) // self.share.trials
        if not (self.spec.resources.gpus and trials and engines > 1):
            return None
        return -(-min(trials) // engines)

    def _run_tune(self) -> None:
        """Run Ray Tune until the sweep is over. What it writes is never read back."""
        os.environ.update(TUNE_SETTINGS)
        sys.setswitchinterval(SWITCH_SECONDS)
        folder = self._own_folder() / "tune"
        shutil.rmtree(folder, ignore_errors=True)
        run_tune(self.experiment, self, self._scheduler(), folder)
        shutil.rmtree(folder, ignore_errors=True)

    def _own_folder(self) -> Path:
        """Return a folder for what only this driver reads: in the store, if that is a folder."""
        if not is_url(self.options.storage):
            return Path(self.options.storage) / self.experiment
        if self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix=f"eigensweep-{self.experiment}-")
        return Path(self._scratch.name)

    def _concurrency(self) -> int:
        """Return how many trials run at once: the least of limit, capacity and fair share."""
        slots = self._count_slots()
        most = max(1, min([slots, *self._bounds()]))
        return min(most, self._fair.count(lambda: self._find_demand(most))) if slots else most

    def _find_demand(self, most: int) -> Demand:
        """Return what the experiment wants of the cluster, of which it may have `most`."""
        startable = self.sweep.startable
        if self._disks.notice() is not None:
            startable = self.sweep.running
        trials = most if startable is None else min(startable, most)
        # One at least: whether the search has an end is known when it is asked for more.
        memory = -(-(unshared_bytes() or 0) // MEMORY_STEP) * MEMORY_STEP
        return Demand(max(1, trials), capacity.find_parts(self.share), memory, os.getpid())

    def _bounds(self) -> list[int]:
        limit = self.spec.limits.concurrency
        return [] if limit is None else [limit]

    def _count_slots(self) -> int:
        """Return how many trials the cluster holds now, and tell it how many are wanted.

        The answer is kept for `LOOK_SECONDS`, since nodes join and leave.
        """
        if time.monotonic() >= self._looked_at + LOOK_SECONDS:
            self._slots, self._looked_at = capacity.count_slots(self.share), time.monotonic()
            left = self._slots + 1 if self.sweep.left is None else self.sweep.left
            self._wish(bundles_of(self.asked, min([left, *self._bounds()])))
        return self._slots

    def _wish(self, bundles: list[Bundle]) -> None:
        """Tell an autoscaler what is wanted, where nodes come and go."""
        if self.options.room_seconds:
            wish(self.experiment, bundles, self.asked.labels)

    def _scheduler(self) -> tune.schedulers.TrialScheduler:
        """Return the spec's scheduler, which knows what trials under earlier drivers reported."""
        compares = self.spec.scheduler.name not in ("none", "pbt")
        example = next(each.config for each in self.sweep.entries.values() if each.config)
        brackets = find_brackets(self.spec, TrialConfig.from_dict(example))
        assert brackets is not None
        return make_scheduler(
            self.spec.scheduler,
            brackets,
            better=self.spec.objective_metric.better,
            baseline=self.spec.baseline,
            past=(
                (entry.number, _objectives(entry))
                for entry in (self.ledger.walk() if compares else ())
                if entry.state not in OPEN_TRIALS
            ),
        )

    def _end(self) -> Ended:
        """Record that the experiment is over; return how."""
        self._tell()  # what was damaged under the last trials
        ended = self.ledger.end(*self.sweep.close())
        logger.info("experiment ended experiment=%s state=%s", self.experiment, ended[0])
        return ended

    def _deliver(self, state: ExperimentEnd, error: str | None) -> None:
        """Return when MLflow holds everything of an experiment that is over."""
        if self.tracker is None:
            self.ledger.set_tracked()
        else:
            folder = self._own_folder() / "report"
            report = write_report(folder, self.spec, self.ledger.walk(), state)
            self.tracker.close(state, error, self.sweep.entries.best(), report.texts, report.draw)
            self._wait_for_delivery(self.tracker)

    def _wait_for_delivery(self, tracker: Tracker) -> None:
        """Return when MLflow has everything, or is away: a later driver then goes on."""

        def look() -> None:
            self.ledger.intent()
            trouble = tracker.find_trouble()
            if trouble is not None:
                self.ledger.record_notices([trouble])
                tracker.abandon()

        try:
            tracker.wait(look)
            refusal = tracker.find_refusal()
            if refusal is not None:
                self.ledger.record_notices([refusal])
        except StaleWriteError as error:
            logger.info("it is delivered later experiment=%s: %s", self.experiment, error)


def take_over(store: Store, experiment: str, entry: TrialEntry) -> None:
    """Give a trial, once, the checkpoints of the trial that its newest `lineage` names.

    Raises:
        StorageError: if the store cannot be read or written.
    """
    taken = entry.lineage[-1]
    for seed in TrialConfig.from_dict(entry.config).seeds:
        source = replicate_key(experiment, taken.source, seed)
        key = replicate_key(experiment, entry.number, seed)
        store.take_over(source, key, entry.attempt + 1, taken.step)


def make_order(
    experiment: str,
    spec: ExperimentSpec,
    options: DriverOptions,
    share: Share,
    job: Job,
    marker: str | None = None,
) -> Order:
    """Return what the process of a job's trial is to do."""
    entry = job.entry
    config = config_to_train(entry)
    if entry.lineage:
        config = spec.trial(Point(entry.arm, entry.current_params)).model_dump(mode="json")
    whole = trained = TrialConfig.from_dict(config)
    if config is not entry.config:
        whole = TrialConfig.from_dict(entry.config)
    again = entry.added_seeds > 0
    is_population = spec.scheduler.name == "pbt"
    return Order(
        experiment=experiment,
        number=entry.number,
        attempt=job.attempt,
        donor=job.donor,
        known=job.known,
        config=config,
        rungs=tuple(spec.rung_steps(whole)),
        reported=0 if again else entry.reached,
        reports=() if again else _objectives(entry),
        storage=options.storage,
        data_root=options.data_root,
        checkpoint_seconds=options.checkpoint_seconds,
        resources=share.resources,
        code=own_code(),
        engine=None if job.alone else share.engine,
        avoid=job.avoid,
        log_format=options.log_format,
        otlp_endpoint=options.otlp_endpoint,
        trace=options.trace,
        shown=_numbers(entry.current_params) if is_population else {},
        takeover=entry.lineage[-1] if entry.lineage else None,
        stall_seconds=spec.limits.stall_seconds,
        marker=marker,
        memory_limit=limit_memory(spec, trained),
        labels=share.labels,
        seeds_go_on=spec.scheduler.name == "none",
    )


def _numbers(params: Params) -> Metrics:
    return {path: value for path, value in params.items() if isinstance(value, int | float)}


def _objectives(entry: TrialEntry) -> Reports:
    """Return step and objective of a trial's rung reports."""
    reports = sorted(entry.reports.items())
    return tuple((step, metrics[OBJECTIVE]) for step, metrics in reports if OBJECTIVE in metrics)

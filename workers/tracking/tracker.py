"""One thread of a driver sends its experiment to MLflow, from what the store committed.

No training waits for MLflow. Curves are read from the store, so a server that was away gets all it
missed. A point that is sent again (same step, value and timestamp) is the same point there.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Final

from eigensweep.common import logs
from eigensweep.common.direction import sign
from eigensweep.protocol.ledger import DeliveryLedger, TrialEntry
from eigensweep.protocol.messages import Notice
from eigensweep.protocol.states import ExperimentEnd
from eigensweep.results.ranking import OBJECTIVE
from eigensweep.results.trial_result import Measures, Metrics, Result, Source, find_ratio
from eigensweep.store.checkpoints import Store, replicate_key
from eigensweep.store.commits.curves import CurvePoint
from eigensweep.store.commits.kept_files import BEST
from eigensweep.store.places.durable_files import DamagedError, StorageError, StoreAwayError
from eigensweep.workers.tracking.mlflow_runs import (
    ERROR,
    LONGEST_PARAM,
    OUTCOME,
    AwayError,
    MlflowRefusedError,
    RunContent,
    Runs,
)
from eigensweep.workers.tracking.subject import TrackedExperiment
from eigensweep.workers.tracking.view import make_view

logger = logging.getLogger(__name__)

PASS_SECONDS = 1.0
"""Pause between two looks at what is new."""

AT_ONCE = 50
"""Trials that are delivered together: then the ledger learns of them."""

MOST_LOOKS: Final = 100
"""Trials whose curves are looked at in one pass although nothing was heard of them; with more that
train, they take turns."""

LOOK_SECONDS = 5.0
"""Pause between two looks whether another driver has taken over."""

LONGEST_PAUSE = 30.0
"""Pause between two tries while MLflow is away."""

AWAY_SECONDS = 10.0
"""After so many seconds without an answer, what is over is no longer waited for in this driver."""

LONGEST_WORDS: Final = 300
"""Characters of an error that a notice tells."""

REPORT: Final = "report"
"""Folder of an experiment's report among the artifacts of its run."""

WHOLE: Final = "the experiment"
"""The name of all that is delivered, in notices of what MLflow refuses."""

STATUS = {"failed": "FAILED", "cancelled": "KILLED", "stalled": "KILLED"}
"""How a run ends in MLflow; FINISHED where nothing is said here."""


@dataclass
class _Line:
    """One run of a trial, and how much of a replicate's curve it holds."""

    run_id: str
    seed: int | None
    """Whose curve it holds; None for that of several replicates' means, or for none."""
    sent: int = 0


class _Mean:
    """The mean curve of several replicates: a point where each of them has one.

    It is over the seeds that all trials have, also where a race gave a trial more: so it compares
    with the curves of others, and MLflow holds each of its points once.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self._seeds = frozenset(seeds)
        self._known: dict[int, dict[int, CurvePoint]] = {}
        self.points: list[CurvePoint] = []

    def add(self, seed: int, points: list[CurvePoint]) -> None:
        """Take points of one replicate, each step once; seeds of a race do not count."""
        for point in points if seed in self._seeds else ():
            known = self._known.setdefault(point.step, {})
            known[seed] = point
            if len(known) == len(self._seeds):
                self.points.append(_average(list(known.values())))
                del self._known[point.step]


@dataclass
class _Held:
    """What MLflow holds of one trial: its own run, then one for each of several replicates."""

    lines: list[_Line]
    mean: _Mean
    attempt: int = 0
    """0 before anything was sent."""
    entry: TrialEntry | None = None
    """The trial as it was when it was delivered last."""
    looked_at: int = 0
    """The pass in which that was."""
    is_told: bool = False
    """Whether the ledger knows the trial's run."""
    end_of: TrialEntry | None = None
    """The ended trial whose result waits to be sent, or was sent."""


@dataclass
class _End:
    """How the experiment ended, and how much of that MLflow holds."""

    state: ExperimentEnd
    error: str | None
    best: TrialEntry | None
    report: Mapping[str, str]
    """Texts by the names of their files."""
    draw: Callable[[], Sequence[Path]]
    """Draws the plots and returns their files."""
    is_closed: bool = False
    """Whether the experiment's own run is closed in MLflow."""
    plots: Sequence[Path] | None = None
    """What `draw` made, once it did."""


@dataclass(frozen=True)
class _Trouble:
    """Why nothing can be delivered now."""

    since: float
    """By `time.monotonic`: when something was delivered last, or when that was tried first."""
    words: str


class Tracker:
    """Delivers trials to MLflow as they change, until `close` and then until all is delivered."""

    def __init__(
        self, uri: str, subject: TrackedExperiment, ledger: DeliveryLedger, storage: str
    ) -> None:
        self._uri, self._subject, self._ledger = uri, subject, ledger
        self._store = Store(storage)
        self._runs: Runs | None = None
        self._parent: str | None = None
        self._lock = threading.Lock()
        self._news: dict[int, TrialEntry] = {}
        self._held: dict[int, _Held] = {}
        self._passes = 0
        self._end: _End | None = None
        self._failure: BaseException | None = None
        self._trouble: _Trouble | None = None
        self._refused: dict[str, str] = {}
        """What MLflow will never take, and why."""
        self._lacking: set[int] = set()
        """Trials of which MLflow has refused something."""
        self._lost: set[str] = set()
        """Runs of trials that were deleted, and for which all was begun anew."""
        self._answered = 0.0
        """By `time.monotonic`: the beginning of a pass, or of what it could not deliver yet."""
        self._wake, self._over = threading.Event(), threading.Event()
        self._is_awaited, self._caught_up = False, threading.Event()
        self._thread = threading.Thread(target=self._work, name="tracking", daemon=True)

    def start(self) -> None:
        """Begin to deliver."""
        self._thread.start()

    def see(self, entry: TrialEntry) -> None:
        """Deliver a trial as it is now, soon. Returns at once."""
        if _is_new(entry):
            with self._lock:
                self._news[entry.number] = entry

    def close(
        self,
        state: ExperimentEnd,
        error: str | None,
        best: TrialEntry | None,
        report: Mapping[str, str] | None = None,
        draw: Callable[[], Sequence[Path]] = tuple,
    ) -> None:
        """Deliver what is left, the experiment's end and the texts of its report, soon.

        Returns at once. `report` holds the texts by the names of their files. `draw` is called
        after the experiment's run is closed; the files that it returns are delivered last.
        """
        self._end = _End(state, error, best, report or {}, draw)
        self._wake.set()

    def abandon(self) -> None:
        """Stop delivering: this driver gives up and its successor goes on."""
        self._over.set()
        self._wake.set()

    def catch_up(self, seconds: float) -> None:
        """Wait until all that is committed by now is delivered, for so many seconds at most."""
        self._is_awaited = True
        self._wake.set()
        self._caught_up.wait(seconds)

    def wait(self, look: Callable[[], object] = lambda: None) -> None:
        """Wait until everything is delivered after `close`; call `look` now and then.

        Raises:
            BaseException: whatever stopped the delivery for good, such as a `StaleWriteError`, and
                what `look` raises.
        """
        while not self._over.wait(LOOK_SECONDS):
            look()
        if self._failure is not None:
            raise self._failure

    def find_trouble(self) -> Notice | None:
        """Return why nothing could be delivered for `AWAY_SECONDS`; None: something was."""
        trouble = self._trouble
        if trouble is None or time.monotonic() < trouble.since + AWAY_SECONDS:
            return None
        return Notice("delivery", f"not delivered yet: {trouble.words}")

    def find_refusal(self) -> Notice | None:
        """Return what MLflow will never take, and why; None: it has refused nothing."""
        refused = self._refused | (self._runs.refused if self._runs else {})
        if not refused:
            return None
        why = _shorten(next(iter(refused.values())))
        return Notice("delivery", f"MLflow refuses {', '.join(refused)}, and lacks that: {why}")

    def _note_trouble(self, error: Exception) -> None:
        """Keep why a pass failed, unless the last one failed too."""
        if self._trouble is None:
            who = "MLflow does" if isinstance(error, AwayError) else "checkpoints do"
            seconds = time.monotonic() - self._answered
            since = time.strftime("%H:%M", time.gmtime(time.time() - seconds))
            words = f"{who} not answer since {since} UTC: {_shorten(str(error))}"
            self._trouble = _Trouble(self._answered, words)

    def _work(self) -> None:
        # A loop of our own: tenacity repeats one call, and this one also looks for what is new.
        pause = PASS_SECONDS
        try:
            while not self._over.is_set():
                is_awaited, self._answered = self._is_awaited, time.monotonic()
                try:
                    if self._pass():
                        break
                    pause, self._trouble = PASS_SECONDS, None
                    if is_awaited:
                        self._caught_up.set()
                except (AwayError, StorageError) as error:
                    pause = min(2 * pause, LONGEST_PAUSE)
                    self._note_trouble(error)
                    logger.warning("not tracked yet, trying again in %.0f s: %s", pause, error)
                self._wake.wait(pause)
                self._wake.clear()
        except BaseException as error:  # carried over to the thread that waits
            self._failure = error
        self._over.set()

    def _pass(self) -> bool:
        """Deliver what is new; tell whether that was the last of it."""
        end = self._end
        try:
            subject = self._subject
            runs = self._runs = self._runs or Runs(
                self._uri, subject.project, subject.id, self._ledger.experiment_run()
            )
            parent = self._parent = self._parent or self._parent_run(runs)
            news = self._choose(all_of_them=end is not None or self._is_awaited)
            for first in range(0, len(news), AT_ONCE):
                self._deliver(runs, parent, news[first : first + AT_ONCE])
            self._refused.pop(WHOLE, None)  # it has passed
            if end is None:
                return False
            self._end_experiment(runs, parent, end)
        except MlflowRefusedError as error:
            if self._runs is not None:
                self._find_loss(self._runs)
            if self._refused.get(WHOLE) != str(error):  # each pass tries it again
                logger.error("MLflow refuses %s: %s", WHOLE, error)
            self._refused[WHOLE] = str(error)
            if end is None:
                return False
        self._ledger.set_tracked()
        return True

    def _choose(self, *, all_of_them: bool) -> list[TrialEntry]:
        """Return the trials that changed, and some of the others, whose curves may have grown."""
        self._passes += 1
        with self._lock:
            news = list(self._news.values())
        if all_of_them:
            return news
        changed: list[TrialEntry] = []
        waiting: list[tuple[int, int, TrialEntry]] = []
        for entry in news:
            held = self._held.get(entry.number)
            if held is None or held.entry is not entry:
                changed.append(entry)
            else:
                waiting.append((held.looked_at, entry.number, entry))
        return changed + [entry for *_, entry in sorted(waiting)[:MOST_LOOKS]]

    def _parent_run(self, runs: Runs) -> str:
        tags = {**self._subject.tags, "mlflow.note.content": self._subject.description}
        parent = runs.get(None, None, self._subject.name, tags)
        if runs.lacked_experiment and self._ledger.experiment_run() is not None:
            self._deliver_anew()
            runs.lacked_experiment = False
        if runs.is_over(parent):  # the experiment was taken up again
            runs.begin_again(parent)
        axes = self._subject.all_axes
        constants = {k: v for k, v in self._subject.constants.items() if k not in axes}
        known = runs.known_params(parent)
        extended = {
            path: f"{known[path]} before, {value} now"
            for path, value in constants.items()
            if path in known and known[path] != str(value)[:LONGEST_PARAM]
        }
        content = RunContent(params={k: v for k, v in constants.items() if k not in known})
        if extended:
            words = (f"{path}: {change}" for path, change in extended.items())
            content.tags["eigensweep.extended"] = "; ".join(words)
        runs.send(parent, content)
        runs.keep_text(parent, self._subject.spec, "spec.yaml")
        runs.keep_view(make_view(self._subject))
        runs.flush_all()
        if self._ledger.experiment_run() != parent:
            self._ledger.set_run(parent, runs.project_id)
        return parent

    def _deliver_anew(self) -> None:
        """Deliver all trials from the beginning, since MLflow has lost what it held of them."""
        self._ledger.forget_delivery()
        logger.warning("MLflow has lost what it held of the experiment: all is delivered anew")
        known = {entry.number: entry for entry in self._ledger.walk() if _is_new(entry)}
        with self._lock:  # what was heard meanwhile is newer
            self._news = known | self._news

    def _find_loss(self, runs: Runs, refused: Collection[str] = ()) -> None:
        """Ask, when MLflow refuses something, whether it has lost a run.

        Raises:
            AwayError: if so, or if it does not answer. The next pass finds it out and begins anew.
        """
        lost = {run for run in refused if run not in self._lost and runs.has_lost(run)}
        if self._parent is None or not (lost or runs.has_lost(self._parent)):
            return
        self._lost |= lost
        self._runs = self._parent = None
        self._held.clear()
        if self._end is not None:
            self._end.is_closed = False
        raise AwayError("MLflow has lost what it held of the experiment")

    def _deliver(self, runs: Runs, parent: str, entries: Sequence[TrialEntry]) -> None:
        """Deliver what is new of some trials, and record it; with a trial's end, that is all of it.

        Raises:
            AwayError: if MLflow went away; what it had taken of other trials is recorded.
            StorageError: the same, where a curve cannot be read.
        """
        problems = [self._try_trial(runs, parent, entry) for entry in entries]
        refused = runs.flush()
        if refused or any(isinstance(each, MlflowRefusedError) for each in problems):
            self._find_loss(runs, refused)
        taken, whole = [], []
        for entry, problem in zip(entries, problems, strict=True):
            held = self._held.get(entry.number)
            for line in held.lines if held else ():
                if line.run_id in refused:
                    problem = problem or MlflowRefusedError(refused[line.run_id])
            if isinstance(problem, MlflowRefusedError):
                self._note_refusal(entry, problem)
                if held is not None:  # what it does take later is sent
                    held.entry, held.looked_at = entry, self._passes
            elif problem is None:
                taken.append(entry)
            if entry.is_over and (problem is None or isinstance(problem, MlflowRefusedError)):
                whole.append(entry)
        self._record(runs, taken, whole)
        for problem in problems:
            if problem is not None and not isinstance(problem, MlflowRefusedError | DamagedError):
                raise problem

    def _note_refusal(self, entry: TrialEntry, problem: MlflowRefusedError) -> None:
        """Note that MLflow will never take something of a trial; log that once."""
        self._refused.setdefault("some trials", f"trial {entry.number}: {problem}")
        if entry.number not in self._lacking:
            self._lacking.add(entry.number)
            with logs.about(self._subject.id, entry.number):
                logger.error("MLflow refuses trial %d: %s", entry.number, problem)

    def _try_trial(self, runs: Runs, parent: str, entry: TrialEntry) -> Exception | None:
        """Have what is new of a trial sent; return why it cannot be sent."""
        try:
            with logs.about(self._subject.id, entry.number):
                self._trial(runs, parent, entry)
        except (AwayError, MlflowRefusedError, StorageError) as problem:
            return problem
        return None

    def _record(self, runs: Runs, taken: Sequence[TrialEntry], whole: Sequence[TrialEntry]) -> None:
        """Record the runs of trials that MLflow has taken, and the trials that it holds whole."""
        made = {}
        for entry in taken:
            held = self._held[entry.number]
            if not held.is_told and entry.run_id != held.lines[0].run_id:
                made[entry.number] = held.lines[0].run_id
            held.is_told = True
            held.entry, held.looked_at = entry, self._passes
        with self._lock:
            # One that was opened again meanwhile is not whole.
            ended = [each.number for each in whole if self._news[each.number] is each]
            if made or ended:
                self._ledger.set_delivered(made, runs.project_id, ended)
            for number in ended:
                del self._news[number]
        for entry in whole:
            self._answered, self._trouble = time.monotonic(), None
            self._forget(runs, entry)

    def _forget(self, runs: Runs, entry: TrialEntry) -> None:
        """Keep nothing more of a trial that MLflow holds whole, unless a race may open it again."""
        held = self._held.pop(entry.number, None)
        if held is None or self._subject.races:
            return
        runs.forget(entry.number)
        for line in held.lines:
            if line.seed is not None:
                self._store.forget(replicate_key(self._subject.id, entry.number, line.seed))

    def _trial(self, runs: Runs, parent: str, entry: TrialEntry) -> None:
        held = self._held.get(entry.number)
        if held is None or (entry.added_seeds and len(held.lines) <= entry.config["replicates"]):
            # It ended and was opened again with more seeds between two passes.
            mean = _Mean(self._shared_seeds(entry))
            held = self._held[entry.number] = _Held(self._lines(runs, parent, entry), mean)
        for line in reversed(held.lines):  # the replicates first, as the trial has their mean
            content = RunContent()
            if held.attempt == 0 and line is held.lines[0]:
                content.params = self._subject.describe(entry.arm, entry.params, entry.config)
            if held.attempt != entry.attempt:
                content.tags["eigensweep.attempt"] = str(entry.attempt)
            content.points += self._fresh(held, line, entry)
            fresh = list(content.points)
            if entry.is_over and held.end_of is not entry:
                added = entry.config["replicates"] - len(self._shared_seeds(entry))
                _add_end(content, entry, line, runs.start_time(line.run_id), added)
            runs.send(line.run_id, content)
            line.sent += len(fresh)
            if line.seed is not None and len(held.lines) > 1:
                held.mean.add(line.seed, fresh)
            if entry.lineage and line is held.lines[0] and entry.is_over:
                lineage = [taken.to_dict() for taken in entry.lineage]
                runs.keep_text(line.run_id, json.dumps(lineage, indent=2), "lineage.json")
            if entry.is_over:
                runs.end(line.run_id, STATUS.get(entry.state, "FINISHED"))
        if entry.is_over:
            self._end_others(runs, entry)
            held.end_of = entry
        held.attempt = entry.attempt

    def _shared_seeds(self, entry: TrialEntry) -> Sequence[int]:
        """Return the seeds that a trial has without a race."""
        first: int = entry.config["seed"]
        return range(first, first + min(self._subject.replicates, entry.config["replicates"]))

    def _end_others(self, runs: Runs, entry: TrialEntry) -> None:
        """End the runs of seeds that were begun for a race and came to nothing."""
        outcome = "cancelled" if entry.error is None else "failed"
        tags = {OUTCOME: outcome} | ({} if entry.error is None else {ERROR: entry.error})
        first, count = entry.config["seed"], entry.config["replicates"]
        for seed, run_id in runs.list_seeds(entry.number).items():
            if seed not in range(first, first + count):
                runs.send(run_id, RunContent(tags=tags))
                runs.end(run_id, STATUS[outcome])

    def _fresh(self, held: _Held, line: _Line, entry: TrialEntry) -> list[CurvePoint]:
        """Return the points of a run's curve that it does not hold yet.

        Of a trial that is over, points that are damaged are left out: no attempt makes them again.
        """
        if line.seed is None:
            return held.mean.points[line.sent :]
        key = replicate_key(self._subject.id, entry.number, line.seed)
        try:
            points = self._store.points(key, line.sent)
        except DamagedError as error:
            if not entry.is_over:
                raise
            logger.warning("points are left out of trial %d: %s", entry.number, error)
            return self._store.whole_points(key, line.sent)
        if not points and _has_trained(entry, line.seed):
            self._require_commits(key)
        return points

    def _require_commits(self, key: str) -> None:
        """Raise StoreAwayError if the store has no commit of a replicate that has trained.

        A share that is not mounted, and an object store that has just started, look empty. Only
        what MLflow holds is ever pruned, so nobody has removed these commits on purpose.
        """
        if self._store.heads.read_whole(key).commits == 0:
            raise StoreAwayError(
                f"{self._store.place} holds nothing at {key}, where a trial has trained: mount the "
                "store, or start it again; if it is lost for good, delete the experiment"
            )

    def _lines(self, runs: Runs, parent: str, entry: TrialEntry) -> list[_Line]:
        run_id = self._trial_run(runs, parent, entry)
        if entry.earlier is not None:
            runs.begin_again(run_id)
            stay = entry.earlier.config["replicates"] if entry.added_seeds else 0
            for seed, seed_run in runs.list_seeds(entry.number).items():
                if seed >= entry.config["seed"] + stay:
                    runs.begin_again(seed_run)
        first, count = entry.config["seed"], entry.config["replicates"]
        if entry.state == "reused":
            return [_Line(run_id, None)]
        if count == 1:
            return [_Line(run_id, first)]
        lines = [_Line(run_id, None)]
        for seed in range(first, first + count):
            name = f"{self._name(entry)} seed={seed}"
            tags = {**self._subject.tags, "eigensweep.seed": str(seed)}
            lines.append(_Line(runs.get(entry.number, seed, name, tags, run_id), seed))
        return lines

    def _name(self, entry: TrialEntry) -> str:
        return self._subject.name_trial(entry.number, entry.arm, entry.params)

    def _trial_run(self, runs: Runs, parent: str, entry: TrialEntry) -> str:
        tags = {
            **self._subject.tags,
            "eigensweep.arm": entry.arm,
            "eigensweep.hash": entry.config_hash,
            "eigensweep.seed": str(entry.config["seed"]),
        }
        name = self._name(entry)
        run_id = runs.get(entry.number, None, name, tags, parent)
        runs.keep_text(run_id, json.dumps(entry.config), "config.json")
        return run_id

    def _end_experiment(self, runs: Runs, parent: str, end: _End) -> None:
        """Close the experiment's own run; then have the plots drawn, and give them to it."""
        if not end.is_closed:
            content = RunContent(tags={OUTCOME: end.state})
            if end.error is not None:
                content.tags[ERROR] = end.error
            if end.best is not None:
                content.tags["eigensweep.best_trial"] = str(end.best.number)
                _add_measures(content, end.best.result, runs.start_time(parent))
                text = json.dumps(end.best.config, indent=2)
                runs.keep_text(parent, text, "best/config.json")
                self._keep_weights(runs, parent, end.best)
            for name, report in end.report.items():
                runs.keep_text(parent, report, f"{REPORT}/{name}")
            runs.send(parent, content)
            runs.end(parent, STATUS.get(end.state, "FINISHED"))
            runs.flush_all()
            end.is_closed = True
        if end.plots is None:
            end.plots = end.draw()
        for path in end.plots:
            runs.keep_file(parent, path, REPORT)

    def _keep_weights(self, runs: Runs, parent: str, best: TrialEntry) -> None:
        """Give the experiment's run the weights of its best trial's best replicate, if kept.

        It gets none where that training has gone on since with a longer budget: they are not those
        of the result.
        """
        key, budget = self._best_key(best), best.config.get("training", {}).get("steps")
        if budget and self._store.progress(key).step > budget:
            return
        with suppress(FileNotFoundError), TemporaryDirectory(prefix="eigensweep-best-") as scratch:
            weights = self._store.kept.fetch(key, BEST, Path(scratch))
            runs.keep_file(parent, weights, "best")

    def _best_key(self, entry: TrialEntry) -> str:
        """Return the store's key of a trial's best replicate."""
        result = entry.result or Result()
        source = result.reused_from or Source(self._subject.id, entry.number)
        factor = sign(self._subject.better)
        values = [(factor * r.value, r.seed) for r in result.by_replicate if r.value is not None]
        seed = min(values)[1] if values else entry.config["seed"]
        return replicate_key(source.experiment, source.number, seed)


def _is_new(entry: TrialEntry) -> bool:
    """Return whether something of a trial is to be delivered, or will be."""
    never_begun = entry.state == "waiting" and entry.attempt == 0
    return entry.state != "invalid" and not entry.tracked and not never_begun


def _has_trained(entry: TrialEntry, seed: int) -> bool:
    """Return whether a replicate has trained here until a result: then the store has commits."""
    result = entry.result
    if result is None or entry.state not in ("completed", "pruned", "diverged"):
        return False
    known = {each.seed: each for each in result.by_replicate}
    if not known:
        return result.step > 0
    return seed in known and known[seed].origin is None and known[seed].step > 0


def _add_end(
    content: RunContent, entry: TrialEntry, line: _Line, timestamp_ms: int, added: int
) -> None:
    """Add how a trial ended, and its result or that of the replicate whose run this is.

    A race has `added` so many seeds. The numbers of more seeds take the place of those of fewer:
    MLflow shows what has the latest step, and of that the latest time.
    """
    result = entry.result
    content.tags[OUTCOME] = entry.state
    if entry.error is not None:
        content.tags[ERROR] = entry.error
    if entry.lineage:
        words = [f"step {taken.step} from trial {taken.source}" for taken in entry.lineage]
        content.tags["eigensweep.lineage"] = ", ".join(words)
    if entry.place is not None:
        content.tags["eigensweep.device"] = f"{entry.place.device} on {entry.place.node}"
    if result is not None and result.reused_from is not None:
        source = result.reused_from
        content.tags["eigensweep.reused_from"] = f"{source.experiment}/{source.number}"
        content.tags["eigensweep.reused_run"] = str(source.run_id)
    origins = {} if result is None else dict.fromkeys(r.origin for r in result.by_replicate)
    if known := [origin for origin in origins if origin is not None]:
        content.tags["eigensweep.origin"] = "; ".join(known)
    measures: Measures | None = result
    if entry.config["replicates"] > 1 and line.seed is not None:
        replicates = {each.seed: each for each in result.by_replicate} if result else {}
        measures = replicates.get(line.seed)
    elif added and result is not None:
        step = max([result.step, *entry.reports])
        measures, timestamp_ms = replace(result, step=step), timestamp_ms + added
    _add_measures(content, measures, timestamp_ms)


def _add_measures(content: RunContent, result: Measures | None, timestamp_ms: int) -> None:
    """Add a result's finite numbers, at a timestamp that is the same whenever they are sent."""
    if result is None:
        return
    numbers = {
        OBJECTIVE: result.value,
        "baseline_ratio": find_ratio(result.value, result.baseline),
        "n": 1,
        "seconds": result.seconds or None,
        "parameters": result.parameters.free if result.parameters else None,
        **_add_prefix("best", result.valid),
        **_add_prefix("test", result.test),
        **_add_prefix("best_test", result.best_test or {}),
        **_add_prefix("last_test", result.last_test or {}),
    }
    if isinstance(result, Result) and len(result.by_replicate) > 1:
        numbers |= _spread(result)
    finite = {k: float(v) for k, v in numbers.items() if v is not None and isfinite(v)}
    if finite:
        content.points.append(CurvePoint(result.step, finite, timestamp_ms))


def _spread(result: Result) -> dict[str, float | None]:
    """Return how many replicates there are, and spread and 95% interval of each mean."""
    valued = result.statistics.get("value")
    found: dict[str, float | None] = {"n": None if valued is None else valued.n}
    for name, summary in result.statistics.items():
        mean = OBJECTIVE if name == "value" else name.replace("valid/", "best/", 1)
        found |= {
            f"{mean}/sd": summary.sd,
            f"{mean}/low": summary.low,
            f"{mean}/high": summary.high,
        }
    return found


def _shorten(words: str) -> str:
    """Return the first line of an error, as far as a notice tells it."""
    return words.strip().partition("\n")[0][:LONGEST_WORDS]


def _average(points: list[CurvePoint]) -> CurvePoint:
    """Return the mean of points at one step, in the metrics that all of them have."""
    shared = set.intersection(*(set(point.metrics) for point in points))
    means = {name: fmean(point.metrics[name] for point in points) for name in sorted(shared)}
    return CurvePoint(points[0].step, means, max(point.timestamp_ms for point in points))


def _add_prefix(kind: str, metrics: Metrics) -> Metrics:
    return {f"{kind}/{name}": value for name, value in metrics.items()}

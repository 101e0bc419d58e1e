"""The trials of a running experiment: which are open, have ended, come next. No Ray here.

Every change goes to the ledger first and to Optuna second, so that whatever dies in between, the
next driver finds in the ledger all that Optuna must be told.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Set
from dataclasses import dataclass, replace

from eigensweep.search_spaces.labels import say_count
from eigensweep.search_spaces.sequences import quasi_random
from eigensweep.search_spaces.space import Point, Scalar
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.search_spaces.trial import TrialConfig, find_code
from eigensweep.search_spaces.warm_start import find_point
from eigensweep.workers.driver.digests import Digests, digest
from eigensweep.workers.driver.entries import Entries
from eigensweep.workers.driver.failures import MOST_HERE, Failures
from eigensweep.workers.driver.leaders import complete_result, give_seeds, has_begun
from eigensweep.workers.driver.population import Round
from eigensweep.workers.driver.study import Draw, Study
from eigensweep.workers.shared.durable_files import StorageError
from eigensweep.workers.shared.ledger import (
    PAUSED,
    Finished,
    Ledger,
    RungReport,
    StaleWriteError,
    Standing,
    TrialEntry,
)
from eigensweep.workers.shared.messages import LostBy, Metrics, Notice, Place, Result, Source
from eigensweep.workers.shared.racing import find_race
from eigensweep.workers.shared.results import rank
from eigensweep.workers.shared.states import OPEN_TRIALS, RANKED, UNTRAINED, ExperimentEnd, Outcome

logger = logging.getLogger(__name__)

ASKS = 10
"""How often a sampler is asked again when it gives a point that was tried already."""

RANDOM_ASKS = 200
"""How often points are then drawn at random, where the space has no list of all its points; and how
many points of a quasi-random sequence in a row may give no new trial."""

MOST_ENGINES = 2
"""Engines that may die under a trial between two of its reports before it trains alone."""


FIRST_TIME = Standing()
"""How an experiment stands that was never over."""

LONGEST_REST = 60.0
"""Seconds that a trial waits at most before it tries again what failed, a disk or memory."""

MOST_SHORTAGES = 30
"""How often a trial may be lost between two of its reports because its node has no memory left."""

MOST_LOSSES = 2
"""How often a GPU may be lost, under different trials or engines, between two reports of any that
trains on it, before its node is left out."""

MOST_DEVICES = 2
"""Devices that may be lost under a trial between two of its reports before it has failed: its own
kernels can end a device, too."""

FIRST_LEAVE, LONGEST_LEAVE = 15.0, 600.0
"""Seconds that a node is left out after its first failure, and at most."""

MOST_DAMAGES = 3
"""Trials of which a notice tells what was damaged; the event log has all."""

NOWHERE = "unknown"
"""Stands for the id of a node that does not know its own."""

SILENT_SECONDS = 30.0
"""So long no trial goes to a node that did not answer after the loss of a process. Ray gives up a
node that is dead within less."""

NAMED = 5
"""Trials that a notice names; the others are counted."""

MOST_LEFT_OUT = 3
"""Nodes that are left out at once; if more fail, the fault is not theirs, and everything waits."""


def grow(first: float, times: int, longest: float) -> float:
    """Return a pause that doubles each time, up to the longest.

    >>> [grow(2.0, times, 60.0) for times in (1, 2, 5, 6, 10_000)]
    [2.0, 4.0, 32.0, 60.0, 60.0]
    """
    return min(first * 2.0 ** min(times - 1, 100), longest)


@dataclass(frozen=True)
class _LeftOut:
    """A node that no trial of the experiment goes to for a while."""

    until: float
    """By the sweep's clock."""
    notice: Notice


@dataclass(frozen=True)
class Job:
    """A trial to be started, as one attempt."""

    entry: TrialEntry
    attempt: int
    donor: Source | None = None
    """The same configuration, finished with a smaller budget or fewer seeds: what the trial goes on
    from."""
    known: Result | None = None
    """The donor's result, where it has the same budget."""
    alone: bool = False
    """Whether it should have its process to itself, because engines kept dying under it."""
    avoid: tuple[str, ...] = ()
    """Ray's ids of the nodes that it does not go to."""


class Sweep:
    """The trials of one experiment, as its one driver sees and changes them."""

    def __init__(
        self,
        spec: ExperimentSpec,
        ledger: Ledger,
        study: Study,
        *,
        retries: int,
        watch: Callable[[TrialEntry], None] = lambda entry: None,
        clock: Callable[[], float] = time.monotonic,
        find_nodes: Callable[[], Set[str]] = lambda: frozenset((NOWHERE,)),
        find_silent_nodes: Callable[[], Set[str]] = frozenset,
        take_over: Callable[[TrialEntry], None] = lambda entry: None,
        standing: Standing = FIRST_TIME,
    ) -> None:
        """Take up what the ledger holds: what is unfinished there is handed out first.

        `watch` is called with every trial, as it is found and whenever it changes. `take_over`
        brings the newest of a trial's `lineage` about in the store, if that was not done before.
        `find_nodes` returns Ray's ids of the nodes that trials can go to, and `find_silent_nodes`
        those of nodes that may be dead, whatever Ray says. `standing` says whether new trials are
        drawn.
        """
        self.spec, self.ledger, self.study = spec, ledger, study
        self.retries, self.watch = retries, watch
        self._stopped: tuple[ExperimentEnd, str] | None = None
        self._is_held = False
        """Whether no more is handed out, because the experiment is to be paused."""
        self.entries = Entries()
        self._lost: Counter[int] = Counter()
        self._lost_engines: Counter[int] = Counter()
        self._lost_devices: defaultdict[int, list[str]] = defaultdict(list)
        """The nodes on which devices were lost under each trial, since it last reported."""
        self._losses: defaultdict[tuple[str, str], set[tuple[str, int]]] = defaultdict(set)
        """Under whom each GPU of a node was lost, since somebody came on there: engines by process,
        trials alone by number."""
        self._lost_by_disk: Counter[int] = Counter()
        self._lost_by_memory: Counter[int] = Counter()
        self._clock = clock
        self._rests: dict[int, float] = {}
        """Trials that wait for disk or memory, and when each is tried again."""
        self._find_nodes, self._find_silent_nodes = find_nodes, find_silent_nodes
        self._silent: Set[str] = frozenset()
        """Nodes that did not answer when a process was lost."""
        self._silent_until = 0.0
        self._damages: dict[int, str] = {}
        """What attempts of this driver found damaged in the store, by trial."""
        self._disk_fault = ""
        """Why trials wait for disk or store, as the first one said."""
        self._faults: Counter[str] = Counter()
        self._failures = Failures()
        self.draining: Collection[str] = ()
        """Nodes that drain: no trial begins there."""
        self._left_out: dict[str, _LeftOut] = {}
        """Nodes that other trials do not go to, by Ray's id."""
        self._engines: set[Place] = set()
        self._space = spec.space()
        self._walked = 0
        self._is_spread = spec.search.method == "qmc" or spec.is_sampled
        self._sequence = quasi_random(self._space, spec.search.seed)
        self._misses = 0
        """Points of the sequence since the last that became a trial."""
        self._points, self._identities = Digests(), Digests()
        self._keeps_all = spec.racing is not None or spec.scheduler.name == "pbt"
        """Whether entries of ended trials are kept whole."""
        self._best: tuple[tuple[int, float], int] | None = None
        """Place in the ranking and number of the best of the trials that have ended."""
        self._unmet: set[int] = set()
        """Trials of earlier drivers that the sequence has not come to again."""
        self._has_raced = False
        """Whether a trial of earlier drivers has more seeds than every configuration gets."""
        self._recoded: set[int] = set()
        """Trials that train, or trained, with other code than they began with."""
        for source, earlier, point in self._find_earlier():
            study.observe(source, earlier, point)
        study.reconcile(self._take_up(entry) for entry in ledger.walk())
        self._round = Round(spec, ledger.read_round()) if spec.scheduler.name == "pbt" else None
        self._take_over = take_over
        self._replaced = {n for n, e in self.entries.items() if self._is_replaced(e)}
        """Trials whose takeover may still be missing in the store."""
        self._arrived: dict[int, Result | None] = {
            n: None for n, e in self.entries.items() if self._has_arrived(e)
        }
        """Trials that wait for the end of their round, with the result of those that diverged."""
        self._queue = deque(
            n
            for n, e in sorted(self.entries.items())
            if e.state == "waiting" and n not in self._arrived
        )
        self._handed_out: set[int] = set()
        has_searched = self._has_raced and not standing.edition
        self._exhausted = has_searched or standing.is_closed
        self._most = len(self.entries) if standing.is_closed else spec.trial_count()
        ledger.set_total(self._most)

    def _take_up(self, entry: TrialEntry) -> TrialEntry:
        """Note what the ledger holds of a trial; return it as it is now, without a process."""
        if entry.state == "running":
            self.ledger.interrupt(entry.number, entry.attempt, "its driver was lost")
            entry = replace(entry, state="waiting")
        point = _key(Point(entry.arm, entry.params))
        self._points.add(point)
        if entry.state != "invalid":
            if self._is_spread:
                self._unmet.add(point)
            self._has_raced |= has_begun([entry], self.spec.replicates)
            config = TrialConfig.from_dict(entry.config)
            self._identities.add(_identity(config, config.content_hash()))
            code = find_code(config.task.name, config.model.name)
            if entry.state in OPEN_TRIALS and entry.attempt and config.code != code:
                self._recoded.add(entry.number)
        self._put(entry)
        return entry

    @property
    def is_handed_out(self) -> bool:
        """Whether no trial waits and no new one will come; one that is lost will wait again."""
        is_exhausted = self._exhausted or self._stopped is not None
        is_empty = not (self._queue or self._rests or self._arrived)
        return self._is_held or (is_exhausted and is_empty)

    @property
    def is_over(self) -> bool:
        """Whether no trial is open and no new one will come, as far as one knows while held."""
        if self._is_held and self.spec.racing is not None:
            return False
        is_exhausted = self._exhausted or self._stopped is not None
        is_empty = not (self._queue or self._rests or self._arrived or self._handed_out)
        return is_exhausted and is_empty

    @property
    def is_training(self) -> bool:
        """Whether a trial has a process."""
        return bool(self.training)

    @property
    def training(self) -> list[TrialEntry]:
        """The trials that have a process."""
        handed_out = (self.entries[number] for number in self._handed_out)
        return [entry for entry in handed_out if entry.state == "running"]

    @property
    def running(self) -> int:
        """How many trials are handed out and have not ended."""
        return len(self._handed_out)

    @property
    def left(self) -> int | None:
        """How many trials run, wait or will come; None: the search has no end of its own."""
        if self._most is None:
            return None
        coming = 0 if self._exhausted else max(0, self._most - len(self._identities))
        waiting = len(self._queue) + len(self._rests) + len(self._arrived)
        return self.running + waiting + coming

    @property
    def startable(self) -> int | None:
        """How many trials run or could begin now; None: the search has no end of its own."""
        if self._lacks_nodes():
            return self.running
        resting = len(self._rests) + len(self._arrived)
        left = self.left
        return None if left is None else (left - resting or len(self._arrived))

    @property
    def tried(self) -> list[TrialEntry]:
        """The trials so far, without points that no config accepts."""
        return [entry for entry in self.entries.values() if entry.state != "invalid"]

    def has_work(self) -> bool:
        """Tell whether there is a trial to be started, without handing it out."""
        job = self.next_job()
        if job is None:
            return False
        self._handed_out.discard(job.entry.number)
        self._queue.appendleft(job.entry.number)
        return True

    def next_job(self) -> Job | None:
        """Return the next trial to be started, None if there is none at the moment.

        Results that exist already, here or in another experiment, are taken over on the way.
        """
        while not (self._stopped or self._is_held or self.has_given_up):
            self._wake()
            if self._lacks_nodes():
                return None
            if self._round is not None and not self._keep_round(self._round):
                return None
            if not self._queue and not self._discover() and not self._race():
                return None
            entry = self.entries[self._queue.popleft()]
            is_new = entry.attempt == 0 or entry.earlier is not None
            may_know = self.spec.reuse and self._round is None
            is_known = may_know and self.ledger.knows(entry.config_hash)
            if is_known and is_new and self._reuse(entry):
                continue
            self._handed_out.add(entry.number)
            donor, known = self._find_donor(entry, is_known)
            return Job(
                entry,
                entry.attempt + 1,
                donor=donor,
                known=known,
                alone=self._lost_engines[entry.number] >= MOST_ENGINES,
                avoid=tuple(dict.fromkeys(self._list_avoided(entry.number))),
            )
        return None

    def _list_avoided(self, number: int) -> Iterator[str]:
        """Yield nodes that a trial does not go to now; some may come twice."""
        yield from self._left_out
        yield from self.draining
        yield from self._list_silent()
        lost = {*self._lost_devices.get(number, ())}
        if lost and self._find_nodes() - self._left_out.keys() - lost:
            yield from sorted(lost)

    def _list_silent(self) -> list[str]:
        """Return nodes that may be dead, if there are others to go to."""
        if not self._silent or self._clock() >= self._silent_until:
            return []
        others = self._find_nodes() - self._silent - self._left_out.keys()
        return sorted(self._silent - self._left_out.keys()) if others else []

    def begin(self, number: int, attempt: int, place: Place | None = None) -> None:
        """Record that an attempt has a process, and where, if that is known.

        Raises:
            StaleWriteError: if the ledger counts otherwise, so another driver is at work.
        """
        counted = self.ledger.begin(number, place)
        if counted != attempt:
            raise StaleWriteError(f"trial {number} is at attempt {counted}, not {attempt}")
        entry = self.entries[number]
        self._put(replace(entry, state="running", attempt=attempt, place=place or entry.place))

    def report(
        self,
        number: int,
        step: int,
        metrics: Metrics,
        place: Place | None,
        *,
        comes_on: bool = True,
    ) -> None:
        """Record a rung report, or where a lost attempt was and how far it had come.

        The latter is no sign that the trial `comes_on`. Otherwise nobody would count how often it
        is lost in a row.
        """
        entry = self.entries[number]
        if entry.state != "running":
            return
        told = RungReport(step, metrics, place)
        if comes_on:
            told = self._read_report(entry, told)
            if place is not None:
                self._failures.see_progress(place.node_id)
                self._losses.pop((place.node_id or NOWHERE, place.device), None)
        self.ledger.report(number, entry.attempt, step, told.metrics, place)
        self._put(_with_report(entry, told))

    def _read_report(self, entry: TrialEntry, told: RungReport) -> RungReport:
        """Return what is to be recorded of a report; note that its process lives."""
        for lost in (self._lost_engines, self._lost_by_disk, self._lost_by_memory):
            lost.pop(entry.number, None)
        self._lost_devices.pop(entry.number, None)
        place = told.place
        if place is not None and place.lanes is not None and place not in self._engines:
            self._engines.add(place)
            words = "engine trains node=%s pid=%d device=%s lanes=%d"
            logger.info(words, place.node, place.pid, place.device, place.lanes)
        if entry.added_seeds:  # it has reported already, of the seeds that all trials have
            return replace(told, metrics={})
        return told

    def end(
        self,
        number: int,
        outcome: Outcome,
        result: Result | None = None,
        error: str | None = None,
        last: RungReport | None = None,
    ) -> None:
        """Record how a trial ended, and what it reported with it; the first end counts."""
        entry = self.entries[number]
        self._handed_out.discard(number)
        if entry.state not in OPEN_TRIALS:
            return
        last = last if entry.state == "running" else None
        if last is not None:
            last = self._read_report(entry, last)
            entry = _with_report(entry, last)
        if result is not None:
            result = replace(result, outcome=outcome)
        result = complete_result(entry, outcome, result)
        if result is not None and outcome != "reused" and result.code != entry.config.get("code"):
            self._recoded.add(number)
        self.ledger.finish(number, entry.attempt, outcome, result, error, last)
        entry = entry.ended(outcome, result, error)
        self._see_end(entry.place, outcome, error)
        self.study.tell(entry)
        self._put(entry)
        if self._exhausted:  # Tune asks no more, unless a trial waits
            self._race()

    def _see_end(self, place: Place | None, outcome: Outcome, error: str | None) -> None:
        """Leave the node out on which trials fail one after another, if none fails elsewhere."""
        node = None if place is None else place.node_id
        if self._failures.see_end(outcome, node, error):
            self._leave_out_failing(place, (error or "unknown").strip().rpartition("\n")[2])

    def _leave_out_failing(self, place: Place | None, last: str) -> None:
        if place is None or place.node_id is None or not self._find_nodes() - {place.node_id}:
            return
        cause = (
            f"on node {place.node} at least {MOST_HERE} trials failed in a row, and none elsewhere "
            f"meanwhile. The last: {last}"
        )
        self._leave_out(place.node_id, place.node, cause, LONGEST_LEAVE)

    def lose(
        self,
        number: int,
        attempt: int,
        cause: str,
        *,
        by: LostBy = "process",
        place: Place | None = None,
    ) -> None:
        """Record that an attempt cannot go on: the trial waits again.

        It does so up to `retries` times if its own process died. Where an engine died, one of its
        trials may be to blame, and the others are not. So that counts against none of them. A trial
        under which engines die again before it has reported goes on alone in its process, whose
        death does count. That it was paused does not count.

        Where a node has other code, lacks a corpus, or cannot use a device, disk or store, no trial
        is to blame. The node is left out for times that grow up to `LONGEST_LEAVE`, and its trials
        go elsewhere. If there is no elsewhere, or `MOST_LEFT_OUT` nodes are out, all trials wait.
        Disk and store may be the same for all nodes and work again at any time: so these times grow
        up to `LONGEST_REST`, and on a single node each trial has a pause of its own.

        Where a node has no memory left, Ray ends processes, the youngest ones first. Nobody knows
        whose memory it is, so no trial is to blame, and each has such pauses of its own. It fails
        after `MOST_SHORTAGES` of them without any report: it may itself take what the node has not.

        A device that is lost in the middle of a training may have been ended by the trial. So the
        trial goes elsewhere, and has failed if it loses a second one; where an engine lost it, that
        counts as the engine's death. Whether the node is to blame shows when the next process there
        tries its device out, and when the same GPU is lost under another trial, or engine.

        `place` is where it was.
        """
        node = None if place is None else place.node_id
        entry = self.entries[number]
        if entry.state not in OPEN_TRIALS:
            return
        counts = {
            "engine": self._lost_engines,
            "disk": self._lost_by_disk,
            "memory": self._lost_by_memory,
            "process": self._lost,
        }
        has_elsewhere = node is not None and bool(self._find_nodes() - {node})
        rests = by == "memory" or (by == "disk" and not has_elsewhere)
        if by == "node" or (by == "disk" and not rests):
            longest = LONGEST_LEAVE if by == "node" else LONGEST_REST
            host = None if place is None else place.node
            cause = self._leave_out(node or NOWHERE, host, cause, longest)
        elif by == "device":
            self._warn(number, "trial %d lost its device: %s", number, cause)
            if place is not None and place.lanes is not None:
                self._lost_engines[number] += 1
            else:
                self._lost_devices[number].append(node or NOWHERE)
            cause = self._count_loss(number, place, cause)
        elif by != "pause":
            counts[by][number] += 1
        elif not self._is_held:
            cause = "its node drains: it committed and goes on elsewhere"
        if by in ("process", "engine"):  # perhaps with its node
            self._silent = self._find_silent_nodes()
            self._silent_until = self._clock() + SILENT_SECONDS
        if by == "engine":
            words = "trial lost its engine trial=%d attempt=%d: %s"
            self._warn(number, words, number, attempt, cause)
        if self._lost[number] > self.retries or self._lost_by_memory[number] > MOST_SHORTAGES:
            times = counts[by][number]
            self.end(number, "failed", error=f"its process died {times} times; the last: {cause}")
            return
        if len(self._lost_devices.get(number, ())) >= MOST_DEVICES:
            words = f"{MOST_DEVICES} devices were lost under it in a row; the last: {cause}"
            self.end(number, "failed", error=words)
            return
        if entry.attempt == attempt:
            self.ledger.interrupt(number, attempt, cause)
        self._put(replace(entry, state="waiting"))
        self._handed_out.discard(number)
        if not rests:
            self._queue.append(number)
            return
        rest = grow(2.0, counts[by][number], LONGEST_REST)
        if by == "disk" and not self._waits_for_disk():  # later ones say the same of other files
            self._disk_fault = cause
        self._warn(number, "%s fails, trial %d waits %.0f s: %s", by, number, rest, cause)
        self._rests[number] = self._clock() + rest

    def _count_loss(self, number: int, place: Place | None, cause: str) -> str:
        """Count a loss of a GPU; leave its node out if there were several. Return the cause."""
        if place is None:
            return cause
        node = place.node_id or NOWHERE
        under = self._losses[node, place.device]
        under.add(("trial", number) if place.lanes is None else ("engine", place.pid))
        if len(under) < MOST_LOSSES:
            return cause
        return self._leave_out(node, place.node, cause, LONGEST_LEAVE)

    def _warn(self, number: int, words: str, *values: object) -> None:
        """Log a warning about a trial; the driver's process knows the experiment."""
        logger.warning(words, *values, extra={"trial": number})

    def waits_for_others(self, number: int) -> bool:
        """Tell whether a trial that ends its attempt well, or diverges, waits for others then."""
        entry = self.entries[number]
        return (
            self._round is not None
            and self._round.end is not None
            and entry.state in OPEN_TRIALS
            and self._stopped is None
        )

    def arrive(self, number: int, attempt: int, diverged: Result | None = None) -> None:
        """Record that a trial has come to the end of its round; `diverged` is how it did not."""
        self.ledger.interrupt(number, attempt, "waits for the other trials of its round")
        self._put(replace(self.entries[number], state="waiting"))
        self._handed_out.discard(number)
        self._arrived[number] = diverged

    def _keep_round(self, now: Round) -> bool:
        """Open the whole population, end its round when all have come; tell if trials may start.

        None may as long as a replaced trial does not have its copy: the source would train on.
        """
        while self._discover():
            pass
        if self._arrived and not (self._queue or self._rests or self._handed_out):
            self._end_round(now)
        for number in sorted(self._replaced):
            try:
                self._take_over(self.entries[number])
            except StorageError as error:
                self._warn(number, "trial %d does not have its copy yet: %s", number, error)
                return False
            self._replaced.discard(number)
        return True

    def _end_round(self, now: Round) -> None:
        """Decide who goes on from whom, and queue all that go on."""
        arrived = [self.entries[number] for number in sorted(self._arrived)]
        takeovers = now.decide(arrived)
        assert now.end is not None
        self.ledger.end_round(now.end, takeovers)
        now.step = now.end
        results, self._arrived = self._arrived, {}
        for entry in arrived:
            taken = takeovers.get(entry.number)
            if taken is not None:
                self._put(replace(entry, lineage=(*entry.lineage, taken)))
                self._replaced.add(entry.number)
            elif entry.reached < now.step:  # it diverged, and so did all others
                self.end(entry.number, "diverged", results[entry.number])
                continue
            self._queue.append(entry.number)

    def _has_arrived(self, entry: TrialEntry) -> bool:
        end = None if self._round is None else self._round.end
        return end is not None and entry.state == "waiting" and entry.reached >= end

    def _is_replaced(self, entry: TrialEntry) -> bool:
        """Tell whether a trial was replaced when the last round ended."""
        return (
            self._round is not None
            and entry.state in OPEN_TRIALS
            and bool(entry.lineage)
            and entry.lineage[-1].step == self._round.step
        )

    def _find_earlier(self) -> Iterator[tuple[Source, TrialEntry, Point]]:
        """Yield trials of the experiments that the search starts from, at their points here."""
        if not self.spec.search.warm_start:
            return
        for source, entry in self.ledger.load_earlier(self.spec.search.warm_start):
            point = find_point(
                self.spec, self._space, entry.params, entry.config, entry.config_hash
            )
            if isinstance(point, Point):
                yield source, entry, point

    @property
    def has_given_up(self) -> bool:
        """Whether so many trials failed in a row that those that are left should not begin."""
        return self._failures.are_too_many and self.left != self.running

    def note_damage(self, number: int, words: str) -> None:
        """Tell people that an attempt of a trial went back behind what was damaged in the store."""
        if self._damages.get(number) != words:
            self._damages[number] = words
            self._warn(number, "trial %d: %s", number, words)

    def notices(self) -> list[Notice]:
        """Return which nodes are left out, whether everything waits for them, and what fails."""
        self._take_in()
        found = [each.notice for each in self._left_out.values()]
        if self.has_given_up and (failing := self._failures.notice()) is not None:
            found.insert(0, failing)
        if self._lacks_nodes():
            nodes = self._find_nodes()
            out, there = self._count_out(nodes), say_count(len(nodes), "node")
            verb = "is" if out == 1 else "are"
            words = (
                f"new trials wait, because {out} of {there} {verb} left out. "
                "If they all say the same, the fault may be the store's or the driver's code"
            )
            found.append(Notice("nodes", words))
        if self._waits_for_disk():
            words = f"trials wait and are tried again after growing pauses: {self._disk_fault}"
            found.append(Notice("disk", words))
        for number, damage in list(self._damages.items())[-MOST_DAMAGES:]:
            found.append(Notice("store", f"trial {number}: {damage}"))
        if short := sum(1 for number in self._rests if self._lost_by_memory[number]):
            words = (
                f"{say_count(short, 'trial')} {'waits' if short == 1 else 'wait'}, because a node "
                "had no memory left and Ray ended their processes. They go on by themselves. Fewer "
                "trials at once or more memory would help"
            )
            found.append(Notice("memory", words))
        if self._recoded:
            words = (
                "the package that brings the model or the task has changed since "
                f"{_list(self._recoded)} began, and its new code goes on with what the old one "
                "trained. Such results are reused nowhere; `eigensweep fork` trains anew"
            )
            found.append(Notice("code", words))
        return found

    def _waits_for_disk(self) -> bool:
        return any(self._lost_by_disk[number] for number in self._rests)

    def _lacks_nodes(self) -> bool:
        """Tell whether no node is left to go to, or so many failed that the fault is not theirs."""
        if not self._left_out:
            return False
        nodes = self._find_nodes()
        return self._count_out(nodes) >= min(MOST_LEFT_OUT, max(1, len(nodes)))

    def _count_out(self, nodes: Set[str]) -> int:
        """Return how many of these nodes are left out; those that are gone do not count."""
        return len(self._left_out.keys() & {*nodes, NOWHERE})

    def _leave_out(self, node: str, host: str | None, cause: str, longest: float) -> str:
        """Leave a node out for a while, and return the words for its trial."""
        if node not in self._left_out:
            self._faults[node] += 1
            leave = grow(FIRST_LEAVE, self._faults[node], longest)
            words = f"a node is left out for {leave:.0f} s, then it is tried again: {cause}"
            notice = Notice("node", words, host, time.time() + leave)
            self._left_out[node] = _LeftOut(self._clock() + leave, notice)
            logger.warning("node left out for %.0f s: %s", leave, cause)
        return f"{cause} (the node is left out for a while)"

    def _take_in(self) -> None:
        """Let trials go again to nodes that were left out for long enough."""
        now = self._clock()
        self._left_out = {node: out for node, out in self._left_out.items() if out.until > now}

    def _wake(self) -> None:
        """Put the trials whose pause is over into the queue, and take nodes in again."""
        self._take_in()
        now = self._clock()
        for number in [n for n, until in self._rests.items() if until <= now]:
            del self._rests[number]
            self._queue.append(number)

    def hold(self) -> None:
        """Hand out no more trials; those that train go on until they are lost or have ended."""
        self._is_held = True

    def take_back(self) -> None:
        """Record that trials that were handed out have no process any more."""
        for number in sorted(self._handed_out):
            self.lose(number, self.entries[number].attempt, PAUSED, by="pause")

    def cancel(self, reason: str, end: ExperimentEnd = "cancelled") -> None:
        """End every open trial as cancelled and hand out no more; the first reason counts."""
        self._stopped = self._stopped or (end, reason)
        self._is_held = False
        self._queue.clear()
        self._rests.clear()
        self._arrived.clear()
        for number, entry in list(self.entries.items()):
            if entry.state in OPEN_TRIALS:
                self.end(number, "cancelled", error=reason)

    def best(self) -> TrialEntry | None:
        """Return the first trial of the ranking, None if no trial is ranked."""
        ranked = [
            (key, entry.number)
            for entry in self.entries.values()
            if entry.state in RANKED
            and (key := rank(entry.result, self.spec.objective_metric.better)) is not None
        ]
        return self.entries[min(ranked)[1]] if ranked else None

    def close(self) -> tuple[ExperimentEnd, str | None]:
        """Record how many trials there were; return how it all ended, and why if not well."""
        self.ledger.set_total(len(self.entries))
        return self._verdict()

    def _verdict(self) -> tuple[ExperimentEnd, str | None]:
        if self._stopped is not None:
            return self._stopped
        tried = self.tried
        if not tried:
            first = next((e.error for e in self.entries.values()), "the search has no points")
            return "failed", f"no point of the search is a valid configuration: {first}"
        if all(entry.state in UNTRAINED for entry in tried):
            last_line = (tried[0].error or "unknown").strip().splitlines()[-1]
            ended = " or ".join(sorted({entry.state for entry in tried}))
            if len(tried) == 1:
                return "failed", f"the only trial {ended}: {last_line}"
            return "failed", f"all {len(tried):,} trials {ended}; the first: {last_line}"
        return "completed", None

    def _race(self) -> bool:
        """Open the leaders again for the next round of a race; tell whether there was one.

        Which they are follows from the results alone. So a driver that starts anew in the middle of
        a round goes on with it.
        """
        is_free = not (self._queue or self._rests or self._handed_out or self._is_held)
        if self.spec.racing is None or self._stopped is not None or not is_free:
            return False
        race = find_race(self.spec, self.tried)
        if race is None or race.wanted is None:
            return False
        logger.info("race: %s", race.words)
        for number in race.lacking:
            config, reason = give_seeds(self.entries[number], race.wanted)
            self._lost.pop(number, None)
            self.ledger.reopen(number, config, reason)
            self._put(self.entries[number].reopened(config, reason))
            self._queue.append(number)
        return True

    def _discover(self) -> bool:
        """Open the next point whose configuration is new; False, for ever, if there is none."""
        if not self._exhausted and (self._most is None or len(self._identities) < self._most):
            for point, draw in self._candidates():
                if self._open(point, draw):
                    self._misses = 0
                    return True
        self._exhausted = True
        return False

    def _candidates(self) -> Iterator[tuple[Point, Draw | None]]:
        """Yield points until one is taken: the method's first, then whatever is left."""
        size = self._space.count()
        if self._is_spread:
            yield from ((point, None) for point in self._follow_sequence())
        elif self.spec.search.method != "grid":
            for ask in range(ASKS if size is not None else ASKS + RANDOM_ASKS):
                draw = self.study.draw(at_random=ask >= ASKS)
                yield draw.point, draw
        while size is not None and self._walked < size:
            self._walked += 1
            yield self._space.point(self._walked - 1), None

    def _follow_sequence(self) -> Iterator[Point]:
        """Yield points of the quasi-random sequence until `RANDOM_ASKS` in a row were none."""
        while self._misses < RANDOM_ASKS:
            point = next(self._sequence)
            self._misses += 1
            if _key(point) in self._unmet:  # as an earlier driver went on from here
                self._unmet.remove(_key(point))
                self._misses = 0
            else:
                yield point

    def _open(self, point: Point, draw: Draw | None) -> bool:
        """Record a point as a trial, unless it was one already or no config accepts it."""
        number, params = len(self.entries), dict(point.params)
        config, error = None, None
        if _key(point) not in self._points:
            self._points.add(_key(point))
            try:
                config = self.spec.trial(point)
            except ValueError as refusal:
                error = str(refusal)
                self.ledger.open_invalid(number, point.arm, params, error)
                self._put(TrialEntry(number, point.arm, params, {}, "", "invalid", error=error))
        name = "" if config is None else config.content_hash()
        if config is None or (identity := _identity(config, name)) in self._identities:
            if draw is not None:
                self.study.discard(draw)
            return False
        self._identities.add(identity)
        content = config.model_dump(mode="json")
        self.ledger.open(number, point.arm, params, content, name)
        entry = TrialEntry(number, point.arm, params, content, name, "waiting")
        if draw is not None:
            self.study.keep(draw, number)
        else:
            self.study.add(entry)
        self._put(entry)
        self._queue.append(number)
        return True

    def _reuse(self, entry: TrialEntry) -> bool:
        """Take over a finished result of the same configuration, seeds and budget, if any."""
        found = self._find(self.ledger.find_finished, entry)
        if found is None:
            return False
        self.end(entry.number, "reused", replace(found.result, reused_from=found.source))
        return True

    def _find_donor(self, entry: TrialEntry, is_known: bool) -> tuple[Source | None, Result | None]:
        """Return the trial that a trial goes on from, besides its own checkpoints.

        With it comes its result, where it has fewer seeds and the same budget. `is_known` says
        whether the configuration has ever ended with a result.
        """
        if self._round is not None:
            return None, None
        seed, steps = entry.config["seed"], entry.config["training"]["steps"]
        if entry.result is not None and entry.result.reused_from is not None:
            before = entry.config if entry.earlier is None else entry.earlier.config
            is_of_budget = before["training"]["steps"] == steps
            return entry.result.reused_from, entry.result if is_of_budget else None
        if not is_known:
            return None, None
        part = self.ledger.find_part(entry.config_hash, seed, steps)
        if part is not None:
            return part.source, part.result
        shorter = self._find(self.ledger.find_shorter, entry)
        return (None, None) if shorter is None else (shorter.source, None)

    @staticmethod
    def _find(
        find: Callable[[str, int, int, int], Finished | None], entry: TrialEntry
    ) -> Finished | None:
        config = entry.config
        steps = config["training"]["steps"]
        return find(entry.config_hash, config["seed"], config["replicates"], steps)

    def _put(self, entry: TrialEntry) -> None:
        self._keep(entry)
        self.watch(entry)

    def _keep(self, entry: TrialEntry) -> None:
        """Keep an entry, and of a trial that has ended little, unless it is the best or may go on.

        The configurations and results of a hundred thousand trials would take a gigabyte.
        """
        self.entries[entry.number] = entry
        if self._keeps_all or not entry.is_over or entry.state == "invalid":
            return
        place = None
        if entry.state in RANKED:
            place = rank(entry.result, self.spec.objective_metric.better)
        worse: int | None = entry.number
        if place is not None and (self._best is None or (place, entry.number) < self._best):
            worse = None if self._best is None else self._best[1]
            self._best = place, entry.number
        if worse is not None and (self._best is None or worse != self._best[1]):
            self.entries[worse] = self.entries[worse].outline()


def _with_report(entry: TrialEntry, told: RungReport) -> TrialEntry:
    reports = {**entry.reports, told.step: told.metrics} if told.metrics else entry.reports
    return replace(entry, reports=reports, place=told.place)


def _list(numbers: Set[int]) -> str:
    """Return some trials in words, the first ones by their numbers."""
    first = ", ".join(map(str, sorted(numbers)[:NAMED]))
    more = f" and {len(numbers) - NAMED} more" if len(numbers) > NAMED else ""
    return f"trial{'' if len(numbers) == 1 else 's'} {first}{more}"


def _key(point: Point) -> int:
    """Return what tells the points of an experiment apart."""
    return digest(point.arm, *(f"{path}={_plain(v)!r}" for path, v in sorted(point.params.items())))


def _identity(config: TrialConfig, name: str) -> int:
    """Return what tells the configurations of an experiment apart.

    `name` is the configuration's `content_hash`.
    """
    return digest(name, str(config.training.steps))


def _plain(value: Scalar) -> Scalar:
    """Return a value so that equal ones look equal: a whole number as an integer."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value

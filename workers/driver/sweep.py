"""The trials of a running experiment: open ones, ended ones, and the next one. No Ray here.

Every change goes to the ledger first and to Optuna second, so that after any death in between the
next driver can make Optuna's study from the ledger.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, replace

from eigensweep.protocol.ledger import (
    NOTHING,
    PAUSED,
    Ended,
    ResumeState,
    RungReport,
    StaleWriteError,
    SweepLedger,
    TrialEntry,
)
from eigensweep.protocol.messages import LostBy, Notice, Order, Place
from eigensweep.protocol.states import OPEN_TRIALS, UNTRAINED, ExperimentEnd
from eigensweep.results.racing import find_race
from eigensweep.results.ranking import RANKED, cost
from eigensweep.results.trial_result import Metrics, Outcome, Result, Source
from eigensweep.search_spaces.checks.warm_start import find_point
from eigensweep.search_spaces.labels import say_count
from eigensweep.search_spaces.space import Point
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.search_spaces.trial import TrialConfig, find_code
from eigensweep.store.places.durable_files import StorageError
from eigensweep.workers.driver.entries import Entries
from eigensweep.workers.driver.nodes.cordons import LONGEST_LEAVE, Cordons
from eigensweep.workers.driver.nodes.losses import LONGEST_REST, Losses
from eigensweep.workers.driver.search.configurations import Configurations, Found
from eigensweep.workers.driver.search.donors import Donors
from eigensweep.workers.driver.search.leaders import complete_result, give_seeds
from eigensweep.workers.driver.search.population import PopulationRound
from eigensweep.workers.driver.search.study import Study

logger = logging.getLogger(__name__)

CUT_OFF = ("pruned", "cancelled")
"""The outcomes of trials that might have trained on."""

STOPPED = "stopped on request"
"""Why a trial is over that a person has stopped."""

FIRST_TIME = ResumeState()
"""How an experiment stands that was never over."""

MOST_DAMAGES = 3
"""The most trials whose damage a notice describes; the event log has all."""

NAMED = 5
"""The most trials that a notice names; the others are counted."""


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
    """Whether it trains alone in its process, because engines kept dying under it."""
    avoid: tuple[str, ...] = ()
    """Ray's ids of the nodes that it avoids."""


class Sweep:
    """The trials of one experiment, as its one driver sees and changes them."""

    def __init__(
        self,
        spec: ExperimentSpec,
        ledger: SweepLedger,
        study: Study,
        *,
        retries: int,
        watch: Callable[[TrialEntry], None] = lambda entry: None,
        cordons: Cordons | None = None,
        clock: Callable[[], float] = time.monotonic,
        take_over: Callable[[TrialEntry], None] = lambda entry: None,
        read_so_far: Callable[[TrialEntry], Result | None] = lambda entry: None,
        resume_state: ResumeState = FIRST_TIME,
    ) -> None:
        """Take up what the ledger holds; unfinished trials are handed out first.

        `watch` is called with every trial, as it is found and whenever it changes. `take_over`
        brings the newest of a trial's `lineage` about in the store, if that was not done before.
        `read_so_far` finds what is known of a trial that is cut off.
        `cordons` knows the nodes that trials can go to. `resume_state` says whether new trials are
        drawn: none are where the experiment has ended, however it did.
        """
        self.spec, self.ledger, self.study = spec, ledger, study
        self.watch = watch
        self._stopped: tuple[ExperimentEnd, str] | None = None
        self._is_held = False
        """Whether no more trials are handed out, because of a pause."""
        may_go_on = spec.racing is not None or spec.scheduler.name == "pbt"
        self.entries = Entries(spec.objective_metric.better, keeps_all=may_go_on)
        self._donors = Donors(spec, ledger)
        self._read_so_far = read_so_far
        self.cordons = cordons or Cordons()
        self._losses = Losses(retries, clock)
        self._damages: dict[int, str] = {}
        """Damage that attempts of this driver found in the store, by trial."""
        self._engines: set[Place] = set()
        self._configurations = Configurations(spec, study)
        self._has_raced = False
        """Whether a trial of earlier drivers has more seeds than every configuration gets."""
        self._recoded: set[int] = set()
        """Trials that train, or trained, with other code than they began with."""
        self._outdated: set[int] = set()
        """Trials that other code has trained than what trains now."""
        for earlier, point in self._find_earlier():
            study.observe(earlier, point)
        study.take_up(self._take_up(entry) for entry in ledger.walk())
        self._round = (
            PopulationRound(spec, ledger.read_round()) if spec.scheduler.name == "pbt" else None
        )
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
        self.goal_reached: str | None = None
        """In words, that a trial has reached `limits.goal`."""
        self._see_goal(self.entries.best())
        has_searched = self._has_raced and not resume_state.edition
        draws_none = resume_state.is_closed or resume_state.ended is not None
        self._exhausted = has_searched or draws_none
        self._may_race = spec.racing is not None and (self._has_raced or not draws_none)
        """Of a search that was cut off the leaders are not known; a race that began goes on."""
        self._most = len(self.entries) if draws_none else spec.trial_count()
        self._told: int | None = -1
        """How many trials the ledger was told that there will be; -1: nothing yet."""
        self._tell_total()

    def _take_up(self, entry: TrialEntry) -> TrialEntry:
        """Note a trial of the ledger; return its entry, without a process."""
        if entry.state == "running":
            self.ledger.interrupt(entry.number, entry.attempt, "its driver was lost")
            entry = replace(entry, state="waiting")
        self._configurations.take_up(entry)
        if entry.state != "invalid":
            self._has_raced |= entry.config.get("replicates", 1) > self.spec.replicates
            config = TrialConfig.from_dict(entry.config)
            code = find_code(config.task.name, config.model.name)
            if entry.state in OPEN_TRIALS:
                is_mixed = entry.attempt > 0 and config.code != code
            else:
                is_mixed = entry.result is not None and entry.result.code != config.code
                if entry.state in RANKED and config.code != code:
                    self._outdated.add(entry.number)
            if is_mixed and entry.state != "reused":
                self._recoded.add(entry.number)
        self._put(entry)
        return entry

    @property
    def is_handed_out(self) -> bool:
        """Whether no trial waits and no new one will come; a lost trial will wait again."""
        is_exhausted = self._exhausted or self._stopped is not None
        is_empty = not (self._queue or self._losses.rests or self._arrived)
        return self._is_held or (is_exhausted and is_empty)

    @property
    def is_over(self) -> bool:
        """Whether no trial is open and no new one will come; while held, no new one comes."""
        if self._is_held and self.spec.racing is not None:
            return False
        is_exhausted = self._exhausted or self._stopped is not None
        is_empty = not (self._queue or self._losses.rests or self._arrived or self._handed_out)
        return is_exhausted and is_empty

    @property
    def training(self) -> list[TrialEntry]:
        """The trials that have a process."""
        handed_out = (self.entries[number] for number in self._handed_out)
        return [entry for entry in handed_out if entry.state == "running"]

    @property
    def running(self) -> int:
        """How many trials are handed out and still open."""
        return len(self._handed_out)

    @property
    def left(self) -> int | None:
        """How many trials run, wait or will come; None: the search is unlimited."""
        coming = self._coming
        if coming is None:
            return None
        waiting = len(self._queue) + len(self._losses.rests) + len(self._arrived)
        return self.running + waiting + coming

    @property
    def _coming(self) -> int | None:
        """How many valid trials will be drawn, at most; None: there is no end of them."""
        if self._most is None:
            return None
        return 0 if self._exhausted else max(0, self._most - len(self._configurations))

    def _tell_total(self) -> None:
        """Tell the ledger how many trials there will be with those that are invalid."""
        size, total = self._configurations.space.count(), self._coming
        if total is not None:
            total += len(self.entries)
            if self.spec.search.method == "grid" and size is not None:
                total = min(total, max(size, len(self.entries)))
        if total != self._told:
            self._told = total
            self.ledger.set_total(total)

    @property
    def startable(self) -> int | None:
        """How many trials run or could begin now; None: the search is unlimited."""
        if self.cordons.leave_nothing:
            return self.running
        resting = len(self._losses.rests) + len(self._arrived)
        left = self.left
        return None if left is None else (left - resting or len(self._arrived))

    def next_job(self) -> Job | None:
        """Return the next trial to be started, None if there is none at the moment."""
        prepared = self.prepare_next()
        if prepared is None:
            return None
        entry, is_known = prepared
        self._queue.popleft()
        self._handed_out.add(entry.number)
        donor, known = self._donors.find_donor(entry, is_known)
        return Job(
            entry,
            entry.attempt + 1,
            donor=donor,
            known=known,
            alone=self._losses.has_lost_engines(entry.number),
            avoid=self.cordons.list_avoided(self._losses.list_device_nodes(entry.number)),
        )

    def avoids_too_much(self, order: Order) -> bool:
        """Return whether an order avoids nodes that its trial may go to by now."""
        if not order.avoid:
            return False
        self.cordons.lift()
        lost = self._losses.list_device_nodes(order.number)
        return not {*order.avoid} <= {*self.cordons.list_avoided(lost)}

    def prepare_next(self) -> tuple[TrialEntry, bool] | None:
        """Return the trial to be started next, and whether its configuration has a result.

        This draws points, opens their trials, and takes over results that exist already, here or in
        another experiment. None: no trial is to be started at the moment.
        """
        while not (self._stopped or self._is_held or self.has_given_up):
            self._wake()
            if self.cordons.leave_nothing:
                return None
            if self._round is not None and not self._keep_round(self._round):
                return None
            if not self._queue and not self._discover() and not self._race():
                return None
            entry = self.entries[self._queue.popleft()]
            is_new = entry.attempt == 0 or entry.earlier is not None
            is_known = self._donors.knows(entry)
            if not (is_known and is_new and self._reuse(entry)):
                self._queue.appendleft(entry.number)
                return entry, is_known
        return None

    def begin(self, number: int, attempt: int, place: Place | None = None) -> None:
        """Record that an attempt has a process, and its place if known.

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
                self.cordons.see_progress(place)
        self.ledger.report(number, entry.attempt, step, told.metrics, place)
        self._put(_with_report(entry, told))

    def note_steps(self, number: int, steps: int) -> None:
        """Record how far a trial has come between its rungs."""
        entry = self.entries[number]
        if entry.state == "running":
            self.ledger.report(number, entry.attempt, steps, {}, None)

    def _read_report(self, entry: TrialEntry, told: RungReport) -> RungReport:
        """Return the report to be recorded; note that its process lives."""
        self._losses.forget(entry.number)
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
        """Record the end of a trial and its last report; the first end counts."""
        entry = self.entries[number]
        self._handed_out.discard(number)
        if entry.state not in OPEN_TRIALS:
            return
        last = last if entry.state == "running" else None
        if last is not None:
            last = self._read_report(entry, last)
            entry = _with_report(entry, last)
        was_ranked = entry.earlier is not None and entry.earlier.state in RANKED
        if outcome in CUT_OFF and entry.attempt and result is None and not was_ranked:
            result = self._read_so_far(entry) or entry.result
        if result is not None:
            result = replace(result, outcome=outcome)
        result = complete_result(entry, outcome, result)
        if result is not None and outcome != "reused" and result.code != entry.config.get("code"):
            self._recoded.add(number)
        self.ledger.finish(number, entry.attempt, outcome, result, error, last)
        entry = entry.ended(outcome, result, error)
        self.cordons.see_end(entry.place, outcome, error)
        self.study.tell(entry)
        self._put(entry)
        self._see_goal(entry)
        if self._exhausted:  # Tune asks no more, unless a trial waits
            self._race()

    def stop(self, number: int) -> bool:
        """Record that a person stops a trial early; return whether it is over.

        One that is about to get a process is stopped when it has it. One that had a result before,
        and was opened again for more, trains on.
        """
        entry = self.entries[number]
        is_starting = entry.state == "waiting" and number in self._handed_out
        if is_starting or (entry.earlier is not None and entry.earlier.state in RANKED):
            return False
        if number in self._queue:
            self._queue.remove(number)
        self._losses.rests.pop(number, None)
        self._arrived.pop(number, None)
        self._replaced.discard(number)
        self.end(number, "pruned", error=STOPPED)
        return True

    def _see_goal(self, entry: TrialEntry | None) -> None:
        """Find out whether a trial has reached `limits.goal`."""
        goal, better = self.spec.limits.goal, self.spec.objective_metric.better
        if goal is None or entry is None or entry.state not in RANKED or entry.result is None:
            return
        if (value := entry.result.value) is not None and cost(value, better) <= cost(goal, better):
            self.goal_reached = f"trial {entry.number} reached {value:.4g} (limits.goal: {goal:g})"

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

        The death of its own process counts: a trial may lose `retries` of them. The death of an
        engine counts against none of its trials, since only one of them may be to blame. If engines
        die again under a trial before it reports, it trains alone in its process, whose death
        counts. A pause does not count.

        If a node has other code, lacks a corpus, or cannot use a device, disk or store, no trial is
        to blame. The node is cordoned for a time that grows up to `LONGEST_LEAVE`, and its trials
        go to other nodes. If there are none, or `MOST_CORDONED` nodes are cordoned, all trials
        wait. All nodes may share disk and store, which may work again at any time: so this time
        grows up to `LONGEST_REST` only, and on a single node each trial rests by itself.

        The death of a process with its node, or with the process that it was forked from, does not
        count against the trial either, unless it comes `MOST_SHORTAGES` times without a report: it
        may itself bring them down.

        If a node has no memory left, Ray ends the youngest processes first. Nobody knows which
        process took the memory, so no trial is to blame, and each one rests by itself. A trial
        fails after `MOST_SHORTAGES` rests without a report: it may need more than the node has.

        A trial may itself have ended the device that it lost. So it goes to another node, and fails
        if it loses a second device; a device lost by an engine counts as the engine's death. The
        node is to blame if the next process there cannot use its device, or if the same GPU is lost
        under another trial or engine.

        `place` is where the attempt ran.
        """
        node = None if place is None else place.node_id
        entry = self.entries[number]
        if entry.state not in OPEN_TRIALS:
            return
        if by in ("process", "engine"):  # perhaps with its node
            self.cordons.look_for_silent()
        ran_at = place or (entry.place if entry.attempt == attempt else None)
        if by == "process" and ran_at is not None and self.cordons.has_gone(ran_at.node_id):
            by = "departure"
        has_elsewhere = self.cordons.has_others(node)
        rests = by == "memory" or (by == "disk" and not has_elsewhere)
        if by == "node" or (by == "disk" and not rests):
            host = None if place is None else place.node
            longest = LONGEST_LEAVE if by == "node" else LONGEST_REST
            cause = self.cordons.cordon(node, host, cause, longest)
        elif by == "device":
            self._warn(number, "trial %d lost its device: %s", number, cause)
            self._losses.add(number, by, place)
            cause = self.cordons.see_lost_device(number, place, cause)
        elif by != "pause":
            self._losses.add(number, by, place)
        elif not self._is_held:
            cause = "its node drains: it committed and goes on elsewhere"
        if by == "engine":
            words = "trial lost its engine trial=%d attempt=%d: %s"
            self._warn(number, words, number, attempt, cause)
        if (why := self._losses.judge(number, by, cause)) is not None:
            self.end(number, "failed", error=why)
            return
        if entry.attempt == attempt:
            self.ledger.interrupt(number, attempt, cause)
        self._put(replace(entry, state="waiting"))
        self._handed_out.discard(number)
        if not rests:
            self._queue.append(number)
            return
        rest = self._losses.rest(number, by, cause)
        self._warn(number, "%s fails, trial %d waits %.0f s: %s", by, number, rest, cause)

    def _warn(self, number: int, words: str, *values: object) -> None:
        """Log a warning about a trial; the driver's process knows the experiment."""
        logger.warning(words, *values, extra={"trial": number})

    def waits_for_others(self, number: int) -> bool:
        """Return whether a trial that ends its attempt well, or diverges, then waits for others."""
        entry = self.entries[number]
        return (
            self._round is not None
            and self._round.end is not None
            and entry.state in OPEN_TRIALS
            and self._stopped is None
        )

    def arrive(self, number: int, attempt: int, diverged: Result | None = None) -> None:
        """Record that a trial reached the end of its round, or `diverged` with this result."""
        self.ledger.interrupt(number, attempt, "waits for the other trials of its round")
        self._put(replace(self.entries[number], state="waiting"))
        self._handed_out.discard(number)
        self._arrived[number] = diverged

    def _keep_round(self, now: PopulationRound) -> bool:
        """Open the whole population, or end its round; return whether trials may start.

        None may start before each replaced trial has its copy: its source would train on.
        """
        while self._discover():
            pass
        if self._arrived and not (self._queue or self._losses.rests or self._handed_out):
            self._end_round(now)
        for number in sorted(self._replaced):
            try:
                self._take_over(self.entries[number])
            except StorageError as error:
                self._warn(number, "trial %d does not have its copy yet: %s", number, error)
                return False
            self._replaced.discard(number)
        return True

    def _end_round(self, now: PopulationRound) -> None:
        """Decide which trial goes on from which, and queue all that go on."""
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
        """Return whether a trial was replaced at the end of the last round."""
        return (
            self._round is not None
            and entry.state in OPEN_TRIALS
            and bool(entry.lineage)
            and entry.lineage[-1].step == self._round.step
        )

    def _find_earlier(self) -> Iterator[tuple[TrialEntry, Point]]:
        """Yield the trials of earlier experiments that the search learns from."""
        if not self.spec.search.warm_start:
            return
        for _, entry in self.ledger.load_earlier(self.spec.search.warm_start):
            point = find_point(
                self.spec,
                self._configurations.space,
                entry.params,
                entry.config,
                entry.config_hash,
                pruned=entry.state == "pruned",
            )
            if isinstance(point, Point):
                yield entry, point

    @property
    def has_given_up(self) -> bool:
        """Whether so many trials failed in a row that no further one should begin."""
        return self.cordons.failures.are_too_many and self.left != self.running

    def note_damage(self, number: int, words: str) -> None:
        """Note for a person that an attempt went back behind damaged files of the store."""
        if self._damages.get(number) != words:
            self._damages[number] = words
            self._warn(number, "trial %d: %s", number, words)

    def notices(self) -> list[Notice]:
        """Return which nodes are cordoned, whether everything waits for them, and what fails."""
        found = []
        if self.has_given_up:
            found.append(self.cordons.failures.notice())
        found += [*self.cordons.notices(), *self._losses.notices()]
        for number, damage in list(self._damages.items())[-MOST_DAMAGES:]:
            found.append(Notice("store", f"trial {number}: {damage}"))
        if self._recoded:
            words = (
                "the package that brings the model or the task has changed since "
                f"{_list(self._recoded)} began, and its new code goes on with what the old one "
                "trained. Such results are reused nowhere; `eigensweep fork` trains anew"
            )
            found.append(Notice("code", words))
        if self._outdated:
            words = (
                "the package that brings the model or the task has changed since "
                f"{_list(self._outdated)} ended. Later trials are trained by the new code, and "
                "stand in the same ranking; `eigensweep fork` trains all of them by the new code"
            )
            found.append(Notice("code", words))
        if self._stopped is not None and self._stopped[0] == "completed":
            cut_off = sum(entry.state == "cancelled" for entry in self.entries.values())
            words = f"ended early: {self._stopped[1]}"
            words += f", {say_count(cut_off, 'trial')} cut off" if cut_off else ""
            words += f", {say_count(self._coming, 'trial')} not begun" if self._coming else ""
            words += ". `eigensweep extend` with another limit goes on"
            found.append(Notice("limit", words))
        return found

    def _wake(self) -> None:
        """Queue the trials whose rest is over, and lift the cordons that are over."""
        self.cordons.lift()
        self._queue.extend(self._losses.wake())

    def hold(self) -> None:
        """Hand out no more trials; running trials go on until they are lost or end."""
        self._is_held = True

    def take_back(self) -> None:
        """Record that no trial has a process any more."""
        for number in sorted(self._handed_out):
            self.lose(number, self.entries[number].attempt, PAUSED, by="pause")

    def cancel(self, reason: str, end: ExperimentEnd = "cancelled") -> None:
        """End every open trial as cancelled and hand out no more; the first reason counts.

        A search whose last trial has ended is over, and stays completed.
        """
        if self.spec.racing is None:  # between two rounds of a race nothing is open either
            self._exhausted |= self.left == 0
            if self.is_over:
                return
        self._stopped = self._stopped or (end, reason)
        self._is_held = False
        self._queue.clear()
        self._losses.rests.clear()
        self._arrived.clear()
        for number, entry in list(self.entries.items()):
            if entry.state in OPEN_TRIALS:
                self.end(number, "cancelled", error=reason)

    def end_early(self, reason: str) -> None:
        """End as completed, with a notice that says why; as cancelled if no trial is completed."""
        if self.entries.best() is None:
            self.cancel(f"{reason}, and no trial was completed before")
        else:
            self.cancel(reason, "completed")

    def close(self) -> Ended:
        """Record the total of trials; return how the experiment ended, and why if not well."""
        self.ledger.set_total(len(self.entries))
        if self._stopped is not None:
            end, reason = self._stopped
            return end, None if end == "completed" else reason
        tried = self.entries.tried
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
        """Reopen the leaders for the next round of a race; return whether there was one.

        The leaders follow from the results alone, so a restarted driver goes on in the middle of a
        round.
        """
        is_free = not (self._queue or self._losses.rests or self._handed_out or self._is_held)
        if not self._may_race or self._stopped is not None or not is_free:
            return False
        race = find_race(self.spec, self.entries.tried)
        if race is None or race.wanted is None:
            return False
        logger.info("race: %s", race.words)
        for number in race.lacking:
            config, reason = give_seeds(self.entries[number], race.wanted)
            self._losses.forgive(number)
            self.ledger.reopen(number, config, reason)
            self._put(self.entries[number].reopened(config, reason))
            self._queue.append(number)
        return True

    def _discover(self) -> bool:
        """Open the next point with a new configuration; return False if there is none left."""
        if not self._exhausted and (self._most is None or len(self._configurations) < self._most):
            for found in self._configurations.find():
                if self._open(found):
                    return True
        self._exhausted = True
        return False

    def _open(self, found: Found) -> bool:
        """Record a point as a trial; return whether it is valid."""
        number, point = len(self.entries), found.point
        params = dict(point.params)
        if found.config is None:
            self.ledger.open(number, point.arm, params, {}, "", error=found.error)
            self._put(TrialEntry(number, point.arm, params, {}, "", "invalid", error=found.error))
            self._tell_total()
            return False
        content = found.config.model_dump(mode="json")
        noted = NOTHING if found.draw is None else found.draw.sampler_state
        self.ledger.open(number, point.arm, params, content, found.name, noted)
        entry = TrialEntry(number, point.arm, params, content, found.name, "waiting")
        self.study.add(entry, found.draw)
        self._put(entry)
        self._queue.append(number)
        return True

    def _reuse(self, entry: TrialEntry) -> bool:
        """Take over a finished result with the same configuration, seeds and budget, if any."""
        found = self._donors.find_finished(entry)
        if found is None:
            return False
        self.end(entry.number, "reused", replace(found.result, reused_from=found.source))
        return True

    def _put(self, entry: TrialEntry) -> None:
        self.entries.keep(entry)
        self.watch(entry)


def _with_report(entry: TrialEntry, told: RungReport) -> TrialEntry:
    reports = {**entry.reports, told.step: told.metrics} if told.metrics else entry.reports
    return replace(entry, reports=reports, place=told.place)


def _list(numbers: Set[int]) -> str:
    """Return a list of trials in words, the first ones with their numbers."""
    first = ", ".join(map(str, sorted(numbers)[:NAMED]))
    more = f" and {len(numbers) - NAMED} more" if len(numbers) > NAMED else ""
    return f"trial{'' if len(numbers) == 1 else 's'} {first}{more}"

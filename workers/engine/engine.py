"""An engine: one device, and the trials of any experiments that share it as lanes.

Callers are threads, one for each trial, which `advance` their trial from rung to rung. One thread
trains: groups of replicates of equal shape side by side, one group after another in short slices of
time. A lane goes on past its rung while the scheduler decides. A lane that becomes free is refilled
at once from the trials that wait, which are those of callers beyond the number of lanes: so there
should be some more callers than lanes.

A group has the same number of lanes from beginning to end, whoever is aboard: so what a lane trains
does not depend, not by a bit, on its neighbours.

Checkpoints are those of a trial alone: an engine that is killed costs the steps since the last
commits, and each trial goes on in another engine or in a process of its own.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass

import torch

from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.tasks.corpus import CorpusMissingError
from eigensweep.workers.engine.aboard import ALONE, MOST_ALONE, LaneAboard, Probe, Room, TrialAboard
from eigensweep.workers.engine.errors import (
    EngineError,
    describe,
    is_of_the_device,
    is_of_the_disk,
    is_out_of_memory,
    let_go,
)
from eigensweep.workers.engine.group import Group, explain_alone, shape_key
from eigensweep.workers.engine.occupancy import Occupancy, Span
from eigensweep.workers.engine.turns import LaneError, SideBySide, Turns
from eigensweep.workers.shared import logs
from eigensweep.workers.shared.heads import StaleAttemptError
from eigensweep.workers.shared.ledger import StaleWriteError
from eigensweep.workers.shared.marks import Mark, cancel_mark, leave_mark, pause_mark
from eigensweep.workers.shared.messages import Order, Report
from eigensweep.workers.trial.attempt import GLANCE_SECONDS, Attempt
from eigensweep.workers.trial.training import Training

logger = logging.getLogger(__name__)

SLICE_SECONDS = 0.25
"""Seconds for which one group trains before the engine looks around."""

LEASE_SECONDS = 120.0
"""A trial whose caller has not asked for so long is committed and dropped."""

WRITERS = 2
"""Threads that write commits."""

KEPT_EMPTY = 2
"""Groups without trainings that are kept, since making one costs seconds on a GPU."""

KEPT_SECONDS = 5.0
"""Without any trial, groups are kept for so long: those of a population come back at once."""

IDLE_SECONDS = 0.5
"""An engine with nothing to train looks around this often."""


@dataclass(frozen=True)
class Sharing:
    """Which trainings can share a program, and what makes one of them."""

    shape_key: Callable[[TrialConfig], str]
    """Trainings with the same key can share."""
    explain_alone: Callable[[TrialConfig], str | None]
    """Why a configuration cannot share with any other, None if it can."""
    make_group: Callable[[Training, int], SideBySide]
    """Makes an empty group for trainings like this one, with so many lanes."""


class Engine:
    """Trains the trials of many callers on one device, side by side."""

    def __init__(
        self,
        device: str,
        lanes: int | Callable[[TrialConfig], int],
        *,
        sharing: Sharing | None = None,
        lease_seconds: float = LEASE_SECONDS,
        slice_seconds: float = SLICE_SECONDS,
        threads: int = 1,
        clock: Callable[[], float] = time.monotonic,
        writers: Executor | None = None,
        in_background: bool = True,
    ) -> None:
        """Prepare an engine on `device`, `cpu` or `cuda`; it trains from the first order on.

        `lanes` is how many replicates of one shape train side by side, or says so for a
        configuration; an order that names its lanes gets those. `threads` are those of PyTorch on
        the CPU. Tests give a clock of their own, another pool that writes commits, and turn the
        engine themselves, with `turn`, where it is not `in_background`.

        Raises:
            ValueError: if there is no lane.
        """
        if isinstance(lanes, int) and lanes < 1:
            raise ValueError(f"an engine needs at least one lane; got lanes={lanes}")
        self.device = device
        self._lanes = lanes if callable(lanes) else lambda config: lanes
        self._sharing = sharing or Sharing(shape_key, explain_alone, Group)
        self._lease, self._slice, self._threads = lease_seconds, slice_seconds, threads
        self._clock = clock
        self._pool = writers or ThreadPoolExecutor(WRITERS, thread_name_prefix="commits")
        self._thread: threading.Thread | None = None
        self._in_background = in_background

        self._changed = threading.Condition(threading.RLock())
        """Guards what follows up to the next empty line; notified when something has changed."""
        self._trials: dict[tuple[str, str, int], TrialAboard] = {}
        self._arrivals = 0
        self._is_stopping = False
        self._broken: EngineError | None = None
        self._status: dict[str, object] = {}

        self._making = threading.Lock()
        """Held to make a training or a program: both use what the process has only one of."""
        self._rooms: dict[str, Room] = {}
        self._probes: dict[str, Probe] = {}
        self._most: dict[str, int] = {}
        """Lanes that memory has room for, by shape, where it was found to be short."""
        self._crowded: dict[str, int] = {}
        """Shapes without room for one lane, and how many other groups trained when that showed."""
        self._unshareable: dict[str, str] = {}
        """Shapes whose program does not work here, and why."""
        self._told_alone: set[str] = set()
        self._looked_at = -GLANCE_SECONDS
        self._wanted_at = clock()
        """When a trial was last here."""
        self._occupancy = Occupancy()
        self._turn_began: float | None = None
        """When the turn of now began, in seconds of `time.monotonic`; None between two turns."""
        self.longest_turn = 0.0
        """Seconds of the longest turn so far."""

    # What callers use, from any thread.

    def advance(self, order: Order) -> Report:
        """Return the report of a trial's next rung, as soon as the trial has come there.

        The first call for an attempt takes the trial aboard, and each further one returns the next
        report. Rungs up to `order.reported` are left out. A report with an outcome is the last one.
        It comes after the commit of what it tells.

        Raises:
            StaleAttemptError: if the trial has a later attempt.
            EngineError: if engine or machine could not go on; the trial can, in another attempt.
        """
        while True:
            report = self.ask(order, IDLE_SECONDS)
            if report is not None:
                return report

    def ask(self, order: Order, seconds: float) -> Report | None:
        """Do what `advance` does, but return None if there is no report after some seconds.

        Raises:
            StaleAttemptError: if the trial has a later attempt.
            EngineError: if engine or machine could not go on; the trial can, in another attempt.
        """
        deadline = time.monotonic() + seconds
        trial = self._find(order)
        try:
            if not self._open(trial, deadline):
                return None
            self._start()
            with self._changed:
                while True:
                    while trial.reports:
                        report = trial.reports[0]
                        if report.outcome is not None:
                            return report
                        trial.reports.popleft()
                        if report.step > order.reported:
                            return report
                    if (error := trial.error or self._broken) is not None:
                        self._forget(trial)
                        raise error
                    left = deadline - time.monotonic()
                    if left <= 0:
                        return None
                    self._changed.wait(left)
        finally:
            with self._changed:
                trial.callers -= 1
                trial.asked_at = self._clock()

    def leave(self, order: Order, *, commit: bool = False) -> None:
        """Drop a trial, without waiting for it. Its last commit stands, or what it has trained.

        A trial that is no longer wanted needs no `commit`. One that goes on elsewhere does.
        """
        with self._changed:
            trial = self._trials.get(_key(order))
            if trial is not None and trial.order.attempt <= order.attempt:
                trial.drop = trial.drop or ("moved" if commit else "left")
                self._changed.notify_all()

    def status(self) -> dict[str, object]:
        """Return, as plain data, who is in which lane, who waits, and how busy the lanes are."""
        with self._changed:
            return {**self._describe(), **self._status}

    def occupancy(self) -> dict[str, object]:
        """Return lane-seconds by what lanes did: occupied, idle though wanted, and idle."""
        busy = self._occupancy
        return {
            "occupied": busy.occupied,
            "idle_wanted": busy.idle_wanted,
            "idle": busy.idle,
            "wasted": busy.wasted,
        }

    def seconds_in_turn(self) -> float:
        """Return for how long the turn of now has lasted; 0 while there is nothing to do.

        A turn is a slice of a quarter of a second, or one step or evaluation that takes longer.
        """
        began = self._turn_began
        return 0.0 if began is None else time.monotonic() - began

    def spans(self) -> list[Span]:
        """Return the occupancy over time, for a plot."""
        with self._changed:
            return list(self._occupancy.spans)

    def stop(self) -> None:
        """Commit every lane, end the training, and refuse whoever asks from now on."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        else:
            self._close_down()
        self._pool.shutdown()

    def _find(self, order: Order) -> TrialAboard:
        """Return the trial of an order, new or known, with one caller more."""
        with self._changed:
            if self._is_stopping or self._broken is not None:
                raise self._broken or EngineError("the engine has been stopped")
            known = self._trials.get(_key(order))
            if known is not None and known.order.attempt > order.attempt:
                raise StaleAttemptError(
                    f"attempt {order.attempt} of trial {order.number} of {order.experiment} "
                    f"has a successor, {known.order.attempt}"
                )
            is_same = known is not None and known.order.attempt == order.attempt
            if known is not None and is_same and known.drop is None:
                known.callers += 1
                return known
            if known is not None:
                known.drop = known.drop or "superseded"
                known.error = known.error or StaleAttemptError(
                    f"attempt {known.order.attempt} of trial {order.number} of "
                    f"{order.experiment} has left, or has a successor"
                )
            self._arrivals += 1
            trial = TrialAboard(order, self._arrivals, self._clock(), predecessor=known, callers=1)
            self._trials[_key(order)] = trial
            self._changed.notify_all()
            return trial

    def _open(self, trial: TrialAboard, deadline: float) -> bool:
        """Pick a new trial up from the store; return False if the time was too short for that."""
        with self._changed:
            while trial.is_opening or (trial.predecessor and not trial.predecessor.is_gone):
                self._start()
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
            trial.predecessor = None
            if trial.attempt is not None or trial.is_over:
                return True
            trial.is_opening = True
        try:
            self._begin(trial)
        finally:
            with self._changed:
                trial.is_opening = False
                self._changed.notify_all()
        return True

    def _begin(self, trial: TrialAboard) -> None:
        """Make the replicates of a trial; an error in that is the trial's own."""
        try:
            with self._making:
                attempt = Attempt(trial.order, self.device, self._clock)
            config = TrialConfig.from_dict(trial.order.config).resolve()
            alone = self._sharing.explain_alone(config)
            shape = self._sharing.shape_key(config)
            need = trial.order.engine
            lanes = 1 if alone else self._lanes(config) if need is None else need.lanes
        except Exception as error:
            with self._changed:
                if is_out_of_memory(error):
                    trial.error = EngineError(f"no memory to begin a trial: {error}")
                    trial.is_over = True
                else:
                    self._settle(trial, error)
            return
        with self._changed:
            trial.attempt, trial.alone = attempt, alone
            trial.lanes_of_group = max(1, lanes)
            trial.shape = f"{shape}-x{trial.lanes_of_group}"
            trial.lanes = [LaneAboard(trial, replicate) for replicate in attempt.replicates]

    def _start(self) -> None:
        with self._changed:
            if self._in_background and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
                self._thread.start()

    def _forget(self, trial: TrialAboard) -> None:
        if self._trials.get(_key(trial.order)) is trial:
            del self._trials[_key(trial.order)]

    # What the training thread does.

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        try:
            while not self._is_stopping and self._broken is None:
                self._turn_began = began = time.monotonic()
                has_trained = self.turn()
                self._turn_began = None
                self.longest_turn = max(self.longest_turn, time.monotonic() - began)
                if not has_trained:
                    with self._changed:
                        if not self._is_stopping:
                            self._changed.wait(IDLE_SECONDS)
        except Exception as error:
            # A bug in the engine: no trial's failure, and nobody may wait for ever.
            logger.exception("engine fails device=%s", self.device)
            self._lose(error, for_good=True)
        finally:
            self._close_down()

    def turn(self) -> bool:
        """Look around, refill lanes, and let one group train for a slice; False if none can."""
        self._drop_unwanted()
        self._stop_unwanted()
        for trial in self._open_trials():
            self._attend(trial)
        self._refill()
        self._resolve_probes()
        room = min(
            (r for r in self._rooms.values() if r.aboard), key=lambda r: r.used, default=None
        )
        self._clear_when_idle()
        if room is None:
            self._publish()
            return False
        self._train(room)
        self._publish()
        return True

    def _train(self, room: Room) -> None:
        began, occupied = self._clock(), len(room.aboard)
        waiting = sum(1 for lane in self._waiting() if self._name(lane.trial) == room.name)
        try:
            with nullcontext() if room.has_trained else self._making:
                room.group.advance(self._slice)
            room.has_trained = True
        except Exception as error:
            self._recover(room, error)
        for trial in dict.fromkeys(lane.trial for lane in room.aboard):
            self._attend(trial)
        for lane in list(room.aboard):
            if lane.replicate.is_due(len(room.aboard)) and not lane.is_writing:
                self._guard(lane.trial, lambda lane=lane: self._commit(lane))  # type: ignore[misc]
        seconds = self._clock() - began
        room.used += seconds / max(1, occupied)
        with self._changed:
            self._occupancy.add(Span(began, seconds, room.group.lanes, occupied, waiting))

    def _attend(self, trial: TrialAboard) -> None:
        """Report the rungs that a trial has come to, free the lanes it no longer needs."""
        self._guard(trial, lambda: self._report_rungs(trial))
        self._release(trial)

    def _report_rungs(self, trial: TrialAboard) -> None:
        attempt = trial.attempt
        if attempt is None or trial.is_over or trial.drop is not None:
            return
        for lane in trial.lanes:
            if lane.room is not None and lane.replicate.training.is_finished:
                self._take_off(lane)
        while not trial.is_over and attempt.is_ready():
            for lane in trial.lanes:
                if lane.replicate.has_news:
                    self._commit(lane)
            report = attempt.report()
            if report.outcome is not None:
                self._end(trial)
                for lane in trial.lanes:
                    self._write(lane, lane.replicate.keep_best)
            self._hold(trial, report)

    def _end(self, trial: TrialAboard) -> None:
        """Take a trial's lanes off: there is no more to train."""
        trial.is_over = True
        for lane in trial.lanes:
            self._take_off(lane)

    def _hold(self, trial: TrialAboard, report: Report) -> None:
        """Give out a report when what was committed for it is written."""
        writing = [lane.writing for lane in trial.lanes if lane.writing is not None]
        with self._changed:
            trial.held.append((report, writing))

    def _release(self, trial: TrialAboard) -> None:
        """Give out the reports whose commits are written."""
        with self._changed:
            for lane in trial.lanes:
                if lane.writing is not None and lane.writing.done():
                    error = lane.writing.exception()
                    lane.writing = None
                    if error is not None:
                        self._settle(trial, error)
            while trial.held and all(writing.done() for writing in trial.held[0][1]):
                report, writing = trial.held.popleft()
                errors = (each.exception() for each in writing)
                error = next((e for e in errors if e is not None), None)
                if error is None:
                    trial.reports.append(report)
                else:
                    self._settle(trial, error)
            self._changed.notify_all()

    def _settle(self, trial: TrialAboard, error: BaseException) -> None:
        """Take in an error that was met while working for one trial."""
        if is_of_the_disk(error) or is_of_the_device(error):
            self._lose(error, for_good=not is_of_the_disk(error))
            return
        if trial.error is not None or trial.has_failed:
            return
        trial.has_failed = True
        with suppress(Exception):  # what failed may fail once more
            self._end(trial)
        trial.held.clear()
        if isinstance(error, StaleWriteError | CorpusMissingError):
            trial.error = error
        else:
            reached = 0 if trial.attempt is None else trial.attempt.reached_step
            subject = trial.order.experiment, trial.order.number
            with logs.about(*subject):
                words = "trial failed experiment=%s trial=%d step=%d error=%s"
                logger.warning(words, *subject, reached, error)
            trial.reports.append(Report(reached, outcome="failed", error=describe(error)))
        self._changed.notify_all()

    def _guard(self, trial: TrialAboard, act: Callable[[], None]) -> None:
        """Run an action for one trial; an exception fails this trial only."""
        try:
            act()
        except Exception as error:
            with self._changed:
                self._settle(trial, error)

    # Commits.

    def _commit(self, lane: LaneAboard) -> None:
        """Copy what is new of a lane now, and have it written."""
        if lane.is_lost:
            return
        if lane.writing is not None:
            lane.writing.exception()  # waits: who trains faster than the disk writes is held up
        room, training = lane.room, lane.replicate.training
        update = None if room is None else lambda: room.group.update(training)
        commit = lane.replicate.take(update)
        self._write(lane, lambda: lane.replicate.write(commit))

    def _write(self, lane: LaneAboard, act: Callable[[], None]) -> None:
        """Have something written, after what the same lane has written before."""
        before, trial = lane.writing, lane.trial

        def write() -> None:
            if before is not None:
                before.result()
            act()

        lane.writing = self._pool.submit(write)
        lane.writing.add_done_callback(lambda done: self._wake(trial))

    def _wake(self, trial: TrialAboard) -> None:
        """Give out a report at once when its last commit is written."""
        with self._changed:
            while trial.held and all(
                each.done() and each.exception() is None for each in trial.held[0][1]
            ):
                trial.reports.append(trial.held.popleft()[0])
            self._changed.notify_all()

    # Lanes.

    def _waiting(self) -> list[LaneAboard]:
        """Return the replicates without a lane, in the order in which they get one.

        First those that their trial needs for its next rung, the trial that came first first.
        """
        lanes = [
            lane
            for trial in self._open_trials()
            for lane in trial.lanes
            if lane.room is None and not lane.replicate.training.is_finished
        ]
        return sorted(lanes, key=lambda lane: (not lane.is_needed, lane.trial.arrival))

    def _refill(self) -> None:
        """Give free lanes to those that wait."""
        for lane in self._waiting():
            if lane.trial.is_over or lane.room is not None:
                continue
            room = self._room_for(lane)
            if room is None:
                continue
            if not room.group.free and lane.is_needed:
                self._make_way(room, lane)
            if room.group.free:
                self._take_aboard(room, lane)

    def _make_way(self, room: Room, lane: LaneAboard) -> None:
        """Take off a replicate of the same trial that is past the rung this one must come to."""
        for other in room.aboard:
            if other.trial is lane.trial and not other.is_needed:
                self._take_off(other)
                return

    def _take_aboard(self, room: Room, lane: LaneAboard) -> None:
        try:
            room.group.join(lane.replicate.training)
        except Exception as error:
            if is_out_of_memory(error):
                self._shrink(room, error)
            else:
                with self._changed:
                    self._settle(lane.trial, error)
            return
        if not room.aboard:
            others = [r.used for r in self._rooms.values() if r.aboard]
            room.used = max(room.used, min(others, default=0.0))
        lane.room = room
        room.aboard.append(lane)

    def _take_off(self, lane: LaneAboard) -> None:
        room = lane.room
        if room is None:
            return
        lane.room = None
        room.aboard.remove(lane)
        try:
            room.group.leave(lane.replicate.training)
        except Exception:
            lane.is_lost = True
            raise

    def _name(self, trial: TrialAboard) -> str:
        """Return the name of the room in which a trial trains."""
        alone = trial.alone or self._unshareable.get(trial.shape)
        return ALONE if alone or trial.probe is not None else trial.shape

    def _room_for(self, lane: LaneAboard) -> Room | None:
        """Return the room of a lane, made if need be; None if there is no memory for it now."""
        trial = lane.trial
        name = self._name(trial)
        if name == ALONE:
            self._tell_why_alone(trial)
        if name in self._rooms:
            return self._rooms[name]
        if name in self._crowded:
            if self._count_occupied() >= self._crowded[name]:
                return None
            del self._crowded[name]
            self._clear_empty(0)
        self._clear_empty(KEPT_EMPTY)
        lanes = min(trial.lanes_of_group, self._most.get(name, trial.lanes_of_group))
        try:
            if name == ALONE:
                group: SideBySide = Turns(self._most.get(ALONE, MOST_ALONE))
            elif trial.lanes_of_group == 1 and self.device == "cpu":
                group = Turns(1)  # the compiled steps are faster than a program of one lane
            else:
                with self._making:
                    group = self._sharing.make_group(lane.replicate.training, lanes)
        except Exception as error:
            if is_of_the_device(error):
                self._lose(error, for_good=True)
            elif is_out_of_memory(error):
                self._find_less(name, lanes, [trial], error)
            else:
                logger.warning("no program for this shape, its trials train alone", exc_info=error)
                self._unshareable[name] = f"making their program failed: {error}"
            return None
        self._rooms[name] = room = Room(name, group)
        return room

    def _count_occupied(self) -> int:
        return sum(1 for room in self._rooms.values() if room.aboard)

    def _tell_why_alone(self, trial: TrialAboard) -> None:
        why = trial.alone or self._unshareable.get(trial.shape)
        if why is not None and why not in self._told_alone:
            self._told_alone.add(why)
            subject = trial.order.experiment, trial.order.number
            with logs.about(*subject):
                logger.info("trial trains alone experiment=%s trial=%d why=%s", *subject, why)

    def _clear_empty(self, kept: int) -> int:
        """Drop groups without trainings but for so many; return how many were dropped."""
        used = {name: room.used for name, room in self._rooms.items() if not room.aboard}
        dropped = sorted(used, key=used.__getitem__)[: max(0, len(used) - kept)]
        for name in dropped:
            self._rooms.pop(name).group.close()
        if dropped:
            self._give_back()
        return len(dropped)

    def _give_back(self) -> None:
        """Give the device the memory of groups that are gone."""
        if self.device != "cpu":
            gc.collect()
            torch.cuda.empty_cache()

    def _clear_when_idle(self) -> None:
        """Drop all groups when no trial has been here for a while: others may need the memory."""
        with self._changed:
            is_wanted = any(not trial.is_over for trial in self._trials.values())
        if is_wanted:
            self._wanted_at = self._clock()
        elif self._rooms and self._clock() - self._wanted_at > KEPT_SECONDS:
            self._clear_empty(0)

    # Trials that go.

    def _open_trials(self) -> list[TrialAboard]:
        with self._changed:
            return [
                trial
                for trial in self._trials.values()
                if trial.attempt is not None and (not trial.is_over or trial.held)
            ]

    def _drop_unwanted(self) -> None:
        """Take off the trials that left, have a successor, or whose callers are gone."""
        now = self._clock()
        with self._changed:
            trials = list(self._trials.values())
            for trial in trials:  # grows meanwhile
                if trial.predecessor is not None:
                    trials.append(trial.predecessor)
            for trial in trials:
                silent = not trial.callers and now - trial.asked_at > self._lease
                if silent and trial.is_gone:
                    self._forget(trial)
                elif silent and trial.drop is None:
                    trial.drop = "silent"
            going = [t for t in trials if t.drop is not None and not t.is_gone and not t.is_opening]
            going.reverse()  # the earliest attempt first
        for trial in going:
            if trial.drop == "silent" and not trial.is_over:
                subject = trial.order.experiment, trial.order.number
                words = "trial dropped, nobody asks for it experiment=%s trial=%d attempt=%d"
                with logs.about(*subject):
                    logger.warning(words, *subject, trial.order.attempt)
            self._drop(trial, commit=trial.drop != "left")

    def _drop(self, trial: TrialAboard, commit: bool) -> None:
        is_open = trial.attempt is not None and not trial.is_over
        self._guard(trial, lambda: self._end(trial))
        for lane in trial.lanes:
            if commit and is_open and lane.replicate.has_news:
                self._guard(trial, lambda lane=lane: self._commit(lane))  # type: ignore[misc]
        for lane in trial.lanes:
            if lane.writing is not None:
                lane.writing.exception()  # waits; a successor reads what is written
        with self._changed:
            trial.is_gone = True
            self._forget(trial)
            self._changed.notify_all()

    def _stop_unwanted(self) -> None:
        """End the trials of experiments that were cancelled or paused, where they are.

        Those that were paused commit what they have.
        """
        now = self._clock()
        if now - self._looked_at < GLANCE_SECONDS:
            return
        self._looked_at = now
        marks: dict[Mark, bool] = {}
        for trial in self._open_trials():
            place = trial.order.storage, trial.order.experiment
            is_cancelled, is_paused = (
                marks.setdefault(mark, mark.exists())
                for mark in (cancel_mark(*place), pause_mark(*place))
            )
            if trial.is_over or trial.attempt is None:
                continue
            own = trial.order.number, trial.order.attempt
            is_paused = is_paused or leave_mark(*place, *own).exists()
            if is_cancelled:
                self._guard(trial, lambda trial=trial: self._end(trial))  # type: ignore[misc]
                self._hold(trial, trial.attempt.report_cancelled())
            elif is_paused:
                self._guard(trial, lambda trial=trial: self._pause(trial))  # type: ignore[misc]

    def _pause(self, trial: TrialAboard) -> None:
        """Commit what a trial has, and take its lanes off: it will go on later."""
        assert trial.attempt is not None
        for lane in trial.lanes:
            if lane.replicate.has_news:
                self._commit(lane)
        self._end(trial)
        self._hold(trial, trial.attempt.report_paused())

    # Errors of what is shared.

    def _recover(self, room: Room, error: Exception) -> None:
        """Go on after a group's training has failed."""
        if is_of_the_device(error):
            self._lose(error, for_good=True)
        elif is_of_the_disk(error):
            self._lose(error, for_good=False)
        elif is_out_of_memory(error):
            let_go(error)  # before anything is made anew
            self._shrink(room, error)
        elif isinstance(error, LaneError):
            self._blame(room, error)
        else:
            self._suspect(room, error)

    def _blame(self, room: Room, error: LaneError) -> None:
        lane = next(each for each in room.aboard if each.replicate.training is error.training)
        if lane.trial.probe is not None:
            lane.trial.probe.is_explained = True
        with self._changed:
            self._settle(lane.trial, error.__cause__ or error)

    def _shrink(self, room: Room, error: Exception) -> None:
        """Close a group that does not fit into the memory, and let fewer at a time go on."""
        lanes = len(room.aboard) if room.name == ALONE else room.group.lanes
        self._find_less(room.name, lanes, self._close_lost(room), error)

    def _find_less(
        self, name: str, lanes: int, trials: Iterable[TrialAboard], error: Exception
    ) -> None:
        """Decide what to try after so many lanes of a shape did not fit into the memory."""
        let_go(error)
        self._give_back()
        if self._clear_empty(0):
            return
        if lanes > 1:
            self._most[name] = lanes // 2
            logger.warning("out of memory, fewer lanes lanes=%d of=%d", lanes // 2, lanes)
            return
        if occupied := self._count_occupied():
            self._crowded[name] = occupied
            logger.warning("out of memory, trials wait until other shapes have ended")
            return
        for trial in trials:
            words = RuntimeError(f"the memory of {self.device} does not hold one lane of this size")
            words.__cause__ = error
            with self._changed:
                self._settle(trial, words)

    def _suspect(self, room: Room, error: Exception) -> None:
        """Let each trial of a group train alone for a while, to see which of them fails."""
        logger.warning(
            "a group failed, each of its trials goes on alone for a while lanes=%d",
            len(room.aboard),
            exc_info=error,
        )
        probe = self._probes.setdefault(room.name, Probe(error))
        steps = {lane.trial: lane.trial.attempt for lane in room.aboard}
        until = {
            trial: attempt.reached_step + attempt.replicates[0].training.evaluate_every
            for trial, attempt in steps.items()
            if attempt is not None
        }
        for trial in self._close_lost(room):
            trial.probe, trial.probed_until = probe, until[trial]
            probe.trials.append(trial)

    def _resolve_probes(self) -> None:
        """Let those that did well alone share again, or not, if no trial alone is to blame."""
        for name, probe in list(self._probes.items()):
            probe.trials = [
                trial
                for trial in probe.trials
                if not trial.is_over
                and any(lane.replicate.training.step < trial.probed_until for lane in trial.lanes)
            ]
            if probe.trials:
                continue
            del self._probes[name]
            if not probe.is_explained:
                self._unshareable[name] = f"they failed side by side: {probe.error}"
                logger.warning("none of its trials fails alone, so they stay alone")
            for trial in self._open_trials():
                if trial.probe is probe:
                    trial.probe = None
                    if probe.is_explained:
                        for lane in trial.lanes:
                            self._take_off(lane)

    def _close_lost(self, room: Room) -> list[TrialAboard]:
        """Drop a group whose tensors cannot be trusted; its trials go back to their commits."""
        self._rooms.pop(room.name, None)
        with suppress(Exception):  # it has failed already
            room.group.close()
        lanes, room.aboard = room.aboard, []
        for lane in lanes:
            lane.room, lane.is_lost = None, True
        self._give_back()
        trials = list(dict.fromkeys(lane.trial for lane in lanes))
        for trial in trials:
            self._guard(trial, lambda trial=trial: self._reopen(trial))  # type: ignore[misc]
        return [trial for trial in trials if not trial.is_over]

    def _reopen(self, trial: TrialAboard) -> None:
        """Pick a trial up from its last commits once more."""
        assert trial.attempt is not None
        for lane in trial.lanes:
            if lane.room is not None:
                self._take_off(lane)
            if lane.writing is not None:
                lane.writing.exception()
        reported = trial.attempt.reported
        with self._making:
            trial.attempt = Attempt(trial.order, self.device, self._clock)
        trial.attempt.reported = reported
        lanes = [LaneAboard(trial, replicate) for replicate in trial.attempt.replicates]
        for lane, before in zip(lanes, trial.lanes, strict=True):
            lane.writing = before.writing
        trial.lanes = lanes

    def _lose(self, error: BaseException, for_good: bool) -> None:
        """Tell every caller that this was not its trial's fault, and begin anew, if at all."""
        words = EngineError(f"the engine on {self.device} could not go on: {error}")
        words.__cause__ = error
        logger.error("engine drops all trials device=%s error=%s", self.device, error)
        with self._changed:
            self._close_rooms()
            self._probes.clear()
            for trial in list(self._trials.values()):
                trial.error = trial.error or words
                trial.is_over, trial.is_gone = True, True
                trial.held.clear()
                for lane in trial.lanes:
                    lane.room, lane.is_lost = None, True
            if for_good:
                self._broken = words
            self._changed.notify_all()

    def _close_down(self) -> None:
        """Commit what is aboard, and let nobody wait any longer."""
        for trial in list(self._trials.values()):
            if self._broken is None:
                self._drop(trial, commit=True)
        with self._changed:
            self._broken = self._broken or EngineError("the engine has been stopped")
            self._close_rooms()
            self._changed.notify_all()

    def _close_rooms(self) -> None:
        for room in self._rooms.values():
            room.aboard = []
            with suppress(Exception):  # what is lost cannot be closed well
                room.group.close()
        self._rooms.clear()

    # What it looks like.

    def _publish(self) -> None:
        """Note who is in which lane, for `status`."""
        rooms = [
            {
                "shape": room.name,
                "lanes": room.group.lanes,
                "aboard": [lane.describe() for lane in room.aboard],
            }
            for room in self._rooms.values()
        ]
        waiting = [lane.describe() for lane in self._waiting()]
        with self._changed:
            self._status = {"groups": rooms, "waiting": waiting}

    def _describe(self) -> dict[str, object]:
        broken = None if self._broken is None else str(self._broken)
        return {
            "device": self.device,
            "groups": [],
            "waiting": [],
            "occupancy": self.occupancy(),
            "error": broken,
        }


def _key(order: Order) -> tuple[str, str, int]:
    return order.storage, order.experiment, order.number

"""Turns on the device: who comes and goes, which group trains next, what its lanes have reached."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

from eigensweep.store.marks import cancel_mark, leave_mark, pause_mark
from eigensweep.training.attempt import GLANCE_SECONDS
from eigensweep.training.errors import contain
from eigensweep.training.lanes.engine.commits import Commits
from eigensweep.training.lanes.engine.faults import Faults
from eigensweep.training.lanes.engine.groups import Groups
from eigensweep.training.lanes.engine.members import MemberLane, MemberTrial, ScheduledGroup
from eigensweep.training.lanes.engine.occupancy import Occupancy, Span
from eigensweep.training.lanes.engine.register import EngineError, Register

KEPT_SECONDS = 5.0
"""Without any trial, groups are kept for so long: those of a population come back at once."""


class TurnLoop:
    """Takes turns: looks around, refills lanes, lets one group train for a slice, reports rungs.

    One thread takes all turns. It takes the register's lock where callers see the outcome, and lets
    go of it before anything trains or is written.
    """

    def __init__(
        self,
        register: Register,
        groups: Groups,
        commits: Commits,
        faults: Faults,
        *,
        slice_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._register, self._groups = register, groups
        self._commits, self._faults = commits, faults
        self._slice, self._clock = slice_seconds, clock
        self.occupancy = Occupancy()
        """Changes under the register's lock."""
        self._looked_at = -GLANCE_SECONDS
        self._wanted_at = clock()
        """When a trial was last here."""

    def turn(self) -> bool:
        """Look around, refill lanes, and let one group train for a slice; False if none can."""
        self._drop_unwanted()
        self._stop_unwanted()
        for trial in self._register.list_open():
            self._attend(trial)
        self._refill()
        self._faults.resolve_probes()
        group = self._groups.next()
        self._clear_when_idle()
        if group is not None:
            self._train(group)
        return group is not None

    def close(self) -> None:
        """Commit what has a lane, and let nobody wait any longer."""
        for trial in list(self._register.trials.values()):
            if self._register.broken is None:
                self._drop(trial, commit=True)
        with self._register.changed:
            broken = self._register.broken or EngineError("the engine has been stopped")
            self._register.broken = broken
            self._groups.close()
            self._register.changed.notify_all()

    # Lanes.

    def _waiting(self) -> list[MemberLane]:
        """Return the replicates without a lane, in the order in which they get one.

        Replicates that a trial needs for its next rung come first; among them, earlier trials.
        """
        lanes = [
            lane
            for trial in self._register.list_open()
            for lane in trial.lanes
            if lane.group is None and not lane.replicate.training.is_finished
        ]
        return sorted(lanes, key=lambda lane: (not lane.is_needed, lane.trial.arrival))

    def _refill(self) -> None:
        """Give free lanes to those that wait."""
        for lane in self._waiting():
            if lane.trial.is_over or lane.group is not None:
                continue
            group = self._find_group(lane)
            if group is None:
                continue
            if not group.trainer.free and lane.is_needed:
                other = self._groups.find_lane_past_rung(group, lane)
                if other is not None:
                    self._faults.guard(lane.trial, self._groups.take_off, other)
            if group.trainer.free and not lane.trial.is_over:
                try:
                    with contain():
                        self._groups.take_on(group, lane)
                except Exception as error:
                    self._faults.see_not_joined(group, lane, error)

    def _find_group(self, lane: MemberLane) -> ScheduledGroup | None:
        """Return the group of a lane, made if need be; None if there is no memory for it now."""
        known = self._groups.find(lane.trial)
        if known is not None or not self._groups.make_room(lane.trial):
            return known
        try:
            with contain():
                return self._groups.make(lane)
        except Exception as error:
            self._faults.see_not_made(lane.trial, error)
            return None

    def _clear_when_idle(self) -> None:
        """Drop all groups when no trial has been here for a while: others may need the memory."""
        with self._register.changed:
            is_wanted = any(not trial.is_over for trial in self._register.trials.values())
        if is_wanted:
            self._wanted_at = self._clock()
        elif not self._groups.is_empty and self._clock() - self._wanted_at > KEPT_SECONDS:
            self._groups.clear_empty(0)

    # Training.

    def _train(self, group: ScheduledGroup) -> None:
        began, occupied = self._clock(), len(group.occupied)
        names = (self._groups.name_of(lane.trial) for lane in self._waiting())
        waiting = sum(1 for name in names if name == group.name)
        try:
            with contain(), nullcontext() if group.has_trained else self._groups.making:
                group.trainer.advance(self._slice)
            group.has_trained = True
        except Exception as error:
            self._faults.recover(group, error)
        for trial in dict.fromkeys(lane.trial for lane in group.occupied):
            self._attend(trial)
        for lane in list(group.occupied):
            if lane.replicate.is_due(len(group.occupied)) and not lane.is_writing:
                self._faults.guard(lane.trial, self._commits.commit, lane)
        seconds = self._clock() - began
        group.used += seconds / max(1, occupied)
        with self._register.changed:
            span = Span(began, seconds, group.trainer.lanes, occupied, waiting)
            self.occupancy.add(span)

    def _attend(self, trial: MemberTrial) -> None:
        """Report the rungs that a trial has come to, free the lanes it no longer needs."""
        self._faults.guard(trial, self._report_rungs, trial)
        self._release(trial)

    def _report_rungs(self, trial: MemberTrial) -> None:
        attempt = trial.attempt
        if attempt is None or trial.is_over or trial.drop is not None:
            return
        for lane in trial.lanes:
            if lane.group is not None and lane.replicate.training.is_finished:
                self._groups.take_off(lane)
        while not trial.is_over and attempt.is_ready():
            self._commits.commit_news(trial)
            report = attempt.report()
            if report.outcome is not None:
                self._groups.end(trial)
                for lane in trial.lanes:
                    self._commits.write(lane, lane.replicate.keep_best)
            self._commits.hold(trial, report)

    def _release(self, trial: MemberTrial) -> None:
        """Give out the reports whose commits are written, unless one has failed.

        A commit fails with the one before it, so the last of each lane tells.
        """
        with self._register.changed:
            for lane in trial.lanes:
                if lane.writing is not None and lane.writing.done():
                    error = lane.writing.exception()
                    lane.writing = None
                    if error is not None:
                        self._faults.settle(trial, error)
            self._register.give_out(trial)

    # Trials that go.

    def _drop_unwanted(self) -> None:
        """Take off the trials that left or have a successor."""
        for trial in self._register.list_leaving():
            self._drop(trial, commit=trial.drop != "left")

    def _drop(self, trial: MemberTrial, commit: bool) -> None:
        is_open = trial.attempt is not None and not trial.is_over
        self._faults.guard(trial, self._groups.end, trial)
        for lane in trial.lanes:
            if commit and is_open and lane.replicate.has_news:
                self._faults.guard(trial, self._commits.commit, lane)
        for lane in trial.lanes:
            lane.wait()  # a successor reads what is written
        self._register.see_gone(trial)

    def _stop_unwanted(self) -> None:
        """End the trials of experiments that were cancelled or paused, where they are.

        Those that were paused commit what they have.
        """
        now = self._clock()
        if now - self._looked_at < GLANCE_SECONDS:
            return
        self._looked_at = now
        for trial in self._register.list_open():
            folder = trial.order.storage, trial.order.experiment
            if trial.is_over or trial.attempt is None:
                continue
            own = trial.order.number, trial.order.attempt
            is_paused = pause_mark(*folder).exists() or leave_mark(*folder, *own).exists()
            if cancel_mark(*folder).exists():
                self._faults.guard(trial, self._groups.end, trial)
                self._commits.hold(trial, trial.attempt.report_cancelled())
            elif is_paused:
                self._faults.guard(trial, self._pause, trial)

    def _pause(self, trial: MemberTrial) -> None:
        """Commit what a trial has, and take its lanes off: it will go on later."""
        assert trial.attempt is not None
        self._commits.commit_news(trial)
        self._groups.end(trial)
        self._commits.hold(trial, trial.attempt.report_paused())

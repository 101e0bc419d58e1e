"""Which trials are members of an engine, and what their callers are told."""

from __future__ import annotations

import threading
import time

from eigensweep.protocol.messages import Order, Report
from eigensweep.store.commits.head import StaleAttemptError
from eigensweep.training.lanes.engine.members import MemberTrial


class EngineError(RuntimeError):
    """The engine or the machine could not go on. No trial's fault: each goes on elsewhere."""


class Register:
    """Keeps the members of an engine, hands reports to their callers, and knows when it ends.

    All threads use it: callers, the training thread, and the writers of commits. `changed` guards
    the register and what callers see of a member, and is notified of every change. A thread that
    holds it may make nothing on the device, and the training thread holds it for moments only.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.trials: dict[tuple[str, str, int], MemberTrial] = {}
        self.is_stopping = False
        self.broken: EngineError | None = None
        """Why the engine does not go on."""
        self._arrivals = 0

    def enter(self, order: Order) -> MemberTrial:
        """Return the member for an order, new or known.

        Raises:
            StaleAttemptError: if the trial has a later attempt.
            EngineError: if the engine does not go on.
        """
        with self.changed:
            if self.is_stopping or self.broken is not None:
                raise self.broken or EngineError("the engine has been stopped")
            known = self.trials.get(_key(order))
            if known is not None and known.order.attempt > order.attempt:
                raise StaleAttemptError(
                    f"attempt {order.attempt} of trial {order.number} of {order.experiment} "
                    f"has a successor, {known.order.attempt}"
                )
            is_same = known is not None and known.order.attempt == order.attempt
            if known is not None and is_same and known.drop is None:
                return known
            if known is not None:
                known.drop = known.drop or "superseded"
                known.error = known.error or StaleAttemptError(
                    f"attempt {known.order.attempt} of trial {order.number} of "
                    f"{order.experiment} has left, or has a successor"
                )
            self._arrivals += 1
            trial = MemberTrial(order, self._arrivals, predecessor=known)
            self.trials[_key(order)] = trial
            self.changed.notify_all()
            return trial

    def take_report(self, trial: MemberTrial, reported: int, deadline: float) -> Report | None:
        """Return the next report beyond the step `reported`, None if there is none in time.

        The last one comes whatever its step: a trial may be paused before it has trained further.

        Raises:
            StaleAttemptError: if the trial has a later attempt.
            EngineError: if engine or machine could not go on.
        """
        with self.changed:
            while True:
                while trial.reports:
                    report = trial.reports[0]
                    if report.outcome is not None or report.lost is not None:
                        return report
                    trial.reports.popleft()
                    if report.step > reported:
                        return report
                if (error := trial.error or self.broken) is not None:
                    self.forget(trial)
                    raise error
                if not self.wait(deadline):
                    return None

    def wait(self, deadline: float) -> bool:
        """Wait for a change, holding `changed`; False if the deadline has passed."""
        left = deadline - time.monotonic()
        if left > 0:
            self.changed.wait(left)
        return left > 0

    def leave(self, order: Order, commit: bool) -> None:
        """Note that a trial goes, or that it moves and commits what it has trained."""
        with self.changed:
            trial = self.trials.get(_key(order))
            if trial is not None and trial.order.attempt <= order.attempt:
                trial.drop = trial.drop or ("moved" if commit else "left")
                if trial.is_gone:
                    self.forget(trial)
                self.changed.notify_all()

    def forget(self, trial: MemberTrial) -> None:
        """Strike a member off, unless a successor has its place."""
        if self.trials.get(_key(trial.order)) is trial:
            del self.trials[_key(trial.order)]

    def list_open(self) -> list[MemberTrial]:
        """Return the members that train, or have reports that are held back."""
        with self.changed:
            return [
                trial
                for trial in self.trials.values()
                if trial.attempt is not None and (not trial.is_over or trial.held)
            ]

    def list_leaving(self) -> list[MemberTrial]:
        """Return the trials that left or have a successor; the earliest attempt comes first."""
        with self.changed:
            trials = list(self.trials.values())
            for trial in trials:  # grows meanwhile
                if trial.predecessor is not None:
                    trials.append(trial.predecessor)
            going = [t for t in trials if t.drop is not None and not t.is_gone and not t.is_opening]
        going.reverse()
        return going

    def see_gone(self, trial: MemberTrial) -> None:
        """Note that nothing of a member is left to be written: a successor may begin."""
        with self.changed:
            trial.is_gone = True
            self.forget(trial)
            self.changed.notify_all()

    def lose_all(self, error: EngineError) -> None:
        """Tell the callers of all members that these go on elsewhere."""
        for trial in list(self.trials.values()):
            trial.error = trial.error or error
            trial.is_over, trial.is_gone = True, True
            trial.held.clear()
            for lane in trial.lanes:
                lane.group, lane.is_lost = None, True

    def give_out(self, trial: MemberTrial) -> None:
        """Give out the reports of a member whose commits are all written."""
        with self.changed:
            while trial.held and all(
                each.done() and each.exception() is None for each in trial.held[0][1]
            ):
                trial.reports.append(trial.held.popleft()[0])
            self.changed.notify_all()


def _key(order: Order) -> tuple[str, str, int]:
    return order.storage, order.experiment, order.number

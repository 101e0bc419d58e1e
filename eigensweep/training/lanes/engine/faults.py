"""What happens when something fails in an engine: whose fault it is, and who goes on how."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVarTuple

from eigensweep.common import logs
from eigensweep.protocol.ledger import StaleWriteError
from eigensweep.protocol.messages import Order, Report
from eigensweep.store.places.durable_files import DamagedError
from eigensweep.tasks.corpus import CorpusMissingError
from eigensweep.training.attempt import Attempt
from eigensweep.training.devices import DeviceError, find_crowding
from eigensweep.training.errors import (
    contain,
    cut_middle,
    is_of_the_device,
    is_of_the_disk,
    is_out_of_memory,
    let_go,
)
from eigensweep.training.lanes.engine.groups import Groups
from eigensweep.training.lanes.engine.members import (
    ALONE,
    MemberLane,
    MemberTrial,
    Probe,
    ScheduledGroup,
)
from eigensweep.training.lanes.engine.register import EngineError, Register
from eigensweep.training.lanes.stacked.group import LaneError

logger = logging.getLogger(__name__)

Ts = TypeVarTuple("Ts")


class TooLargeError(RuntimeError):
    """A device does not hold a single lane of a trial, with nothing beside it."""


class Faults:
    """Judges errors: a trial's fails it alone, memory's shrinks a group, others are nobody's.

    The training thread calls it; `settle` is also called by the thread of a caller whose trial
    cannot be opened. It takes the register's lock where callers are told something.
    """

    def __init__(
        self,
        device: str,
        register: Register,
        groups: Groups,
        open_attempt: Callable[[Order], Attempt],
    ) -> None:
        self._device, self._register, self._groups = device, register, groups
        self._open_attempt = open_attempt
        self._probes: dict[str, Probe] = {}
        """Searches for who made a group fail, by its name."""

    def guard(self, trial: MemberTrial, act: Callable[[*Ts], object], *arguments: *Ts) -> None:
        """Run an action; an exception fails this trial only."""
        try:
            with contain():
                act(*arguments)
        except Exception as error:
            self.settle(trial, error)

    def settle(self, trial: MemberTrial, error: BaseException) -> None:
        """Take in an error that was met while working for one trial."""
        with self._register.changed:
            is_damage = isinstance(error, DamagedError)  # of what this trial alone has stored
            disk_failed = is_of_the_disk(error) and not is_damage
            if disk_failed or self._is_of_the_device(error):
                self.lose(error, for_good=not disk_failed)
                return
            if trial.error is not None or trial.has_failed:
                return
            trial.has_failed = True
            with suppress(Exception):  # what failed may fail once more
                self._groups.end(trial)
            trial.held.clear()
            if isinstance(error, StaleWriteError | CorpusMissingError | DeviceError):
                trial.error = error
            elif is_damage:
                trial.error = EngineError(str(error))
                trial.error.__cause__ = error
            elif is_out_of_memory(error) and not isinstance(error, TooLargeError):
                let_go(error)
                trial.error = EngineError(f"the memory of {self._device} ran out: {error}")
                trial.error.__cause__ = error
            else:
                reached = 0 if trial.attempt is None else trial.attempt.reached_step
                with logs.about(*trial.subject):
                    words = "trial failed experiment=%s trial=%d step=%d error=%s"
                    logger.warning(words, *trial.subject, reached, error)
                told = cut_middle("".join(traceback.format_exception(error)))
                trial.reports.append(Report(reached, outcome="failed", error=told))
            self._register.changed.notify_all()

    def recover(self, group: ScheduledGroup, error: Exception) -> None:
        """Go on after a group's training has failed."""
        if self._is_of_the_device(error):
            self.lose(error, for_good=True)
        elif is_of_the_disk(error):
            self.lose(error, for_good=False)
        elif is_out_of_memory(error):
            let_go(error)  # before anything is made anew
            self._shrink(group, error)
        elif isinstance(error, LaneError):
            self._blame(group, error)
        else:
            self._suspect(group, error)

    def _is_of_the_device(self, error: BaseException) -> bool:
        """Tell whether the engine's GPU is lost; a trial's code may ask for one on a CPU."""
        return self._device != "cpu" and is_of_the_device(error)

    def see_not_made(self, trial: MemberTrial, error: Exception) -> None:
        """Go on after a trial's group could not be made."""
        name, lanes = self._groups.name_of(trial), self._groups.lanes_of(trial)
        if self._is_of_the_device(error):
            self.lose(error, for_good=True)
        elif is_out_of_memory(error):
            self._find_less(name, lanes, [trial], error)
        else:
            logger.warning("no program for this shape, its trials train alone", exc_info=error)
            self._groups.unshareable[name] = f"making their program failed: {error}"

    def see_not_joined(self, group: ScheduledGroup, lane: MemberLane, error: Exception) -> None:
        """Go on after a replicate could not be given a free lane."""
        if is_out_of_memory(error):
            self._shrink(group, error)
        else:
            self.settle(lane.trial, error)

    def lose(self, error: BaseException, for_good: bool) -> None:
        """Tell every caller that this was not its trial's fault, and begin anew, if at all."""
        words = EngineError(f"the engine on {self._device} could not go on: {error}")
        words.__cause__ = error
        logger.error("engine drops all trials device=%s error=%s", self._device, error)
        with self._register.changed:
            self._groups.close()
            self._probes.clear()
            self._register.lose_all(words)
            if for_good:
                self._register.broken = words
            self._register.changed.notify_all()

    def resolve_probes(self) -> None:
        """Let those that did well alone share again, or not, if no trial alone is to blame."""
        for name, probe in list(self._probes.items()):
            probe.trials = [
                trial
                for trial in probe.trials
                if not trial.is_over
                and not all(lane.replicate.has_come_to(trial.probed_until) for lane in trial.lanes)
            ]
            if probe.trials:
                continue
            del self._probes[name]
            if not probe.is_explained:
                self._groups.unshareable[name] = f"they failed side by side: {probe.error}"
                logger.warning("none of its trials fails alone, so they stay alone")
            for trial in self._register.list_open():
                if trial.probe is probe:
                    trial.probe = None
                    if probe.is_explained:
                        for lane in trial.lanes:
                            self.guard(trial, self._groups.take_off, lane)

    def _blame(self, group: ScheduledGroup, error: LaneError) -> None:
        lane = next(each for each in group.occupied if each.replicate.training is error.training)
        if lane.trial.probe is not None:
            lane.trial.probe.is_explained = True
        self.settle(lane.trial, error.__cause__ or error)

    def _shrink(self, group: ScheduledGroup, error: Exception) -> None:
        """Close a group that does not fit into the memory, and let fewer at a time go on."""
        lanes = len(group.occupied) if group.name == ALONE else group.trainer.lanes
        self._find_less(group.name, lanes, self._close_lost(group), error)

    def _find_less(
        self, name: str, lanes: int, trials: Iterable[MemberTrial], error: Exception
    ) -> None:
        """Decide what to try after so many lanes of a shape did not fit into the memory."""
        let_go(error)
        self._groups.give_back()
        if self._groups.clear_empty(0):
            return
        if lanes > 1:
            self._groups.most[name] = lanes // 2
            logger.warning("out of memory, fewer lanes lanes=%d of=%d", lanes // 2, lanes)
            return
        if occupied := self._groups.count_occupied():
            self._groups.crowded[name] = occupied
            logger.warning("out of memory, trials wait until other shapes have ended")
            return
        crowding = find_crowding(self._device, 1.0)
        for trial in trials:
            words = TooLargeError(
                f"the memory of {self._device} does not hold one lane of this size"
            )
            words.__cause__ = error
            self.settle(trial, DeviceError(crowding) if crowding else words)

    def _suspect(self, group: ScheduledGroup, error: Exception) -> None:
        """Let each trial of a group train alone for a while, to see which of them fails."""
        logger.warning(
            "a group failed, each of its trials goes on alone for a while lanes=%d",
            len(group.occupied),
            exc_info=error,
        )
        probe = self._probes.setdefault(group.name, Probe(error))
        steps = {lane.trial: lane.trial.attempt for lane in group.occupied}
        until = {
            trial: attempt.reached_step + attempt.replicates[0].training.evaluate_every
            for trial, attempt in steps.items()
            if attempt is not None
        }
        for trial in self._close_lost(group):
            trial.probe, trial.probed_until = probe, until[trial]
            probe.trials.append(trial)

    def _close_lost(self, group: ScheduledGroup) -> list[MemberTrial]:
        """Drop a group whose tensors cannot be trusted; its trials go back to their commits."""
        trials = self._groups.close_lost(group)
        for trial in trials:
            self.guard(trial, self._reopen, trial)
        return [trial for trial in trials if not trial.is_over]

    def _reopen(self, trial: MemberTrial) -> None:
        """Pick a trial up from its last commits once more."""
        assert trial.attempt is not None
        for lane in trial.lanes:
            self._groups.take_off(lane)
            lane.wait()
        reported = trial.attempt.reported
        trial.attempt = self._open_attempt(trial.order)
        trial.attempt.reported = reported
        lanes = [MemberLane(trial, replicate) for replicate in trial.attempt.replicates]
        for lane, before in zip(lanes, trial.lanes, strict=True):
            lane.writing = before.writing
        trial.lanes = lanes

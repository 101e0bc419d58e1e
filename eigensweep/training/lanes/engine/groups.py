"""The groups of lanes on one device, and who has a lane in which."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import torch

from eigensweep.common import logs
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.training.lanes.engine.members import ALONE, MemberLane, MemberTrial, ScheduledGroup
from eigensweep.training.lanes.engine.turns import SideBySide, Turns
from eigensweep.training.lanes.stacked.group import Group, explain_alone, shape_key
from eigensweep.training.training import Training

logger = logging.getLogger(__name__)

MOST_ALONE = 64
"""How many of those that cannot share are on the device at once."""

KEPT_EMPTY = 2
"""Groups without trainings that are kept, since making one costs seconds on a GPU."""


@dataclass(frozen=True)
class Sharing:
    """Which trainings can share a program, and what makes one of them."""

    shape_key: Callable[[TrialConfig], str] = shape_key
    """Trainings with the same key can share."""
    explain_alone: Callable[[TrialConfig], str | None] = explain_alone
    """Why a configuration cannot share with any other, None if it can."""
    make_group: Callable[[Training, int], SideBySide] = Group
    """Makes an empty group with that number of lanes, for trainings like the one given."""


class Groups:
    """Makes and drops groups, and gives their lanes to replicates.

    It judges no error: `Faults` does, and notes here what memory and programs allow. Only the
    training thread uses it, except at the end of an engine. That thread holds `making` to make a
    group, and other threads hold it to make a training: both use globals of the process.
    """

    def __init__(self, device: str, make_group: Callable[[Training, int], SideBySide]) -> None:
        self.making = threading.Lock()
        self.most: dict[str, int] = {}
        """Lanes that memory has room for, by group, where it was found to be short."""
        self.crowded: dict[str, int] = {}
        """Groups without room for one lane, and how many others trained when that showed."""
        self.unshareable: dict[str, str] = {}
        """Shapes whose program does not work here, and why."""
        self._device, self._make_group = device, make_group
        self._known: dict[str, ScheduledGroup] = {}
        self._told_alone: set[str] = set()

    @property
    def is_empty(self) -> bool:
        """Whether there is no group at all."""
        return not self._known

    def name_of(self, trial: MemberTrial) -> str:
        """Return the name of the group in which a trial trains."""
        alone = trial.alone or self.unshareable.get(trial.shape)
        return ALONE if alone or trial.probe is not None else trial.shape

    def lanes_of(self, trial: MemberTrial) -> int:
        """Return how many lanes the group of a trial gets if it is made now."""
        return min(trial.lanes_of_group, self.most.get(self.name_of(trial), trial.lanes_of_group))

    def find(self, trial: MemberTrial) -> ScheduledGroup | None:
        """Return the group of a trial, None if there is none yet."""
        name = self.name_of(trial)
        if name == ALONE:
            self._tell_why_alone(trial)
        return self._known.get(name)

    def make_room(self, trial: MemberTrial) -> bool:
        """Drop empty groups before a trial's own is made; False if there is no memory for it."""
        name = self.name_of(trial)
        if name in self.crowded:
            if self.count_occupied() >= self.crowded[name]:
                return False
            del self.crowded[name]
            self.clear_empty(0)
        self.clear_empty(KEPT_EMPTY)
        return True

    def make(self, lane: MemberLane) -> ScheduledGroup:
        """Make the group of a lane's trial; it raises what making the program raised."""
        name, trial = self.name_of(lane.trial), lane.trial
        if name == ALONE:
            trainer: SideBySide = Turns(self.most.get(ALONE, MOST_ALONE))
        elif trial.lanes_of_group == 1 and self._device == "cpu":
            trainer = Turns(1)  # the compiled steps are faster than a program of one lane
        else:
            with self.making:
                trainer = self._make_group(lane.replicate.training, self.lanes_of(trial))
        self._known[name] = group = ScheduledGroup(name, trainer)
        return group

    def next(self) -> ScheduledGroup | None:
        """Return the group whose lanes have had the least of the device, None if none trains."""
        return min(self._occupied(), key=lambda group: group.used, default=None)

    def count_occupied(self) -> int:
        """Return how many groups have somebody in a lane."""
        return sum(1 for _ in self._occupied())

    def take_on(self, group: ScheduledGroup, lane: MemberLane) -> None:
        """Give a replicate a lane; if that raises, it has none."""
        group.trainer.join(lane.replicate.training)
        if not group.occupied:
            others = [other.used for other in self._occupied()]
            group.used = max(group.used, min(others, default=0.0))
        lane.group = group
        group.occupied.append(lane)

    def find_lane_past_rung(self, group: ScheduledGroup, lane: MemberLane) -> MemberLane | None:
        """Return a lane of the same trial that is past the rung to which this one must come."""
        of_trial = (other for other in group.occupied if other.trial is lane.trial)
        return next((other for other in of_trial if not other.is_needed), None)

    def take_off(self, lane: MemberLane) -> None:
        """Take a replicate off its lane, with its tensors; without a lane it stays as it is."""
        group = lane.group
        if group is None:
            return
        lane.group = None
        group.occupied.remove(lane)
        try:
            group.trainer.leave(lane.replicate.training)
        except Exception:
            lane.is_lost = True
            raise

    def end(self, trial: MemberTrial) -> None:
        """Take all of a trial's lanes off: there is no more to train.

        What one of them raises is raised once none has a lane any more.
        """
        trial.is_over = True
        with ExitStack() as all_of_them:
            for lane in trial.lanes:
                all_of_them.callback(self.take_off, lane)

    def clear_empty(self, kept: int) -> int:
        """Drop all but `kept` of the groups without trainings; return how many were dropped."""
        used = {name: group.used for name, group in self._known.items() if not group.occupied}
        dropped = sorted(used, key=used.__getitem__)[: max(0, len(used) - kept)]
        for name in dropped:
            self._known.pop(name).trainer.close()
        if dropped:
            self.give_back()
        return len(dropped)

    def give_back(self) -> None:
        """Give the device the memory of groups that are gone."""
        if self._device != "cpu":
            gc.collect()
            torch.cuda.empty_cache()

    def close_lost(self, group: ScheduledGroup) -> list[MemberTrial]:
        """Drop a group whose tensors cannot be trusted; return the trials that had its lanes."""
        self._known.pop(group.name, None)
        with suppress(Exception):  # it has failed already
            group.trainer.close()
        lanes, group.occupied = group.occupied, []
        for lane in lanes:
            lane.group, lane.is_lost = None, True
        self.give_back()
        return list(dict.fromkeys(lane.trial for lane in lanes))

    def close(self) -> None:
        """Drop all groups, whoever is in them."""
        for group in self._known.values():
            group.occupied = []
            with suppress(Exception):  # what is lost cannot be closed well
                group.trainer.close()
        self._known.clear()

    def _occupied(self) -> Iterable[ScheduledGroup]:
        return (group for group in self._known.values() if group.occupied)

    def _tell_why_alone(self, trial: MemberTrial) -> None:
        why = trial.alone or self.unshareable.get(trial.shape)
        if why is not None and why not in self._told_alone:
            self._told_alone.add(why)
            with logs.about(*trial.subject):
                words = "trial trains alone experiment=%s trial=%d why=%s"
                logger.info(words, *trial.subject, why)

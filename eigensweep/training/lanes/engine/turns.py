"""How trainings share a device: what an engine needs of a group, and the simplest one.

`SideBySide` is what a group of lanes offers. `Turns` offers the same for trainings of any shape,
which it trains one at a time: for those that cannot share a program.
"""

from __future__ import annotations

from typing import Protocol

from eigensweep.training.lanes.stacked.group import LaneError
from eigensweep.training.training import Training


class SideBySide(Protocol):
    """Trainings on one device that join, train, and leave."""

    @property
    def lanes(self) -> int:
        """How many there may be at once."""

    @property
    def free(self) -> int:
        """How many more may join."""

    def join(self, training: Training) -> None:
        """Give a training a lane.

        Raises:
            ValueError: if no lane is free, or the training does not fit the others.
        """

    def advance(self, seconds: float) -> None:
        """Train for about so long, or until a training passed an evaluation or ended.

        Raises:
            LaneError: if one training failed and the others can go on.
        """

    def update(self, training: Training) -> None:
        """Copy a training's tensors back: then its `state_dict()` is current."""

    def leave(self, training: Training) -> None:
        """Update a training and free its lane."""

    def close(self) -> None:
        """End what the group has running; it is of no use afterwards."""


class Turns:
    """Trainings of any shape, of which one trains at a time, by `Training.run`."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.trainings: list[Training] = []

    @property
    def free(self) -> int:
        return self.lanes - len(self.trainings)

    def join(self, training: Training) -> None:
        if not self.free:
            raise ValueError(f"all {self.lanes} lanes are taken")
        self.trainings.append(training)

    def advance(self, seconds: float) -> None:
        """Train the one whose turn it is; the next call trains the next one."""
        training = next((t for t in self.trainings if not t.is_finished), None)
        if training is None:
            return
        self.trainings.remove(training)
        self.trainings.append(training)
        try:
            training.run_for(seconds)
        except Exception as error:
            raise LaneError(training) from error

    def update(self, training: Training) -> None:
        """Do nothing: the training holds its own tensors."""

    def leave(self, training: Training) -> None:
        self.trainings.remove(training)

    def close(self) -> None:
        """Do nothing: nothing runs but in `advance`."""

"""Trainings of equal shape that join, train side by side, and leave."""

from __future__ import annotations

import hashlib
import json
import time

import torch

from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.training.errors import contain
from eigensweep.training.evaluation import keep_finite
from eigensweep.training.lanes.stacked.lane_check import check_lanes
from eigensweep.training.lanes.stacked.program import LONGEST_SEGMENT, Program
from eigensweep.training.training import Evaluation, Training


class LaneError(Exception):
    """One training's own batch, evaluation or model failed; the other lanes are untouched.

    The error itself is the `__cause__`.
    """

    def __init__(self, training: Training) -> None:
        super().__init__("a training failed by itself; its neighbours did not notice")
        self.training = training


class Group:
    """Trainings on one device as lanes of one program.

    Each `Training` keeps its own books, as if it trained alone: curve, selection, schedule,
    patience and divergence. The program does the arithmetic for all of them.
    """

    def __init__(
        self, like: Training, lanes: int, *, capture: bool = True, static: bool | None = None
    ) -> None:
        """Make room for `lanes` trainings of the shape of `like`, which has not joined yet.

        `capture` and `static` are those of `Program`.

        Raises:
            ValueError: if such trainings cannot share a program.
        """
        if reason := explain_alone(like.config):
            raise ValueError(reason)
        self.lanes = lanes
        self._key, self._device = shape_key(like.config), like.device
        self._program = Program(like, lanes, capture=capture, static=static)
        try:
            check_lanes(self._program, like)
        except BaseException:
            self._program.close()
            raise
        self._joined: dict[int, Training] = {}
        self._seconds_a_step = 0.0

    @property
    def trainings(self) -> list[Training]:
        """Those that have joined, by lane."""
        return [self._joined[lane] for lane in sorted(self._joined)]

    @property
    def free(self) -> int:
        """Number of empty lanes."""
        return self.lanes - len(self._joined)

    @property
    def is_captured(self) -> bool:
        """Whether steps are replayed as a CUDA graph; false before the first step."""
        return self._program.is_captured

    @property
    def scores_captured(self) -> int:
        """Number of CUDA graphs that evaluations replay."""
        return self._program.scores_captured

    def join(self, training: Training) -> None:
        """Take a training into an empty lane. It leaves by `leave`, and is not run meanwhile.

        Raises:
            ValueError: if no lane is empty, or it is of another shape or device, or has joined.
        """
        if training in self._joined.values():
            raise ValueError("this training has a lane already")
        key = shape_key(training.config)
        if (training.device, key) != (self._device, self._key):
            raise ValueError(
                f"this group trains {self._key} on {self._device}; the training is of "
                f"{key} on {training.device}"
            )
        if not self.free:
            raise ValueError(f"all {self.lanes} lanes are taken; one that leaves makes room")
        lane = next(lane for lane in range(self.lanes) if lane not in self._joined)
        self._program.load(lane, training)
        self._joined[lane] = training

    def advance(self, seconds: float) -> None:
        """Train all lanes side by side, and keep their books.

        Each training is given an equal part of the time. It takes at least a step, and returns when
        about `seconds` have passed, when a training passed an evaluation or ended, and at once if
        there is nothing to train.

        Raises:
            LaneError: if a training's batch could not be drawn. The others can go on without it.
        """
        torch.set_flush_denormal(True)
        began, trainings = time.perf_counter(), self.trainings
        rest = seconds
        while self._running() and not self._evaluate_due():
            self._run_segment(rest)
            rest = seconds - (time.perf_counter() - began)
            if rest <= 0:
                self._evaluate_due()
                break
        spent = time.perf_counter() - began
        for training in trainings:
            training.add_seconds(spent / len(trainings))

    def update(self, training: Training) -> None:
        """Copy a lane's tensors back, so that the training's `state_dict` is current."""
        self._program.store(self._lane_of(training), training)

    def leave(self, training: Training) -> None:
        """Copy a lane's tensors back and empty it."""
        lane = self._lane_of(training)
        try:
            self._program.store(lane, training)
        finally:  # memory that is short for the copy leaves no lane behind
            self._program.unload(lane)
            del self._joined[lane]

    def close(self) -> None:
        """End the group's threads and let go of its tensors; it is of no use afterwards."""
        self._joined.clear()
        self._program.close()
        del self._program

    def _running(self) -> dict[int, Training]:
        return {lane: t for lane, t in self._joined.items() if not t.is_finished}

    def _lane_of(self, training: Training) -> int:
        for lane, known in self._joined.items():
            if known is training:
                return lane
        raise ValueError("this training has no lane")

    def _run_segment(self, seconds: float) -> None:
        """Run to the next evaluation or end of any lane, or as far as `seconds` seem to reach."""
        running = self._running()
        ticks = min(LONGEST_SEGMENT, *(t.steps_to_evaluation for t in running.values()))
        if self._seconds_a_step:
            ticks = max(1, min(ticks, int(seconds / self._seconds_a_step)))
        began, worked = time.perf_counter(), time.process_time()
        factors = {
            lane: [t.schedule.factor(t.step + tick) for tick in range(ticks)]
            for lane, t in running.items()
        }
        for lane, training in running.items():
            try:
                with contain():
                    self._program.prepare(lane, ticks)
            except Exception as error:  # its own task; the others can go on
                raise LaneError(training) from error
        for numbers in self._program.run(ticks, factors):
            for lane, training in running.items():
                if not training.is_finished:
                    training.see_update(*numbers[lane])
        self._seconds_a_step = (time.perf_counter() - began) / ticks
        worked = (time.process_time() - worked) / ticks / len(running)
        for training in running.values():
            training.add_step_times(worked, ticks)
        self._stop_finished(running)

    def _evaluate_due(self) -> bool:
        """Evaluate the lanes whose turn it is; return whether there were any."""
        due = {lane: t for lane, t in self._joined.items() if t.evaluation_due}
        if due:
            valid, constraint = self._program.score("valid", due), self._program.report_constraint()
            tested = {lane for lane, t in due.items() if t.tests_each_evaluation}
            test = self._program.score("test", tested) if tested else {}
            for lane, training in due.items():
                if training.config.training.spectra:
                    self._program.store(lane, training)
                training.see_evaluation(
                    Evaluation(
                        valid=valid[lane],
                        constraint=constraint[lane],
                        weights=lambda lane=lane: self._program.weights(lane),  # type: ignore[misc]
                        test=keep_finite(test[lane]) if lane in tested else None,
                        spectra=training.spectra(),
                    )
                )
        finished = {lane: t for lane, t in self._joined.items() if t.test_due}
        if finished:
            bests = {lane: t.selection.best for lane, t in finished.items()}
            weights = {lane: best.weights for lane, best in bests.items() if best is not None}
            test = self._program.score("test", finished, weights)
            for lane, training in finished.items():
                training.see_test(test[lane])
        self._stop_finished(due)
        return bool(due)

    def _stop_finished(self, lanes: dict[int, Training]) -> None:
        for lane, training in lanes.items():
            if training.is_finished:
                self._program.set_running(lane, False)


def shape_key(config: TrialConfig) -> str:
    """Return a short name of all that must be equal for trainings to share a program.

    Learning rates, constants of optimizers, clipping, penalties, schedules, budgets, what is
    evaluated and when, initial values and seeds may differ.
    """
    config = config.resolve()
    model = config.model
    varying = model.lane_fields | model.scalars
    content: dict[str, object] = {
        "task": config.task.model_dump(mode="json"),
        "model": model.model_dump(mode="json", exclude=set(varying)),
        "given": sorted(f for f in model.scalars if getattr(model, f) is not None),
        "off": sorted(f for f in model.switches if not getattr(model, f)),
        "optimizers": [config.optimizer.name, config.optimizer.name_orth],
    }
    text = json.dumps(content, sort_keys=True)
    return f"{model.name}-{config.task.name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def explain_alone(config: TrialConfig) -> str | None:
    """Return why trainings of a config cannot share a program; None if they can."""
    config = config.resolve()
    name = config.model.name
    if name.startswith("constructed"):
        return f"{name} runs alone: nothing is trained, so there are no steps to share"
    if getattr(config.model, "scale_gradient", False) and config.task.has_unequal_batches:
        return (
            f"{name} with 'scale_gradient' runs alone on {config.task.name}: it divides by the "
            "length of each batch, and lanes pad their batches to one length"
        )
    return None

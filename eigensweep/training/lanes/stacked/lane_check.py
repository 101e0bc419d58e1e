"""Whether code of one's own computes in lanes what it computes alone: a few steps are tried.

`torch.vmap` and an optimizer over stacked parameters leave out what a network does beside its
operations on tensors: hooks of gradients, buffers that are assigned, constants that follow from the
seed. A rule that takes a norm takes it over all lanes. None of that raises.
"""

from __future__ import annotations

import copy
import logging
from dataclasses import replace
from math import isclose, isfinite
from typing import Final

import torch
from torch import Tensor

from eigensweep.search_spaces.trial import OptimizerConfig, TrialConfig
from eigensweep.training.errors import contain, is_out_of_memory
from eigensweep.training.evaluation import EvaluatedBatch, add_scores, carry_into
from eigensweep.training.lanes.stacked.program import Numbers, Program
from eigensweep.training.optimizers.schedules import RateSchedule
from eigensweep.training.selection import Weights
from eigensweep.training.training import Training

logger = logging.getLogger(__name__)

STEPS: Final = 3
FASTER: Final = 1.5
"""The second training has so many times the learning rates of the first."""
LEAST_RATE: Final = 1e-3
"""With a smaller one, parameters move no further than rounding does."""
NUMBERS_DIFFER: Final = 5e-3
"""Losses and gradient norms whose relative difference is larger differ by more than rounding."""
MOVES_DIFFER: Final = 0.05
"""The same for the numbers of a tensor, as a share of its largest change in a step."""
SMALL: Final = 1e-3
"""Where a gradient is below this part of its tensor's largest, rounding may decide where a number
goes, such as with Adam, which divides by the gradient's size."""
VERY_SMALL: Final = 1e-5
"""The same for the largest gradient of a tensor, in the largest of all."""


class _Alone(Training):
    """A training that knows the numbers of its last step."""

    numbers: Numbers = (0.0, 0.0, 0.0)

    def see_update(self, objective: float, loss: float, norm: float) -> bool:
        self.numbers = objective, loss, norm
        return super().see_update(objective, loss, norm)


def check_lanes(program: Program, like: Training) -> None:
    """Take a few steps in the lanes of a program, and alone, from two seeds with two rates.

    At the end a batch is scored both ways. What fails alone is left to the trainings that will meet
    it. Our own models and tasks are held together by tests. The program's lanes are empty before
    and afterwards.

    Raises:
        ValueError: if the numbers differ.
    """
    if all(type(each).__module__.startswith("eigensweep.") for each in (like.model, like.task)):
        return
    try:
        with contain():
            trainings = [_make(like, number) for number in range(min(2, program.lanes))]
            changed = _find_changed_by_scoring(trainings[0])
    except Exception as error:
        _pass_over(error)
        return
    if changed is not None:
        raise _differs(like, f"an evaluation changes '{changed}'")
    try:
        for lane, training in enumerate(trainings):
            program.load(lane, training)
        for _ in range(STEPS):
            begun = [training.weights() for training in trainings]
            factors = {n: [t.schedule.factor(t.step)] for n, t in enumerate(trainings)}
            try:
                with contain():
                    for training in trainings:
                        training.take_step()
            except Exception as error:
                _pass_over(error)
                return
            (numbers,) = program.run(1, factors)
            for lane, training in enumerate(trainings):
                if not all(map(isfinite, training.numbers)):
                    return
                weights = program.weights(lane)
                what = _find_difference(training, begun[lane], numbers[lane], weights)
                if what is not None:
                    raise _differs(like, what)
        if (what := _find_other_score(program, trainings)) is not None:
            raise _differs(like, what)
    finally:
        program.empty(like)


def _make(like: Training, number: int) -> _Alone:
    """Return a training like another one, with a seed and learning rates of its own."""
    optimizer, factor = like.config.optimizer, FASTER**number
    rates = {
        name: max(LEAST_RATE, rate) * factor
        for name, rate in (("lr", optimizer.lr), ("lr_orth", optimizer.lr_orth))
        if rate is not None
    }
    config: TrialConfig = like.config.model_copy(
        update={"optimizer": optimizer.model_copy(update=rates)}
    )
    made = _Alone(config, like.seed + number, device=like.device, task=like.task)
    made.steps, made.schedule = STEPS, RateSchedule(OptimizerConfig())  # it does not warm up
    return made


def _pass_over(error: Exception) -> None:
    """Leave an error of a step alone to the trainings that meet it, but for lack of memory."""
    if is_out_of_memory(error):
        raise error
    logger.info("lanes are not compared with a training alone, which fails: %s", error)


def _differs(like: Training, why: str) -> ValueError:
    model, task = like.config.model.name, like.config.task.name
    return ValueError(f"{model} on {task} trains alone: {why}")


@torch.no_grad()
def _find_changed_by_scoring(training: Training) -> str | None:
    """Return a buffer that a model changes in evaluation mode, too; None: there is none."""
    model = copy.deepcopy(training.model).eval()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    batch = training.task.train_batch(0, training.seed).to(training.device)
    model(batch.x, carry_into(model, batch.starts, None))
    after = dict(model.named_buffers())
    same = (name for name, old in before.items() if name in after and _is_same(after[name], old))
    return next(iter(before.keys() - set(same)), None)


@torch.no_grad()
def _find_other_score(program: Program, trainings: list[_Alone]) -> str | None:
    """Return what is another one in lanes where a batch is scored, None if nothing is."""
    task, device = trainings[0].task, trainings[0].device
    piece = EvaluatedBatch.of(task.train_batch(0, trainings[0].seed))
    piece = replace(piece, batch=piece.batch.to(device))
    loss = task.config.metrics[0].name
    try:
        with contain():
            alone = [add_scores(each.model, task, [piece]).sums[loss] for each in trainings]
            sums = program.score_batch(piece)[loss]
    except Exception as error:  # such as of a score that reads values: its lanes take turns
        _pass_over(error)
        return None
    for lane, one in enumerate(map(float, alone)):
        other = float(sums[lane])
        if isfinite(one) and not isclose(one, other, rel_tol=NUMBERS_DIFFER, abs_tol=1e-6):
            return f"a batch has another '{loss}' in lanes, {other:g} in place of {one:g}"
    return None


def _find_difference(
    alone: _Alone, begun: Weights, numbers: Numbers, weights: Weights
) -> str | None:
    """Return what is another one in lanes after a step, None if nothing is."""
    for name, one, other in zip(
        ("objective", "loss", "gradient norm"), alone.numbers, numbers, strict=True
    ):
        if not isclose(one, other, rel_tol=NUMBERS_DIFFER, abs_tol=1e-6):
            return f"a step in lanes has another {name}, {other:g} in place of {one:g}"
    fixed = {n for n, p in alone.model.named_parameters() if not p.requires_grad}
    named = alone.model.named_parameters()
    sizes = {n: p.grad.abs() for n, p in named if p.grad is not None and p.numel()}
    largest = max((float(size.max()) for size in sizes.values()), default=0.0)

    def counts(name: str) -> Tensor | None:
        size = sizes.get(name)
        if size is None:
            return None
        return (size > SMALL * size.max()) & (size.max() > VERY_SMALL * largest)

    for name, expected in alone.weights().items():
        if name in fixed and not _is_same(expected, begun[name]):
            return f"'{name}' is not trained, and changes"
        if not _is_rounded(weights[name].to(expected), expected, begun[name], counts(name)):
            return f"a step in lanes gives another '{name}'"
    return None


def _is_rounded(found: Tensor, expected: Tensor, begun: Tensor, counts: Tensor | None) -> bool:
    """Tell whether the differences, of the numbers that count, are those of rounding."""
    if _is_same(found, expected) or not (expected.is_floating_point() or expected.is_complex()):
        return _is_same(found, expected)
    move, size = (expected - begun).abs().max(), expected.abs().max()
    off = (found - expected).abs()
    off = off if counts is None else off.where(counts, 0)
    return bool(off.max() <= MOVES_DIFFER * move + 1e-5 * size)


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors are equal, also where both are no number."""
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())

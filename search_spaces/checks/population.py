"""What population-based training (PBT) asks of a spec.

All trials of the experiment are one population. It trains in rounds, each from one rung to the
next, and a value may change only between two rounds. So a search by `pbt` varies nothing that has
to do with shapes or with what an optimizer remembers.

Source: Jaderberg et al., Population Based Training of Neural Networks, arXiv:1711.09846.
"""

from __future__ import annotations

from collections.abc import Iterator

from eigensweep.models.base import ModelConfig
from eigensweep.search_spaces.checks.fitting import place_of
from eigensweep.search_spaces.errors import InvalidPointError, SpecError
from eigensweep.search_spaces.labels import say_count
from eigensweep.search_spaces.parameters import Choice, Parameter, Scalar
from eigensweep.search_spaces.sections import LEARNING
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.search_spaces.trial import TrialConfig

CHANGEABLE = (
    "lr",
    "lr_orth",
    "alpha",
    "momentum",
    "weight_decay",
    "clip_norm",
    "clip_value",
    "schedule_factor",
)
"""Fields of the optimizer that a step reads anew, whatever the optimizer remembers."""

FEWEST = 2
"""Trials of a population: one to be copied, and one to be replaced."""


def list_changeable(model: ModelConfig) -> list[str]:
    """Return the paths whose values may change in the middle of a training of this model."""
    return [
        *(f"optimizer.{field}" for field in CHANGEABLE),
        *(f"model.{field}" for field in sorted(model.scalars)),
    ]


def list_round_ends(spec: ExperimentSpec) -> list[int]:
    """Return the steps at which trials may be replaced: rungs from `min_steps` on, not the last."""
    config = _first_config(spec)
    if config is None:
        return []
    first = spec.scheduler.min_steps or 1
    return [step for step in spec.rung_steps(config)[:-1] if step >= first]


def count_replaced(spec: ExperimentSpec, members: int) -> int:
    """Return how many of so many trials are replaced at a rung, and how many are copied."""
    return max(1, int(spec.scheduler.quantile * members + 1e-9))


def find_population_errors(spec: ExperimentSpec) -> Iterator[SpecError]:
    """Yield what population-based training cannot do with this spec."""
    yield from _find_sections(spec)
    if len(spec.arms_) > 1:
        yield SpecError(
            "arms",
            "pbt copies weights from trial to trial, and those of one arm do not fit another; "
            "post an experiment for each arm",
            expected="one arm",
            got=len(spec.arms_),
        )
        return
    errors = [
        error
        for path, axis in spec.arms_[0].space.items()
        for error in _find_axis_errors(spec, path, axis)
    ]
    yield from errors
    count = spec.trial_count()
    if not errors and count is not None and count < FEWEST:
        yield SpecError(
            "search.space",
            "pbt replaces trials by copies of better ones, and this experiment has "
            f"{say_count(count, 'trial')}; give 'search.space' more points, or search by 'random' "
            "with more 'search.trials'",
            expected=f"at least {FEWEST} trials",
            got=count,
        )
    if not errors and _first_config(spec) is not None and not list_round_ends(spec):
        yield SpecError(
            "scheduler.min_steps" if spec.scheduler.min_steps else "scheduler.rung_every",
            "no rung lies before the end of the training, so pbt would replace no trial; take more "
            "steps, or a smaller 'scheduler.rung_every', 'training.evaluate_every' or "
            "'scheduler.min_steps'",
            expected="a rung before the last step",
        )


def explain_population(spec: ExperimentSpec) -> str:
    """Return what will happen, in words for the preview."""
    ends, members = list_round_ends(spec), spec.trial_count()
    if not ends or members is None:
        return "pbt trains all trials in rounds and replaces the worst by copies of the best"
    replaced = count_replaced(spec, members)
    times = f"{len(ends)} times, first" if len(ends) > 1 else "once,"
    worst, best = "worst trial goes", "the best"
    if replaced > 1:
        worst, best = f"{replaced} worst go", f"one of the {replaced} best"
    return (
        f"pbt trains all {members:,} trials side by side or in turn, and waits for the last at "
        f"each rung: {times} at {ends[0]:,} steps. Then the {worst} on from a copy of {best}, with "
        f"changed {', '.join(spec.arms_[0].space)}"
    )


def _find_sections(spec: ExperimentSpec) -> Iterator[SpecError]:
    if spec.search.method in LEARNING:
        yield SpecError(
            "search.method",
            f"{spec.search.method} learns which configurations are good, and under pbt a trial "
            "changes its configuration while it trains; choose the first ones by 'random', 'qmc' "
            "or 'grid'",
            expected="random, qmc or grid",
            got=spec.search.method,
        )
    if spec.resources.lanes is not None:
        yield SpecError(
            "resources.lanes",
            "trials in lanes train on while their scheduler decides, and pbt copies each trial as "
            "it is at a rung; leave 'lanes' out",
            expected="no lanes",
            got=spec.resources.lanes,
        )
    if spec.training.patience is not None:
        yield SpecError(
            "training.patience",
            "a trial that stops early would leave its population; leave 'patience' out, pbt itself "
            "replaces trials that fall behind",
            expected="no patience",
            got=spec.training.patience,
        )


def _find_axis_errors(spec: ExperimentSpec, path: str, axis: Parameter) -> Iterator[SpecError]:
    place, allowed = place_of(spec, 0, path), list_changeable(spec.arms_[0].model)
    if path not in allowed:
        yield SpecError(
            place,
            f"'{path}' cannot change in the middle of a training, as pbt would have it: weights or "
            f"what the optimizer remembers would not fit, or the task would be another. "
            f"{spec.arms_[0].label} can change {', '.join(allowed)}",
            expected="a parameter that may change in the middle of a training",
            got=path,
            available=allowed,
        )
    elif axis.when:
        yield SpecError(
            place,
            f"'{path}' exists under a condition; pbt changes it in every trial: leave 'when' out",
            expected="no 'when'",
            got=list(axis.when),
        )
    elif (wrong := [value for value in _values(axis) if not _is_positive(value)]) != []:
        yield SpecError(
            place,
            f"pbt multiplies '{path}', which takes nowhere from {wrong[0]!r}; take numbers above 0",
            expected="numbers above 0",
            got=wrong[0],
        )


def _values(axis: Parameter) -> tuple[Scalar, ...]:
    return axis.values if isinstance(axis, Choice) else axis.ends()


def _is_positive(value: Scalar) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _first_config(spec: ExperimentSpec) -> TrialConfig | None:
    """Return a configuration of the population; budget and rungs are those of all others."""
    space = spec.space()
    for point in spec.corners(space, space.arms[0]):
        try:
            return spec.trial(point)
        except InvalidPointError:
            continue
    return None

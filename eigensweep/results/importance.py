"""How much each parameter of a search matters for the objective, within one arm.

Random trees learn the value from the parameters, and a share says how much of what they learned
came from one of them. That ranks rightly from a dozen trials on, also with conditions and where
trials were pruned (`python -m bench.importance`). Optuna's default, PED-ANOVA, asks what sets the
best tenth apart; a few hundred trials are too few for that. The shares add up to 1 over parameters
that are judged together, so a parameter that only some trials have is judged among those alone.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from eigensweep.results.trees import find_shares
from eigensweep.search_spaces.labels import say_count
from eigensweep.search_spaces.space import Parameter, Scalar

EVALUATOR = "mean_decrease_impurity"
"""What is measured, as Optuna calls it."""

LEAST_TRIALS = 4
MOST_TRIALS = 2000
"""The most trials that are used; of more, so many that are drawn at random."""


@dataclass(frozen=True)
class Scored:
    """A finished trial: its point and its value."""

    params: Mapping[str, Scalar]
    value: float


@dataclass(frozen=True)
class Importance:
    """What one parameter contributes to the objective within its arm."""

    __pydantic_config__: ClassVar = {"use_attribute_docstrings": True}
    path: str
    share: float | None
    """0 to 1; the shares of parameters that were judged together add up to 1"""
    trials: int
    """Finished trials that have the parameter and were used"""
    among: tuple[str, ...]
    """The parameters that were judged together"""
    problem: str | None
    """Why there is no share; null where there is one"""


def measure_importance(
    axes: Mapping[str, Parameter],
    trials: Sequence[Scored],
) -> list[Importance]:
    """Return the importance of each of an arm's parameters, the largest share first."""
    if len(trials) > MOST_TRIALS:  # not every other one, which would leave out values of a grid
        trials = random.Random(0).sample(trials, MOST_TRIALS)
    everywhere = [path for path in axes if all(path in trial.params for trial in trials)]
    found = _judge(everywhere, trials)
    for path in axes:
        if path not in everywhere:
            having = [trial for trial in trials if path in trial.params]
            together = [other for other in axes if all(other in t.params for t in having)]
            judged = _judge(together, having)
            found += [each for each in judged if each.path == path]
    return sorted(found, key=lambda each: -1.0 if each.share is None else each.share, reverse=True)


def _judge(paths: Sequence[str], trials: Sequence[Scored]) -> list[Importance]:
    """Return the shares of parameters that all of these trials have."""
    count = len(trials)
    varying = tuple(path for path in paths if len({trial.params[path] for trial in trials}) > 1)
    problem = None
    if count < LEAST_TRIALS:
        have = "has" if count == 1 else "have"
        problem = f"{say_count(count, 'finished trial')} {have} it; {LEAST_TRIALS} are needed"
    elif len({trial.value for trial in trials}) == 1:
        problem = f"all {count} trials have the same value"
    shares: Mapping[str, float] = {}
    if problem is None and varying:
        points = [{path: trial.params[path] for path in varying} for trial in trials]
        shares = find_shares(points, [trial.value for trial in trials])
    return [
        Importance(
            path=path,
            share=shares.get(path),
            trials=count,
            among=varying,
            problem=problem or (None if path in varying else "it has one value in all trials"),
        )
        for path in paths
    ]

"""How much each parameter of a search matters for the objective, within one arm.

Optuna's mean decrease impurity does the arithmetic: a random forest learns the value from the
parameters, and a share says how much of what it learned came from one of them. It is right on grids
of a dozen trials. PED-ANOVA asks what sets the best tenth apart, which a few hundred trials do not
tell, and fANOVA takes minutes for 2,000 trials. The shares add up to 1 over parameters that are
judged together, so a parameter that only some trials have is judged among those trials alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import optuna

from eigensweep.search_spaces.labels import say_count
from eigensweep.search_spaces.space import Parameter, Scalar
from eigensweep.workers.driver.study import make_distribution

EVALUATOR = "mean_decrease_impurity"
"""Optuna's name of what is measured."""

LEAST_TRIALS = 4
MOST_TRIALS = 2000
"""Of more trials so many are used, evenly spread over their order."""


@dataclass(frozen=True)
class Scored:
    """A finished trial: its point and its value."""

    params: Mapping[str, Scalar]
    value: float


@dataclass(frozen=True)
class Importance:
    """What a parameter contributes."""

    path: str
    share: float | None
    """0 to 1; None where that cannot be told."""
    trials: int
    """Trials that have the parameter and were used."""
    among: tuple[str, ...]
    """The parameters that were judged together, this one included."""
    problem: str | None = None
    """Why there is no share."""


def measure_importance(
    axes: Mapping[str, Parameter],
    trials: Sequence[Scored],
) -> list[Importance]:
    """Return the importance of each of an arm's parameters, the largest share first."""
    trials = trials[:: -(-len(trials) // MOST_TRIALS)] if trials else trials
    everywhere = [path for path in axes if all(path in trial.params for trial in trials)]
    found = _judge(everywhere, axes, trials)
    for path in axes:
        if path not in everywhere:
            having = [trial for trial in trials if path in trial.params]
            together = [other for other in axes if all(other in t.params for t in having)]
            judged = _judge(together, axes, having)
            found += [each for each in judged if each.path == path]
    return sorted(found, key=lambda each: -1.0 if each.share is None else each.share, reverse=True)


def _judge(
    paths: Sequence[str],
    axes: Mapping[str, Parameter],
    trials: Sequence[Scored],
) -> list[Importance]:
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
        shares = _evaluate(varying, axes, trials)
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


def _evaluate(
    paths: Sequence[str],
    axes: Mapping[str, Parameter],
    trials: Sequence[Scored],
) -> dict[str, float]:
    # Not above: they bring scikit-learn, and each start of the service would wait for it.
    from optuna.importance import MeanDecreaseImpurityImportanceEvaluator, get_param_importances

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study()
    distributions = {path: make_distribution(axes[path]) for path in paths}
    study.add_trials(
        optuna.trial.create_trial(
            params={path: trial.params[path] for path in paths},
            distributions=distributions,
            value=trial.value,
        )
        for trial in trials
    )
    # Without `params`: Optuna 5.0 gives the shares of a list that is not sorted to wrong names.
    shares = get_param_importances(study, evaluator=MeanDecreaseImpurityImportanceEvaluator(seed=0))
    return {path: float(share) for path, share in shares.items()}

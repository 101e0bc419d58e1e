"""Which measure of importance ranks parameters rightly: simulated searches with a known truth.

`python -m bench.importance [--seeds N]` prints, for each number of trials and each way to search,
how often the parameter that matters most is put first, and the share of pairs that are in the right
order. The truth is each parameter's total effect on the value over the whole space, with a
parameter that has a condition counting where it is there: the mean squared change of the value when
that parameter alone is drawn anew.

One parameter has a condition. Optuna's forest leaves it out, which is wrong where it matters and
right where it does not; two columns are "without it", over the parameters that all trials have.
"""

from __future__ import annotations

import argparse
import math
import random
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from statistics import mean
from typing import NamedTuple

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.importance import (
    BaseImportanceEvaluator,
    MeanDecreaseImpurityImportanceEvaluator,
    PedAnovaImportanceEvaluator,
    get_param_importances,
)

from bench.report import say, table
from eigensweep.results.importance import Scored, measure_importance
from eigensweep.search_spaces.parameters import Choice, Parameter, Real

Point = dict[str, float | str]
Axes = dict[str, tuple[Parameter, BaseDistribution]]
Value = Callable[[Point], float]
TRIALS = (12, 50, 200)
HEADINGS = {
    "search": "search",
    "trials": "trials",
    "measure": "measure",
    "first": "first is right",
    "pairs": "pairs in order",
    "first_without": "first is right, without it",
    "pairs_without": "pairs in order, without it",
    "ms": "ms of processor",
}
DRAWS = 4000
"""Points from which the truth is computed."""
CLEAR = 1.3
"""So many times larger is the true effect of one of two parameters whose order counts."""


def real(low: float, high: float, *, log: bool = False) -> tuple[Parameter, BaseDistribution]:
    """Return a parameter of numbers, as ours and as Optuna's."""
    return Real(low=low, high=high, log=log), FloatDistribution(low, high, log=log)


def choice(*values: float | str) -> tuple[Parameter, BaseDistribution]:
    """Return a parameter of choices, as ours and as Optuna's."""
    return Choice(values=values), CategoricalDistribution(values)


AXES: Axes = {
    "lr": real(1e-5, 1e-1, log=True),
    "size": choice(16.0, 32.0, 64.0, 128.0),
    "optimizer": choice("adam", "rmsprop", "adagrad"),
    "decay": real(0.0, 0.5),
    "alpha": real(0.5, 0.99),
}


CONDITIONAL = "alpha"
"""The parameter that only one optimizer has."""


def place(point: Point) -> float:
    """Return where the learning rate is between its ends: 0 to 1."""
    return (math.log10(float(point["lr"])) + 5) / 4


def larger(point: Point) -> float:
    """Return where the size is between its ends: 0 to 1."""
    return math.log2(float(point["size"]) / 16) / 3


def slope(point: Point) -> float:
    """Return a value that rises with each parameter, with one less than with another."""
    return 3 * place(point) + 1.5 * larger(point) + 0.7 * float(point["decay"]) * 2


def bowl(point: Point) -> float:
    """Return a value that is least at one rate, and differs between optimizers."""
    off = {"adam": 0.0, "rmsprop": 0.15, "adagrad": 0.4}[str(point["optimizer"])]
    return 4 * (place(point) - 0.6) ** 2 + off + 0.3 * (1 - larger(point))


def plateau(point: Point) -> float:
    """Return a loss at its baseline but where the rate is right: what copying over a delay does."""
    learns = math.exp(-(((place(point) - 0.7) / 0.12) ** 2))
    return 1 - learns * (0.5 + 0.5 * larger(point)) + 0.05 * float(point["decay"])


def both(point: Point) -> float:
    """Return a value to which rate and size belong together."""
    return 4 * (place(point) - 0.2 - 0.6 * larger(point)) ** 2 + 0.4 * float(point["decay"])


def category(point: Point) -> float:
    """Return a value that the optimizer decides."""
    off = {"adam": 0.0, "rmsprop": 1.0, "adagrad": 0.8}[str(point["optimizer"])]
    return off + 0.8 * (place(point) - 0.5) ** 2 + 0.1 * larger(point)


def condition(point: Point) -> float:
    """Return a value on which `alpha` acts strongly, where the optimizer has one."""
    if point["optimizer"] == "rmsprop":
        return 2 * abs(float(point["alpha"]) - 0.9) / 0.4 + 0.3 * place(point)
    return 0.7 + 0.3 * place(point) + 0.1 * larger(point)


def weak_condition(point: Point) -> float:
    """Return a value on which `alpha` acts a little, where the optimizer has one."""
    beside = 0.2 * (0.9 - float(point.get("alpha", 0.9)))
    return 3 * (place(point) - 0.6) ** 2 + 0.5 * larger(point) + beside


VALUES: tuple[Value, ...] = (slope, bowl, plateau, both, category, condition, weak_condition)


def draw(rng: random.Random, name: str) -> float | str:
    """Return a value of a parameter at random."""
    axis = AXES[name][0]
    if isinstance(axis, Choice):
        return rng.choice(axis.values)  # type: ignore[return-value]
    found = axis.at(rng.random())
    assert isinstance(found, float)
    return found


def is_there(name: str, point: Point) -> bool:
    """Return whether a point has a parameter."""
    return name != CONDITIONAL or point["optimizer"] == "rmsprop"


def find_truth(value: Value) -> dict[str, float]:
    """Return the total effect of each parameter, as a variance."""
    rng = random.Random(0)
    points = [{name: draw(rng, name) for name in AXES} for _ in range(DRAWS)]

    def look(point: Point) -> float:
        return value({name: each for name, each in point.items() if is_there(name, point)})

    return {
        name: mean((look(p) - look({**p, name: draw(rng, name)})) ** 2 for p in points) / 2
        for name in AXES
    }


def search(value: Value, trials: int, how: str, seed: int) -> list[Scored]:
    """Return the finished trials of a search, with a noise of 5% of the value's spread."""
    sampler: optuna.samplers.BaseSampler = optuna.samplers.RandomSampler(seed=seed)
    if how == "tpe":
        sampler = optuna.samplers.TPESampler(seed=seed)
    study, rng = optuna.create_study(sampler=sampler), random.Random(seed)
    found: list[Scored] = []
    seen: list[float] = []
    for _ in range(trials):
        trial, point = study.ask(), Point()
        for name, (_, among) in AXES.items():
            if isinstance(among, CategoricalDistribution) and is_there(name, point):
                chosen = trial.suggest_categorical(name, among.choices)
                assert isinstance(chosen, float | str)
                point[name] = chosen
            elif isinstance(among, FloatDistribution) and is_there(name, point):
                point[name] = trial.suggest_float(name, among.low, among.high, log=among.log)
        early, late = (value(point) + rng.gauss(0, spread) for spread in (0.2, 0.03))
        seen.append(early)
        study.tell(trial, late)
        if how != "pruned" or early <= sorted(seen)[len(seen) // 2]:
            found.append(Scored(point, late))
    return found


def by_optuna(evaluator: BaseImportanceEvaluator) -> Callable[[list[Scored]], dict[str, float]]:
    """Return a measure that has one study judge all parameters together."""

    def measure(trials: list[Scored]) -> dict[str, float]:
        study = optuna.create_study()
        for trial in trials:
            among = {name: AXES[name][1] for name in trial.params}
            made = optuna.trial.create_trial(
                params=dict(trial.params), distributions=among, value=trial.value
            )
            study.add_trial(made)
        return get_param_importances(study, evaluator=evaluator)

    return measure


def ours(trials: list[Scored]) -> dict[str, float]:
    """Return the shares that the API answers."""
    found = measure_importance({name: axis for name, (axis, _) in AXES.items()}, trials)
    return {each.path: each.share or 0.0 for each in found}


MEASURES: dict[str, Callable[[list[Scored]], dict[str, float]]] = {
    "ours": ours,
    "ped-anova 0.1": by_optuna(PedAnovaImportanceEvaluator()),
    "ped-anova 0.25": by_optuna(PedAnovaImportanceEvaluator(target_quantile=0.25)),
    "ped-anova 0.5": by_optuna(PedAnovaImportanceEvaluator(target_quantile=0.5)),
}
with suppress(ImportError):  # it needs scikit-learn, which Eigensweep does not
    MEASURES["optuna's forest"] = by_optuna(MeanDecreaseImpurityImportanceEvaluator(seed=0))


class Judged(NamedTuple):
    """How a measure judged one search."""

    is_right: bool
    """Whether it put the right parameter first."""
    pairs: float
    """The share of clear pairs in the right order."""
    is_right_without: bool
    """The same over the parameters that all trials have."""
    pairs_without: float
    seconds: float


def judge(found: dict[str, float], truth: dict[str, float]) -> tuple[bool, float]:
    """Return whether the first is right, and the share of clear pairs that are in order."""
    names = sorted(truth, key=truth.__getitem__, reverse=True)
    first = max(names, key=lambda name: found.get(name, 0.0))
    pairs = [
        float(found.get(one, 0.0) > found.get(other, 0.0))
        for one in names
        for other in names
        if truth[one] > CLEAR * truth[other]
    ]
    return first == names[0], mean(pairs)


def run(seeds: int) -> Iterator[tuple[str, int, str, Judged]]:
    """Yield search, trials, measure, and how it judged a function."""
    for value in VALUES:
        truth = find_truth(value)
        everywhere = {name: effect for name, effect in truth.items() if name != CONDITIONAL}
        for how in ("random", "pruned", "tpe"):
            for count in TRIALS:
                for seed in range(seeds):
                    trials = search(value, count, how, seed)
                    for measure, find in MEASURES.items():
                        began = time.process_time()
                        shares = find(trials)
                        seconds = time.process_time() - began
                        judged = *judge(shares, truth), *judge(shares, everywhere)
                        yield how, count, measure, Judged(*judged, seconds)


def main() -> None:
    """Print the means over values and seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    chosen = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore")
    cells: dict[tuple[str, int, str], list[Judged]] = defaultdict(list)
    for how, count, measure, judged in run(chosen.seeds):
        cells[how, count, measure].append(judged)
    rows = []
    for (how, count, measure), found in cells.items():
        rows.append(
            {
                "search": how,
                "trials": count,
                "measure": measure,
                "first": mean(each.is_right for each in found),
                "pairs": mean(each.pairs for each in found),
                "first_without": mean(each.is_right_without for each in found),
                "pairs_without": mean(each.pairs_without for each in found),
                "ms": 1e3 * mean(each.seconds for each in found),
            }
        )
    say(table(rows, HEADINGS))


if __name__ == "__main__":
    main()

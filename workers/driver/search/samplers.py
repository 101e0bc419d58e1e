"""Optuna's samplers as experiments use them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import (
    BaseSampler,
    CmaEsSampler,
    GPSampler,
    TPESampler,
)
from optuna.samplers.nsgaii import PolynomialMutation, SBXCrossover
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from eigensweep.search_spaces.sections import SearchMethod

GENERATION = "NSGAIISampler:generation"
"""Where NSGA-II keeps the number of a trial's generation."""

FEWEST_EARLIER = 4
"""The least number of earlier results from which CMA-ES takes its first distribution."""
ONE_IN = 10
"""The distribution is that of the best tenth of them (`cmaes.get_warm_start_mgd`)."""


class _CmaEs(CmaEsSampler):
    """CMA-ES over the numbers that every trial has, from the first draw to the last.

    Optuna's takes the parameters that all trials so far had. Until a trial lacks a conditional one
    these are too many, and as soon as they become fewer Optuna's CMA-ES draws nothing more.
    """

    def __init__(self, axes: dict[str, BaseDistribution], **options: Any) -> None:
        super().__init__(**options)
        self._axes = axes

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return self._axes


class NSGAIISampler(optuna.samplers.NSGAIISampler):
    """NSGA-II that breeds from no generation while trials of it that it needs are open.

    Optuna's chooses the parents once and for good, and fails where there is one alone. Trials that
    it did not draw may be open in several generations. It names its marks after this class.
    """

    def get_parent_population(self, study: Study, generation: int) -> list[FrozenTrial]:
        """Return the parents of a generation; none where they are not known yet."""
        trials = study.get_trials(deepcopy=False)
        before = [t.state for t in trials if t.system_attrs.get(GENERATION) == generation - 1]
        assert self.population_size is not None
        is_short = before.count(TrialState.COMPLETE) < self.population_size
        if is_short and TrialState.RUNNING in before:
            return []
        found = super().get_parent_population(study, generation)
        return found if len(found) > 1 else []


def make_sampler(
    method: SearchMethod,
    *,
    seed: int,
    population: int | None,
    told: Sequence[FrozenTrial],
    axes: dict[str, BaseDistribution],
) -> BaseSampler:
    """Return the sampler of a method that learns.

    `told` is what the study knows so far, and `axes` are the numbers that every trial has. A
    parameter that GP and CMA-ES cannot draw together with the rest is drawn by TPE, by itself.
    """
    if method == "tpe":
        return TPESampler(seed=seed)
    if method == "gp":
        beside = TPESampler(seed=seed)
        return GPSampler(seed=seed, independent_sampler=beside, warn_independent_sampling=False)
    if method == "cmaes":
        with quiet():
            return _CmaEs(
                axes,
                seed=seed,
                popsize=population,
                independent_sampler=TPESampler(seed=seed),
                warn_independent_sampling=False,
                source_trials=_find_earlier(told, axes),
            )
    assert method == "nsga2"
    assert population is not None
    with quiet():  # the operators of its paper, for numbers
        return NSGAIISampler(
            seed=seed,
            population_size=population,
            crossover=SBXCrossover(),
            mutation=PolynomialMutation(),
        )


def mark_generation(method: SearchMethod, population: int | None, place: int) -> dict[str, int]:
    """Return the mark of a study's trial number `place` that the sampler did not draw itself.

    NSGA-II breeds from trials that carry the number of their generation.
    """
    if method != "nsga2":
        return {}
    assert population is not None
    return {GENERATION: place // population}


def choose_parents(study: Study) -> None:
    """Have NSGA-II choose the parents of all generations so far, as it did before."""
    if isinstance(study.sampler, NSGAIISampler):
        trials = study.get_trials(deepcopy=False)
        last = max((trial.system_attrs.get(GENERATION, 0) for trial in trials), default=0)
        for generation in range(1, last + 1):
            study.sampler.get_parent_population(study, generation)


@contextmanager
def quiet() -> Iterator[None]:
    """Hide warnings of Optuna about behaviour that this package has tests for.

    A Gaussian process takes the worst finite value for a trial that diverged. Two arguments are
    experimental.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Clip non-finite values")
        warnings.simplefilter("ignore", ExperimentalWarning)
        yield


def _find_earlier(
    told: Sequence[FrozenTrial], axes: dict[str, BaseDistribution]
) -> list[FrozenTrial] | None:
    """Return completed trials that CMA-ES did not draw, unless its own state is there.

    CMA-ES keeps its distribution in the trials that it draws. If that is lost, or there are trials
    of earlier experiments, the best of these trials make the first distribution.
    """
    if any(name.startswith("cma:optimizer") for trial in told for name in trial.system_attrs):
        return None
    found = [
        create_trial(
            params={name: trial.params[name] for name in axes},
            distributions=axes,
            value=trial.value,
        )
        for trial in told
        if trial.state == TrialState.COMPLETE and "cma:generation" not in trial.system_attrs
    ]
    if len(found) < FEWEST_EARLIER:
        return None
    return found * math.ceil(ONE_IN / len(found))  # of fewer than ten, CMA-ES would take none

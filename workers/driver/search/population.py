"""Population-based training: which trials are replaced after a round, by which, with what values.

All trials train to a rung, and wait there for the last one. Then the worst trials take the weights
of the best ones and change their values. The decision follows from the reports, the search's seed
and the step alone, so a restarted driver decides the same.

Source: Jaderberg et al., Population Based Training of Neural Networks, arXiv:1711.09846, section
4.1.1: truncation selection, and both ways to explore, perturbing and resampling.
Departure: a trial that diverged is always replaced, and noise replaces nobody: as long as no trial
is clearly better than the baseline, the others train on as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from eigensweep.common.direction import Better, sign
from eigensweep.protocol.ledger import TrialEntry
from eigensweep.protocol.messages import Params, Takeover
from eigensweep.search_spaces.checks.population import count_replaced, list_round_ends
from eigensweep.search_spaces.errors import InvalidPointError
from eigensweep.search_spaces.parameters import Choice, Parameter, Scalar
from eigensweep.search_spaces.space import Point
from eigensweep.search_spaces.spec import ExperimentSpec


def choose_sources(
    values: Mapping[int, float | None],
    most: int,
    *,
    better: Better,
    good_enough: float | None,
    rng: Random,
) -> dict[int, int]:
    """Return each trial that is replaced, and the trial that it is replaced by.

    `values` has each trial's latest value of the objective's metric, None if it diverged.
    The `most` worst are replaced, once a trial is better than `good_enough`, and all that diverged.
    Each takes one of the `most` best, every one with the same probability.

    >>> values = {0: 0.3, 1: 0.1, 2: 0.4, 3: 0.2}
    >>> choose_sources(values, 1, better="lower", good_enough=None, rng=Random(0))
    {2: 1}
    """
    costs = {n: sign(better) * value for n, value in values.items() if value is not None}
    ranked = sorted(costs, key=lambda number: (costs[number], number))
    replaced = [number for number, value in values.items() if value is None]
    if good_enough is None or (costs and costs[ranked[0]] < sign(better) * good_enough):
        more = min(max(0, most - len(replaced)), len(ranked) // 2)
        replaced += ranked[len(ranked) - more :]
    sources = [number for number in ranked[:most] if number not in replaced]
    return {number: rng.choice(sources) for number in sorted(replaced)} if sources else {}


def change(
    params: Params, axes: Mapping[str, Parameter], *, perturb: float, resample: float, rng: Random
) -> Params:
    """Return the new values of a replaced trial: each perturbed, or drawn anew.

    >>> from eigensweep.search_spaces.parameters import Real
    >>> axes = {"optimizer.lr": Real(low=0.001, high=0.1, log=True)}
    >>> change({"optimizer.lr": 0.01}, axes, perturb=0.2, resample=0.0, rng=Random(0))
    {'optimizer.lr': 0.008}
    """
    changed: Params = {}
    for path, axis in axes.items():
        if rng.random() < resample:
            changed[path] = axis.at(rng.random())
        else:
            changed[path] = _move(params[path], axis, 1 if rng.random() < 0.5 else -1, perturb)
    return changed


class PopulationRound:
    """The current round of the population, from the end of the last one on."""

    def __init__(self, spec: ExperimentSpec, step: int) -> None:
        self._spec, self._ends = spec, list_round_ends(spec)
        self.step = step
        """Where the last round ended; 0 in the first."""
        (self._arm,) = spec.space().arms
        self._axes = spec.space().axes(self._arm)

    @property
    def end(self) -> int | None:
        """The step at which trials wait for each other; None where they train to the budget."""
        return next((end for end in self._ends if end > self.step), None)

    def decide(self, arrived: Sequence[TrialEntry]) -> dict[int, Takeover]:
        """Return what becomes of the trials that are replaced at the end of this round."""
        assert self.end is not None
        metric, settings = self._spec.objective_metric, self._spec.scheduler
        rng = Random(f"{self._spec.search.seed}/{self.end}")
        name = f"valid/{metric.name}"
        params = {each.number: each.current_params for each in arrived}
        sources = choose_sources(
            {each.number: each.reports.get(self.end, {}).get(name) for each in arrived},
            count_replaced(self._spec, len(arrived)),
            better=metric.better,
            good_enough=settings.good_enough(self._spec.baseline, metric.better),
            rng=rng,
        )
        return {
            number: Takeover(
                self.end, source, self._explore(params[source], rng), self._hash(params[source])
            )
            for number, source in sources.items()
        }

    def _explore(self, params: Params, rng: Random) -> Params:
        """Return changed values, or the same ones if the changed ones are not valid."""
        settings = self._spec.scheduler
        how = {"perturb": settings.perturb, "resample": settings.resample}
        changed = change(params, self._axes, **how, rng=rng)
        try:
            self._hash(changed)
        except InvalidPointError:
            return params
        return changed

    def _hash(self, params: Params) -> str:
        return self._spec.trial(Point(self._arm, params)).settings_hash()


def _move(value: Scalar, axis: Parameter, way: int, perturb: float) -> Scalar:
    """Return the value times 1 + `way` * `perturb`, within the axis; of a list, a neighbour."""
    assert isinstance(value, int | float)
    wanted, size = value * (1 + way * perturb), axis.size()
    if isinstance(axis, Choice):
        rising = sorted(number for number in axis.values if isinstance(number, int | float))
        return rising[min(max(rising.index(value) + way, 0), len(rising) - 1)]
    low, high = axis.ends()
    if size is None:
        return min(max(wanted, low), high)
    at, nearest = axis.position(value), round((wanted - low) / (high - low) * (size - 1))
    assert at is not None
    index = max(nearest, at + 1) if way > 0 else min(nearest, at - 1)
    return axis.value(min(max(index, 0), size - 1))

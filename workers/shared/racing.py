"""A race: which configurations are trained with more seeds, and which one leads.

All configurations train the same first seeds. Then come rounds. In each, the configuration with the
best mean is compared with each other one by the paired t-test over the seeds that both have. Those
that are worse leave the race. The others, which cannot be told apart from the leader, train the
next seeds. The race is over when the leader is alone, or when the leaders have the largest number
of seeds.

A race makes many comparisons, and each could be wrong. So p-values are corrected after Holm within
a round, and a round may be wrong in its share of `SIGNIFICANCE` alone: all rounds together let the
truly best configuration leave in at most 5% of races.

Everything here is a function of the results, so a driver that starts anew finds the race where it
was, and the service tells the same story of it. Importing this does not load scipy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING

from eigensweep.direction import Better, sign
from eigensweep.workers.shared.messages import Result
from eigensweep.workers.shared.states import RANKED
from eigensweep.workers.shared.statistics import SIGNIFICANCE, Difference, compare_paired, correct

if TYPE_CHECKING:
    from eigensweep.search_spaces.spec import ExperimentSpec

Values = Mapping[int, float]
"""A configuration's value for each seed."""


@dataclass(frozen=True)
class Round:
    """What one round of a race decided, over the seeds that all of its configurations have."""

    seeds: int
    """Seeds of each configuration in it."""
    leader: int
    """Number of the trial with the best mean."""
    rivals: tuple[int, ...]
    """Trials that cannot be told apart from the leader, the best mean first."""
    worse: tuple[int, ...]
    """Trials that are worse than the leader; they leave the race."""
    left_out: tuple[int, ...] = ()
    """Trials that cannot be told apart either, but come after the largest number of leaders."""

    @property
    def racers(self) -> tuple[int, ...]:
        """The leader and its rivals, who train more seeds if there are more to train."""
        return (self.leader, *self.rivals)


@dataclass(frozen=True)
class Race:
    """A race as far as it has come."""

    rounds: tuple[Round, ...]
    wanted: int | None = None
    """How many seeds the trials in `lacking` need for the next round; None if the race is over."""
    lacking: tuple[int, ...] = ()

    @property
    def is_over(self) -> bool:
        return self.wanted is None

    @property
    def words(self) -> str:
        """Where the race is, as a sentence."""
        if not self.rounds:
            return "no two configurations finished, so there was nothing to decide"
        last = self.rounds[-1]
        if not last.rivals:
            words = f"trial {last.leader} is better than every other one that was compared with it"
        else:
            words = (
                f"trial {last.leader} leads with {last.seeds} seeds and is not distinguishable "
                f"from {_list(last.rivals)}"
            )
        if not self.is_over:
            words += f"; {_list(self.lacking)} train{'s' * (len(self.lacking) == 1)} up to "
            words += f"{self.wanted} seeds"
        left_out = sum(len(each.left_out) for each in self.rounds)
        if left_out:
            words += f"; {left_out} more could not be told apart and got no more seeds"
        return words


def run_race(
    values: Mapping[int, Values],
    rounds: Sequence[int],
    *,
    first_seed: int,
    leaders: int,
    better: Better,
    stuck: Iterable[int] = (),
) -> Race:
    """Return how far a race has come, by the values of each trial that ended well.

    `rounds` is `RacingConfig.list_rounds`: the seeds of each at every decision. No more than
    `leaders` configurations train more seeds. Trials in `stuck` cannot train more: they are
    compared with the seeds that they have, and go no further.
    """
    stuck = frozenset(stuck)
    factor = sign(better)
    racing = [n for n, known in values.items() if _has(known, first_seed, rounds[0])]
    played: list[Round] = []
    for now, following in pairwise([*rounds, None]):
        assert now is not None
        if len(racing) < 2:
            break
        shared = range(first_seed, first_seed + now)
        found = _play(
            {n: {seed: factor * values[n][seed] for seed in shared} for n in racing},
            SIGNIFICANCE / len(rounds),
            leaders,
        )
        played.append(found)
        if following is None or not found.rivals:
            break
        able = [n for n in found.racers if n not in stuck or _has(values[n], first_seed, following)]
        lacking = [n for n in able if not _has(values[n], first_seed, following)]
        if lacking and len(able) > 1:
            return Race(tuple(played), following, tuple(sorted(lacking)))
        racing = able
    return Race(tuple(played))


def find_race(
    spec: ExperimentSpec,
    trials: Iterable[tuple[int, str, Result | None, str | None]],
) -> Race | None:
    """Return how far the race of an experiment has come, None where its spec asks for none.

    Each trial comes as its number, state, result and error. One that diverged is not in the race.
    One that has a value and an error failed when it trained more seeds; it goes no further.
    """
    if spec.racing is None:
        return None
    ranked = [trial for trial in trials if trial[1] in RANKED]
    return run_race(
        {number: read_values(result) for number, _, result, _ in ranked},
        spec.racing.list_rounds(spec.replicates),
        first_seed=spec.seed,
        leaders=spec.racing.leaders,
        better=spec.objective_metric.better,
        stuck=[number for number, _, _, error in ranked if error is not None],
    )


def read_values(result: Result | None) -> Values:
    """Return the value of each seed of a result; empty if one of them is unknown."""
    known = {} if result is None else {each.seed: each.value for each in result.by_replicate}
    values = {seed: value for seed, value in known.items() if value is not None}
    return values if len(values) == len(known) else {}


def _play(costs: Mapping[int, Values], level: float, leaders: int) -> Round:
    """Return what a round decides; the lowest costs are the best, and all have the same seeds."""
    means = {number: fmean(known.values()) for number, known in costs.items()}
    leader, *others = sorted(costs, key=lambda number: (means[number], number))
    differences = correct([compare_paired(costs[leader], costs[number]) for number in others])
    judged = list(zip(others, differences, strict=True))
    equal = [number for number, found in judged if not _is_better(found, level)]
    return Round(
        seeds=len(costs[leader]),
        leader=leader,
        rivals=tuple(equal[: leaders - 1]),
        worse=tuple(number for number, found in judged if _is_better(found, level)),
        left_out=tuple(equal[leaders - 1 :]),
    )


def _is_better(difference: Difference, level: float) -> bool:
    return difference.corrected_p is not None and difference.corrected_p <= level


def _has(values: Values, first_seed: int, count: int) -> bool:
    return all(seed in values for seed in range(first_seed, first_seed + count))


def _list(numbers: Sequence[int]) -> str:
    """Return trials as words.

    >>> _list([3]), _list([3, 5, 7])
    ('trial 3', 'trials 3, 5 and 7')
    """
    if len(numbers) == 1:
        return f"trial {numbers[0]}"
    return f"trials {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"

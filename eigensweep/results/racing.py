"""A race: which configurations are trained with more seeds, and which one leads.

All configurations train the same first seeds. Then come rounds. In each, the one with the best mean
is compared with each other one by the e-value of their differences, seed by seed, over the seeds
that both have. Those that are worse leave the race, and so do those that are shown to differ from
the leader by no more than what is of interest. The others train the next seeds. The race is over
when the leader is alone, when there are no more seeds, or when its core-hours are spent.

The test holds however often one looks (`sequential`), and its error is divided among the
comparisons of a race. So the truly best configuration leaves in at most 5% of races; between arms,
equal ones are called different in at most 5%.

Everything here is a function of the results, so a driver that starts anew finds the race where it
was, and the service tells the same story of it. Importing this does not load scipy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, ClassVar

from eigensweep.common.direction import Better
from eigensweep.results.ranking import RANKED, Ranked, cost
from eigensweep.results.sequential import VerdictSoFar, judge
from eigensweep.results.statistics import SIGNIFICANCE, find_spread
from eigensweep.results.trial_result import Result

if TYPE_CHECKING:
    from eigensweep.search_spaces.spec import ExperimentSpec

Values = Mapping[int, float]
"""A configuration's value for each seed."""


@dataclass(frozen=True)
class Round:
    """What one round decided, over the seeds that all of its trials have."""

    __pydantic_config__: ClassVar = {"use_attribute_docstrings": True}
    seeds: int
    """Seeds of each trial in it"""
    leader: int
    """The trial with the best mean"""
    rivals: tuple[int, ...]
    """Trials that cannot be told apart from the leader, the best mean first"""
    worse: tuple[int, ...]
    """Trials that are worse, and left the race"""
    equivalent: tuple[int, ...]
    """Trials that differ from the leader by no more than `racing.smallest`, and left it, too"""
    left_out: tuple[int, ...]
    """Trials that cannot be told apart, and come after the largest number of leaders"""

    @property
    def racers(self) -> tuple[int, ...]:
        """The leader and its rivals, who train more seeds if there are more to train."""
        return (self.leader, *self.rivals)

    @property
    def others(self) -> tuple[int, ...]:
        """All that were compared with the leader."""
        return (*self.rivals, *self.equivalent, *self.worse, *self.left_out)


@dataclass(frozen=True)
class Race:
    """A race as far as it has come."""

    rounds: tuple[Round, ...]
    wanted: int | None = None
    """How many seeds the trials in `lacking` need for the next round; None if the race is over."""
    lacking: tuple[int, ...] = ()
    is_spent: bool = False
    """Whether it is over because its core-hours are spent."""
    counted: int = 0
    """The first seed, counted from the first one of all, that the comparisons take in."""
    error: float = SIGNIFICANCE
    """Share of cases in which one comparison may be wrong."""
    within: float | None = None
    """The smallest difference of interest."""

    @property
    def is_over(self) -> bool:
        return self.wanted is None

    @property
    def words(self) -> str:
        """Where the race is, as a sentence."""
        if not self.rounds:
            return "no two configurations finished, so there was nothing to decide"
        last = self.rounds[-1]
        equal: dict[int, list[int]] = {}
        for each in self.rounds:
            equal.setdefault(each.leader, []).extend(each.equivalent)
        equal = {leader: numbers for leader, numbers in equal.items() if numbers}
        if last.rivals:
            words = (
                f"trial {last.leader} leads with {last.seeds} seeds and is not distinguishable "
                f"from {_list(last.rivals)}"
            )
        elif equal or self._stuck:
            words = f"trial {last.leader} leads with {last.seeds} seeds"
        else:
            words = f"trial {last.leader} is better than every other one that was compared with it"
        for leader, numbers in equal.items():
            differs = "differs" if len(numbers) == 1 else "differ"
            whom = "the leader" if leader == last.leader else f"trial {leader}, which led then,"
            words += f"; {_list(numbers)} {differs} from {whom} by no more than {self.within:g}"
        if self._stuck:
            words += f"; {_list(self._stuck)} could train no more seeds, and nothing was decided"
        if not self.is_over:
            words += f"; {_list(self.lacking)} train{'s' * (len(self.lacking) == 1)} up to "
            words += f"{self.wanted} seeds"
        if self.is_spent:
            words += "; its core-hours are spent"
        left_out = sum(len(each.left_out) for each in self.rounds)
        if left_out:
            words += f"; {left_out} more could not be told apart and got no more seeds"
        if 0 < self.counted < last.seeds:
            which = "seed" if self.counted == 1 else f"{self.counted} seeds"
            words += f"; the first {which} chose the configurations and do"
            words += f"{'es' * (self.counted == 1)} not count"
        return words

    @property
    def _stuck(self) -> list[int]:
        """Trials that nothing was decided of, and that were not in the next round."""
        pairs = pairwise(self.rounds)
        return [n for one, two in pairs for n in one.racers if n not in (two.leader, *two.others)]


def run_race(
    values: Mapping[int, Values],
    rounds: Sequence[int],
    *,
    first_seed: int,
    leaders: int,
    better: Better,
    error: float = SIGNIFICANCE,
    within: float | None = None,
    counted: int = 0,
    is_spent: bool = False,
    stuck: Iterable[int] = (),
) -> Race:
    """Return how far a race has come, by the values of each trial that ended well.

    `rounds` is `RacingConfig.list_rounds`: the seeds of each at every look. No more than `leaders`
    configurations train more seeds. Each comparison may be wrong in a share `error` of cases, and
    leaves the first seeds up to `counted` out. Sides that differ by no more than `within` are
    equivalent. When all time `is_spent`, a round that has begun is the last. Trials in `stuck`
    cannot train more: they are compared with the seeds that they have, and go no further.
    """
    stuck = frozenset(stuck)
    racing = [n for n, known in values.items() if _has(known, first_seed, rounds[0])]
    race = partial(Race, counted=counted, error=error, within=within)
    played: list[Round] = []
    for now, following in pairwise([*rounds, None]):
        assert now is not None
        if len(racing) < 2:
            break
        judged = {n: values[n] for n in racing}
        found = _play(judged, first_seed, now, counted, better, error, within, leaders)
        played.append(found)
        if following is None or not found.rivals:
            break
        able = [n for n in found.racers if n not in stuck or _has(values[n], first_seed, following)]
        lacking = [n for n in able if not _has(values[n], first_seed, following)]
        if lacking and len(able) > 1:
            if is_spent and len(lacking) == len(able):
                return race(tuple(played), is_spent=True)
            return race(tuple(played), following, tuple(sorted(lacking)))
        racing = able
    return race(tuple(played))


def find_race(spec: ExperimentSpec, trials: Iterable[Ranked]) -> Race | None:
    """Return how far the race of an experiment has come, None where its spec asks for none.

    One that diverged is not in the race. One that has a value and an error failed when it trained
    more seeds; it goes no further.
    """
    racing = spec.racing
    if racing is None:
        return None
    trials = list(trials)
    ranked = [trial for trial in trials if trial.state in RANKED]
    better, counted = spec.objective_metric.better, 0
    values = {trial.number: read_values(trial.result) for trial in ranked}
    if racing.between == "arms":
        first = range(spec.seed, spec.seed + spec.replicates)
        by_arm: dict[str, list[tuple[float, int]]] = {}
        for trial in ranked:
            known = values[trial.number]
            if all(seed in known for seed in first):
                mean = fmean(known[seed] for seed in first)
                by_arm.setdefault(trial.arm, []).append((cost(mean, better), trial.number))
        values = {number: values[number] for _, number in map(min, by_arm.values())}
        counted = spec.replicates if len(ranked) > len(by_arm) else 0
    return run_race(
        values,
        racing.list_rounds(spec.replicates),
        first_seed=spec.seed,
        leaders=len(values) if racing.between == "arms" else racing.leaders,
        better=better,
        error=racing.alpha / racing.count_comparisons(len(values)),
        within=racing.smallest,
        counted=counted,
        is_spent=racing.core_hours is not None
        and count_core_hours(spec, trials) >= racing.core_hours,
        stuck=[trial.number for trial in ranked if trial.error is not None],
    )


def count_core_hours(spec: ExperimentSpec, trials: Iterable[Ranked]) -> float:
    """Return the core-hours of trainings so far, without what was taken over from other trials."""
    results = [each.result for each in trials if each.result is not None]
    seconds = sum(
        each.seconds - sum(seed.reused_seconds or 0.0 for seed in each.by_replicate)
        for each in results
        if each.reused_from is None
    )
    return seconds * spec.resources.cpus / 3600


def read_values(result: Result | None) -> Values:
    """Return the value of each seed of a result; empty if one of them is unknown."""
    known = {} if result is None else {each.seed: each.value for each in result.by_replicate}
    values = {seed: value for seed, value in known.items() if value is not None}
    return values if len(values) == len(known) else {}


def _play(
    values: Mapping[int, Values],
    first_seed: int,
    now: int,
    counted: int,
    better: Better,
    error: float,
    within: float | None,
    leaders: int,
) -> Round:
    """Return what a round decides of trials that all have `now` seeds."""
    shared = range(first_seed + (counted if now > counted else 0), first_seed + now)
    means = {n: fmean([each[seed] for seed in shared]) for n, each in values.items()}
    leader, *others = sorted(means, key=lambda number: (cost(means[number], better), number))
    found: dict[VerdictSoFar, list[int]] = {}
    for number in others:
        verdict: VerdictSoFar = "not distinguishable"
        if now > counted + 1:
            behind = [values[leader][seed] - values[number][seed] for seed in shared]
            mean = fmean(behind)
            spread = find_spread(behind, mean)
            verdict = judge(mean, spread, len(behind), better, error, within)
        found.setdefault(verdict, []).append(number)
    rivals = found.get("not distinguishable", [])
    return Round(
        seeds=now,
        leader=leader,
        rivals=tuple(rivals[: leaders - 1]),
        worse=tuple(found.get("better", ())),
        equivalent=tuple(found.get("equivalent", ())),
        left_out=tuple(rivals[leaders - 1 :]),
    )


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

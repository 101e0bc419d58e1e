"""What a race for more seeds will do with a spec, in words for the preview and for refusals."""

from __future__ import annotations

from collections.abc import Iterator

from eigensweep.search_spaces.errors import SpecError
from eigensweep.search_spaces.planning import find_seeds
from eigensweep.search_spaces.sections import RacingConfig
from eigensweep.search_spaces.spec import ExperimentSpec

FEWEST_SEEDS = 2
"""Seeds of every configuration that a race needs: one gives no interval."""

MOST_SHOWN = 6
"""Rounds that a sentence lists."""

PLANNED = (2.0, 1.0, 0.5)
"""Differences by their spread, for which seeds are planned."""


def explain_race(spec: ExperimentSpec, racing: RacingConfig) -> str:
    """Return what a race does, and what it costs at most."""
    first, *rounds = racing.list_rounds(spec.replicates)
    shown = [*rounds[:2], "...", rounds[-1]] if len(rounds) > MOST_SHOWN else rounds
    seeds = ", ".join(map(str, shown))
    extra = count_extra_trainings(spec)
    who = f"up to {racing.leaders} leaders train"
    if racing.between == "arms":
        who = "the best configuration of each arm trains"
    until = "one is better than all others"
    if racing.smallest is not None:
        until += f", or differs from them by no more than {racing.smallest:g}"
    spent = "" if racing.core_hours is None else f", or {racing.core_hours:g} core-hours are spent"
    return (
        f"Every configuration trains {first} seeds. Then {who} on, to {seeds} seeds, until {until} "
        f"by an interval that holds at every look together{spent}: at most {extra:,} further "
        f"training{'' if extra == 1 else 's'}. {explain_plan(spec, racing)}"
    )


def explain_plan(spec: ExperimentSpec, racing: RacingConfig) -> str:
    """Return how many seeds it takes to decide differences of some sizes, in words."""
    plan = plan_seeds(spec, racing)
    seeds = [str(n) if n else "more than 1,000" for n in plan.values()]
    return (
        f"A difference as large as its spread between seeds is decided with about {seeds[1]} "
        f"seeds, one of twice that size with {seeds[0]}, one of half with {seeds[2]}"
    )


def plan_seeds(spec: ExperimentSpec, racing: RacingConfig) -> dict[float, int | None]:
    """Return about how many seeds decide differences of some sizes; None: more than 1,000.

    A size is a ratio to the spread of the differences between seeds. The first look compares the
    best of all configurations with every other one, those that then train no more among them.
    """
    is_of_arms = racing.between == "arms"
    compared = len(spec.arms_) if is_of_arms else spec.trial_count() or racing.leaders
    error = racing.alpha / racing.count_comparisons(compared)
    skipped = spec.replicates if is_of_arms and _are_chosen(spec) else 0
    found = {effect: find_seeds(effect, error) for effect in PLANNED}
    return {effect: None if n is None else skipped + n for effect, n in found.items()}


def count_extra_trainings(spec: ExperimentSpec) -> int:
    """Return how many trainings a race adds at most; 0 without one."""
    if spec.racing is None:
        return 0
    return count_racers(spec, spec.racing) * (spec.racing.most - spec.replicates)


def count_racers(spec: ExperimentSpec, racing: RacingConfig) -> int:
    """Return how many configurations may train more seeds."""
    if racing.between == "arms":
        return len(spec.arms_)
    count = spec.trial_count()
    return racing.leaders if count is None else min(count, racing.leaders)


def _are_chosen(spec: ExperimentSpec) -> bool:
    """Tell whether first seeds choose a configuration of an arm, so that they do not count."""
    return spec.trial_count() != len(spec.arms_)


def find_racing_errors(spec: ExperimentSpec) -> Iterator[SpecError]:
    """Yield what keeps the configurations of this spec from racing for more seeds."""
    racing = spec.racing
    if racing is None:
        return
    if spec.replicates < FEWEST_SEEDS:
        yield SpecError(
            "replicates",
            f"a race compares configurations by an interval over the seeds that both have, and "
            f"one seed gives none; give 'replicates' of {FEWEST_SEEDS} or more, better 3",
            expected=f"at least {FEWEST_SEEDS}",
            got=spec.replicates,
        )
    if racing.most <= spec.replicates:
        yield SpecError(
            "racing.most",
            f"every configuration trains {spec.replicates} seeds already ('replicates'), so a race "
            f"to {racing.most} adds none",
            expected=f"at least {spec.replicates + 1}",
            got=racing.most,
        )
    if spec.scheduler.name != "none":
        yield SpecError(
            "scheduler.name",
            f"{spec.scheduler.name} does not train every trial to its end as it was begun, so "
            "trials would not be compared seed by seed; race with the scheduler 'none'",
            expected="none",
            got=spec.scheduler.name,
        )
    if spec.objective.against:
        yield SpecError(
            "objective.against",
            "a race looks for one best configuration, and 'objective.against' names more to be "
            "good at; race for one metric",
            expected="no 'against', or no 'racing'",
            got=spec.objective.against,
        )
    if racing.between == "arms" and len(spec.arms_) < 2:
        yield SpecError(
            "racing.between",
            "a race between arms needs two of them, and the spec has one",
            expected="two or more 'arms', or 'between: configurations'",
        )
    if spec.trial_count() == 1:
        yield SpecError(
            "racing",
            "a race needs two configurations, and the search has one; for more seeds of it, raise "
            "'replicates'",
            expected="a search with two or more configurations",
        )

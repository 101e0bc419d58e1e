"""What a race for more seeds will do with a spec, in words for the preview and for refusals."""

from __future__ import annotations

from collections.abc import Iterator

from eigensweep.search_spaces.errors import SpecError
from eigensweep.search_spaces.sections import RacingConfig
from eigensweep.search_spaces.spec import ExperimentSpec

FEWEST_SEEDS = 2
"""Seeds of every configuration that a race needs: one gives no interval."""

MOST_SHOWN = 6
"""Rounds that a sentence lists."""


def explain_race(spec: ExperimentSpec, racing: RacingConfig) -> str:
    """Return what a race does, and what it costs at most."""
    first, *rounds = racing.list_rounds(spec.replicates)
    shown = [*rounds[:2], "...", rounds[-1]] if len(rounds) > MOST_SHOWN else rounds
    seeds = ", ".join(map(str, shown))
    extra = count_extra_trainings(spec)
    return (
        f"Every configuration trains {first} seeds. Then up to {racing.leaders} leaders "
        f"train on together, to {seeds} seeds, until one is better than all others by the paired "
        f"interval: at most {extra:,} further training{'' if extra == 1 else 's'}"
    )


def count_extra_trainings(spec: ExperimentSpec) -> int:
    """Return how many trainings a race adds at most; 0 without one."""
    if spec.racing is None:
        return 0
    count = spec.trial_count()
    racers = spec.racing.leaders if count is None else min(count, spec.racing.leaders)
    return racers * (spec.racing.most - spec.replicates)


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
    if spec.trial_count() == 1:
        yield SpecError(
            "racing",
            "a race needs two configurations, and the search has one; for more seeds of it, raise "
            "'replicates'",
            expected="a search with two or more configurations",
        )

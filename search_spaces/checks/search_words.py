"""What a spec's search method will do with its space, in words for the preview and for refusals."""

from __future__ import annotations

from collections.abc import Iterator

from eigensweep.search_spaces.checks.brackets import Brackets
from eigensweep.search_spaces.checks.constrained import count_kept
from eigensweep.search_spaces.checks.fitting import place_of
from eigensweep.search_spaces.checks.memory import list_extremes
from eigensweep.search_spaces.checks.population import explain_population
from eigensweep.search_spaces.checks.race_words import explain_race
from eigensweep.search_spaces.errors import SpecError
from eigensweep.search_spaces.labels import say_count
from eigensweep.search_spaces.parameters import Choice, Parameter
from eigensweep.search_spaces.sections import (
    IN_GENERATIONS,
    JOINT,
    LEARNING,
    Arm,
    SchedulerConfig,
)
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.search_spaces.trial import TrialConfig

HALVING = frozenset({"asha", "hyperband"})
"""Schedulers that let 1 trial in so many go on from each rung."""

FIRST_AT_RANDOM = 10
"""Trials that Optuna's TPE and GP draw before they learn (`n_startup_trials`)."""

FEWEST_RANGES = 2
"""Ranges that CMA-ES needs: Optuna has it draw a single one by itself."""


def explain_search(spec: ExperimentSpec) -> list[str]:
    """Return what a person should know of how the points are drawn, one sentence or two each."""
    method, arms, first = spec.search.method, spec.arms_, len(spec.search.first)
    words = []
    if first:
        verb = "comes" if first == 1 else "come"
        words.append(f"{say_count(first, 'point')} of 'search.first' {verb} before all others")
    if spec.search.constraints:
        tried, kept = count_kept(spec)
        words.append(
            f"{kept:,} of {say_count(tried, 'point')} that were tried keep 'search.constraints'; "
            "the others are left out"
        )
    if spec.is_sampled:
        words.append(
            f"{spec.limits.trials:,} of {say_count(spec.space().count() or 0, 'point')} "
            f"{'runs' if spec.limits.trials == 1 else 'run'}: a sample that is "
            f"spread over the grid{_taking_turns(arms)}. Another 'search.seed' takes another sample"
        )
    elif method == "grid" and spec.search.trials is not None:
        words.append(
            "grid runs every point, whatever 'search.trials' says; 'limits.trials' runs a sample"
        )
    elif method in ("qmc", *JOINT) and len(arms) > 1:
        words.append("The arms take turns, so each gets the same number of trials")
    elif method in ("random", "tpe") and len(arms) > 1:
        words.append(
            f"{method} chooses each trial's arm, too: an arm may get few trials, or none. With "
            f"{', '.join(sorted(JOINT))} and qmc the arms take turns"
        )
    trials = spec.trial_count()
    if method in ("tpe", "gp") and trials is not None and trials < 2 * FIRST_AT_RANDOM:
        those = ", those of 'search.warm_start' among them" * bool(spec.search.warm_start)
        where = " of an arm" * (method == "gp" and len(arms) > 1)
        words.append(
            f"{method} draws at random until {FIRST_AT_RANDOM} trials{where} have ended{those}; "
            f"this search has {trials}"
        )
    if spec.objective.against:
        words.append(
            f"Several objectives: {', '.join(goal.name for goal in spec.goals())}; a Pareto table "
            "shows the trials that no other one beats in all of them"
        )
    brackets = find_brackets(spec) if spec.scheduler.name in HALVING else None
    if brackets is not None and (halving := _explain_halving(spec, brackets)):
        words.append(halving)
    may_stop = brackets.list_rungs(brackets.first) if brackets else spec.scheduler.name == "median"
    if may_stop and spec.scheduler.margin is not None:
        words.extend(_explain_margin(spec, spec.scheduler.margin))
    if spec.scheduler.name == "pbt":
        words.append(explain_population(spec))
        if spec.limits.wall_seconds is not None:
            words.append(
                "Its trials end together: if limits.wall_seconds are over before the first of them "
                "has trained its last round, there is no best trial, and none can go on. The page "
                "names the one that led"
            )
    if spec.population is not None:
        is_all = method == "nsga2" and trials is not None and trials <= spec.population * len(arms)
        is_all = is_all and not spec.search.warm_start
        more = "; this search has no second one, so that all are drawn at random" if is_all else ""
        words.append(f"A generation has {spec.population} trials in each arm{more}")
    if method in JOINT:
        beside = "at random" if method == "nsga2" else "by TPE"
        for arm in arms:
            alone = [path for path, axis in arm.space.items() if not _is_joint(method, axis)]
            if alone:
                words.append(
                    f"{arm.label}: {method} draws what always exists together; "
                    f"{', '.join(alone)} {'is' if len(alone) == 1 else 'are'} drawn {beside}, each "
                    "by itself"
                )
    if spec.racing is not None:
        words.append(explain_race(spec, spec.racing))
    if method in JOINT and spec.scheduler.name != "none":
        words.append(
            f"{method} learns only from trials that train to their end, and the scheduler "
            f"{spec.scheduler.name} stops most of them; tpe learns from both"
        )
    return words


OF_SCHEDULERS = {
    "reduction_factor": ("asha", "hyperband"),
    "brackets": ("hyperband",),
    "min_samples": ("median",),
    "quantile": ("pbt",),
    "perturb": ("pbt",),
    "resample": ("pbt",),
}
"""Settings that only some schedulers read."""


def find_method_errors(spec: ExperimentSpec) -> Iterator[SpecError]:
    """Yield what the search method cannot do with this spec, or the scheduler cannot judge."""
    search = spec.search
    if search.population is not None and search.method not in IN_GENERATIONS:
        yield SpecError(
            "search.population",
            f"{search.method} has no generations; 'population' is for "
            f"{' and '.join(sorted(IN_GENERATIONS))}",
            expected="no population",
            got=search.population,
        )
    if search.warm_start and search.method not in LEARNING:
        yield SpecError(
            "search.warm_start",
            f"{search.method} does not learn from results, so there is nothing to start from; "
            "a configuration that has finished before is taken over in any case. "
            f"{', '.join(sorted(LEARNING))} learn",
            expected="no 'warm_start', or a method that learns",
            got=search.warm_start,
        )
    if spec.objective.against and spec.scheduler.name != "none":
        yield SpecError(
            "scheduler.name",
            f"{spec.scheduler.name} would judge trials by one objective, and 'objective.against' "
            "names more; let every trial train to its end, with 'none'",
            expected="none",
            got=spec.scheduler.name,
        )
    if search.method != "cmaes":
        return
    if spec.objective.against:
        yield SpecError(
            "search.method",
            "cmaes looks for one best value, and 'objective.against' names more; search by "
            "'nsga2', 'tpe' or 'gp'",
            expected="nsga2, tpe, gp, random, qmc or grid",
            got="cmaes",
        )
    for index, arm in enumerate(spec.arms_):
        ranges = [path for path, axis in arm.space.items() if _is_joint("cmaes", axis)]
        if arm.space and len(ranges) < FEWEST_RANGES:
            path = next(iter(arm.space))
            yield SpecError(
                place_of(spec, index, path),
                f"cmaes moves a cloud of points through ranges of numbers; arm '{arm.label}' "
                f"has {len(ranges)} that always exist, and it needs {FEWEST_RANGES}. Write "
                "{low, high} in place of a list, or search by 'gp' or 'tpe', which take lists "
                "and conditions",
                expected=f"at least {FEWEST_RANGES} ranges without 'when'",
                got=ranges,
            )


def find_unread_settings(scheduler: SchedulerConfig) -> Iterator[SpecError]:
    """Yield the settings that a person changed and that this scheduler does not read."""
    for name, readers in OF_SCHEDULERS.items():
        default, got = SchedulerConfig.model_fields[name].default, getattr(scheduler, name)
        if got != default and scheduler.name not in readers:
            yield SpecError(
                f"scheduler.{name}",
                f"the scheduler {scheduler.name} does not read '{name}'; it is for "
                f"{' and '.join(readers)}. Leave it out, or choose another 'scheduler.name'",
                expected=f"no {name}",
                got=got,
            )


def find_brackets(spec: ExperimentSpec, example: TrialConfig | None = None) -> Brackets | None:
    """Return at which steps a spec's scheduler compares trials; None where that is not known.

    It follows from the extreme points of the space, or from `example` if none of them is valid.
    """
    settings, extremes = spec.scheduler, list_extremes(spec, ("task", "training"))
    configs = [config for _, config in extremes] or [*filter(None, [example])]
    if not configs:
        return None
    steps = max(config.training.steps or 1 for config in configs)
    first = settings.min_steps or min(spec.first_rung(config) for config in configs)
    most = settings.brackets if settings.name == "hyperband" else 1
    return Brackets(min(first, steps), steps, settings.reduction_factor, most)


def _explain_halving(spec: ExperimentSpec, brackets: Brackets) -> str:
    """Return when trials are stopped, and what that saves; empty if none is."""
    rungs, name = brackets.list_rungs(brackets.first), spec.scheduler.name
    saves = (
        f"If each rung stops all that it may, trials train {brackets.share:.0%} of their steps on "
        "average"
    )
    if name == "asha":
        does = f"at {_join(rungs)} steps, and 1 in {brackets.factor} goes on. {saves}"
        return f"asha compares trials {does}" if rungs else ""
    if len(brackets.begins) > 1:
        return (
            f"hyperband has brackets that begin to stop trials at {_join(brackets.begins)} steps; "
            f"they get {_join(brackets.weights)} of each {sum(brackets.weights)} trials. {saves}"
        )
    does = f"as asha stops trials from {rungs[0]:,} steps on" if rungs else "stops no trial"
    words = f"hyperband has a single bracket here, and {does}"
    if spec.scheduler.brackets == 1:
        return words
    return (
        f"{words}: between its first rung and the end at {brackets.last:,} steps is no room for "
        "another. Take more steps, or a smaller 'scheduler.min_steps' or 'scheduler.rung_every'"
    )


def _explain_margin(spec: ExperimentSpec, margin: float) -> Iterator[str]:
    """Yield how good one trial must be before any is stopped, where the baseline is known."""
    if spec.baseline is not None:
        yield (
            f"{spec.scheduler.name} stops no trial before one is {margin:.0%} better than the "
            "baseline; with 'scheduler.margin: null' it does from the beginning"
        )


def _join(numbers: list[int]) -> str:
    return ", ".join(f"{number:,}" for number in numbers)


def _is_joint(method: str, axis: Parameter) -> bool:
    """Tell whether a method draws a parameter together with the others of its arm."""
    return not axis.when and not (method == "cmaes" and isinstance(axis, Choice))


def _taking_turns(arms: list[Arm]) -> str:
    return "; the arms take turns" if len(arms) > 1 else ""

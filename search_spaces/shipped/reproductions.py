"""Suites: each table and figure of the papers as experiments, analyses, and what is compared.

A suite names presets and what it changes of them, the paper's claims in a form that numbers can
decide, and for each budget what it cuts. The paper's own numbers stand in the presets, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import Field, JsonValue, ValidationError, model_validator

from eigensweep.search_spaces.checks.preview import SMALL, seconds_of
from eigensweep.search_spaces.checks.race_words import PLANNED
from eigensweep.search_spaces.dotted import PathError, name_arms, with_settings
from eigensweep.search_spaces.errors import UnknownSuiteError
from eigensweep.search_spaces.parameters import Choice
from eigensweep.search_spaces.planning import find_seeds, find_sign_seeds
from eigensweep.search_spaces.sections import PublishedNumber, ResourcesConfig
from eigensweep.search_spaces.shipped.presets import load_preset
from eigensweep.search_spaces.shipped.shipped import Shelf
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.search_spaces.spec_text import read_text
from eigensweep.search_spaces.trial import Strict
from eigensweep.tasks import TASKS
from eigensweep.tasks.base import TaskConfig
from eigensweep.tasks.corpus import CorpusMissingError

Budget = Literal["short", "full"]
BUDGETS: tuple[Budget, ...] = get_args(Budget)

SUITES: Final = Shelf(
    "reproductions",
    "reproduction",
    "name",
    "the name of a table or figure, such as enrnn/figure-2",
    UnknownSuiteError,
)

AT_THE_END: Final = 1_000_000_000
"""Steps between rungs, more than any budget has. So a trial reports only at its end, and each of
its seeds is trained to its end before the next begins: another machine can take up those."""

Label = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_]*$", max_length=40)]
"""What a suite calls one of its experiments or analyses."""

SHORT_SECONDS = 2400.0
"""Core seconds of a short budget at most: 20 minutes on two cores."""
SHORT_SECONDS_OF_ALL = 36_000.0
"""Core seconds of all short budgets together at most: 5 hours on two cores."""


class Change(Strict):
    """What a budget changes of an experiment."""

    set: dict[str, JsonValue] = Field({}, description="Fields with other values, by dotted path")
    arms: list[str] | None = Field(
        None, min_length=1, description="The arms that are kept; default: all"
    )
    leave_out: str | None = Field(None, description="Why the experiment is not run at all")


class SuiteExperiment(Strict):
    """An experiment of a suite: a preset and what is changed of it."""

    preset: str = Field(description="Name of the preset")
    curve: str | None = Field(
        None,
        description="What the report draws over the steps; default: the objective's validation"
        " value",
    )
    sides: str | None = Field(
        None,
        description="A parameter of the search whose values are compared in the place of arms",
    )
    set: dict[str, JsonValue] = Field(
        {}, description="Fields with other values in both budgets, by dotted path"
    )
    arms: list[str] | None = Field(None, description="The arms that are kept; default: all")
    chosen: dict[str, dict[str, JsonValue]] = Field(
        {},
        description="By arm, the values of searched parameters that it is trained with, where the "
        "paper has a rule for them; default: all, and its best trial stands for it",
    )
    short: Change = Field(Change(), description="What the short budget changes further")


class SuiteAnalysis(Strict):
    """An analysis of a suite: of a trial or an experiment of the suite, or of matrices."""

    name: str = Field(description="The kind of analysis")
    experiment: Label | None = Field(None, description="The experiment it is about")
    arm: str | None = Field(None, description="The arm whose best trial it is about")
    options: dict[str, JsonValue] = Field({}, description="Its options")
    repeat: Literal["replicate", "seed"] | None = Field(
        None, description="The option that counts up from 0 in repetitions"
    )
    times: int = Field(1, ge=1, le=20, description="Number of repetitions")


class Measure(Strict):
    """A number that each seed has: a score, a point of a curve, or a number of an analysis."""

    metric: str | None = Field(
        None,
        description="`value` (the best validation value), `valid/`, `test/`, `best_test/` or "
        "`last_test/` with a metric of the task, or `seconds_per_step`, the median processor time",
    )
    curve: str | None = Field(None, description="A curve, such as `valid/mse` or `test_now/mse`")
    at: int | None = Field(None, description="Step of the curve; default: its end")
    steps_to: float | None = Field(
        None, description="The first step at which the curve is at or beyond this value"
    )
    of_baseline: bool = Field(
        False, description="Whether values, also `steps_to`, are ratios to the baseline"
    )
    analysis: Label | None = Field(None, description="An analysis of this suite")
    number: str | None = Field(
        None, description="Path of a number in its results, such as `by_delay.long.20`"
    )
    over: str | None = Field(None, description="Path of a number by which it is divided")
    over_analysis: Label | None = Field(
        None, description="The analysis that `over` is of; default: the same"
    )

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Self:
        kinds = [name for name in ("metric", "curve", "analysis") if getattr(self, name)]
        if len(kinds) != 1:
            raise ValueError("a measure has exactly one of 'metric', 'curve' and 'analysis'")
        if (self.analysis is None) != (self.number is None):
            raise ValueError("'analysis' and 'number' go together")
        if (self.at is not None or self.steps_to is not None) and self.curve is None:
            raise ValueError("'at' and 'steps_to' belong to a 'curve'")
        return self


class Claim(Strict):
    """A sentence of the paper that numbers can decide.

    With `better` or `alike`, and `than`, it compares arms; with `at_least` and `at_most` a number
    with bounds. A suite's first claim is its primary one, which decides the verdict on the whole.
    """

    says: str = Field(description="The claim, in words")
    by: Measure = Field(description="The number that decides")
    experiment: Label = Field("main", description="The experiment whose arms are meant")
    better: str | None = Field(
        None,
        description="An arm that is better than those of `than`; of another experiment as "
        "LABEL/ARM",
    )
    alike: str | None = Field(
        None, description="An arm that differs from those of `than` by `alike_within` at most"
    )
    than: list[str] = Field([], description="The other arms")
    alike_within: float | None = Field(
        None,
        gt=0,
        description="The difference, as a share, up to which arms are the same; on a claim with "
        "`better` the verdict is `equivalent` where they are shown to be",
    )
    setting: Literal["as plotted", "matched"] | None = Field(
        None,
        description="`as plotted`: the sides differ in all that the paper's runs differ in; "
        "`matched`: in what the claim is about, alone",
    )
    arm: str | None = Field(None, description="The arm whose number has bounds")
    at_least: float | None = None
    at_most: float | None = None
    exact: bool = Field(False, description="Whether nothing random is in the number")
    logarithms: bool = Field(
        False, description="Whether ratios are compared, for losses that differ by powers of ten"
    )
    short_confirms: bool = Field(
        False,
        description="Whether the short budget can confirm it but not refute it, because training "
        "ends earlier",
    )
    logs: str | None = Field(
        None, description="What the authors' own program or run logs show of it, in words"
    )
    not_short: str | None = Field(
        None, description="Why the short budget cannot decide it; default: it can"
    )

    @model_validator(mode="after")
    def _compares_or_bounds(self) -> Self:
        has_bounds = self.at_least is not None or self.at_most is not None
        first = self.better or self.alike
        kinds = [self.better is not None, self.alike is not None, has_bounds]
        if sum(kinds) != 1 or bool(self.than) != bool(first):
            raise ValueError(
                "a claim has 'better' and 'than', 'alike' and 'than', or 'at_least' or 'at_most'"
            )
        if self.alike is not None and self.alike_within is None:
            raise ValueError("a claim with 'alike' says by 'alike_within' what that means")
        if has_bounds and (self.arm is None) != (self.by.analysis is not None):
            raise ValueError("a claim with bounds names an 'arm', or an analysis by 'by'")
        return self


class Rows(Strict):
    """Which of a preset's published numbers stand beside measured ones."""

    place: list[str] | None = Field(None, description="Only those that stand in one of these")
    metrics: list[str] | None = Field(None, description="Only those of these metrics")


class Suite(Strict):
    """A table or figure of a paper: what is run, and what is compared."""

    title: str = Field(max_length=120, description="What it shows")
    paper: str = Field(description="The paper")
    place: str = Field(description="The table or figure")
    page: int | None = Field(None, ge=1, description="Page of the table or figure")
    quote: str | None = Field(None, description="A sentence of the paper on it, in its words")
    quoted_from: str | None = Field(None, description="Where the sentence stands")
    says: str = Field(description="What the paper reads from it, in words")
    same_as: str | None = Field(
        None, description="Another suite whose experiments these are; they run once"
    )
    experiments: dict[Label, SuiteExperiment] = Field({}, description="By label")
    analyses: dict[Label, SuiteAnalysis] = Field({}, description="By label")
    published: dict[Label, Rows] = Field(
        {}, description="The paper's numbers, by experiment; default: all that can be measured"
    )
    picture: Literal["curves", "values", "sizes"] = Field(
        "curves",
        description="What the report draws: curves over the steps, the numbers of each arm beside "
        "the paper's, or numbers over the count of parameters",
    )
    claims: list[Claim] = Field([], description="What numbers decide, the primary claim first")
    cut: str | None = Field(
        None, description="What the short budget cuts, in words; default: nothing"
    )
    departures: str | None = Field(
        None, description="Where both budgets differ from the paper, in words"
    )
    needs: str | None = Field(
        None, description="What a machine must have beyond processors, such as a licensed corpus"
    )
    full_is_long: str | None = Field(
        None, description="Why `--all` leaves out the full budget, such as days on a GPU"
    )

    @model_validator(mode="after")
    def _names_its_own(self) -> Self:
        if self.same_as is None and not (self.experiments or self.analyses):
            raise ValueError("a suite has experiments, analyses, or 'same_as'")
        for claim in self.claims:
            for label in (claim.by.analysis, claim.by.over_analysis):
                if label is not None and label not in self.analyses:
                    raise ValueError(f"'{claim.says}': there is no analysis '{label}'")
        return self


def suite_names() -> list[str]:
    """Return the names of all suites, such as `enrnn/figure-2`, in order."""
    return SUITES.names


@cache
def load_suite(name: str) -> Suite:
    """Return a suite by its name, with the experiments of the one that it is `same_as`.

    Raises:
        UnknownSuiteError: if there is none.
    """
    suite = _read_suite(name)
    if suite.same_as is None:
        return suite
    shared = load_suite(suite.same_as)
    return suite.model_copy(
        update={
            "experiments": {**shared.experiments, **suite.experiments},
            "cut": suite.cut or shared.cut,
            "departures": suite.departures or shared.departures,
            "needs": suite.needs or shared.needs,
            "full_is_long": suite.full_is_long or shared.full_is_long,
        }
    )


def make_specs(
    name: str, budget: Budget, added: int = 0, resources: ResourcesConfig | None = None
) -> dict[str, ExperimentSpec]:
    """Return the experiments of a suite by their labels, as they are posted.

    With `added`, those that decide the primary claim have so many seeds more, and of their trials
    only those that it compares. `resources` are those of a trial, in place of the suite's.

    Suites that are the `same_as` another one give the same specs, so each is posted once.

    Raises:
        UnknownSuiteError, UnknownPresetError: if there is no such suite or preset.
        ValueError: if a change does not fit its preset.
    """
    suite = load_suite(name)
    owner = suite.same_as or name
    mine = () if suite.same_as is None else _read_suite(name).experiments
    deciding = find_deciding(suite) if added else {}
    return {
        label: _make_spec(
            name if label in mine else owner,
            label,
            experiment,
            budget,
            added if label in deciding else 0,
            deciding.get(label),
            resources,
        )
        for label, experiment in suite.experiments.items()
        if budget == "full" or experiment.short.leave_out is None
    }


def find_deciding(suite: Suite) -> dict[str, frozenset[str]]:
    """Return the experiments whose seeds decide the primary claim; empty where none do.

    Each has the arms, or the values of its `sides`, that the claim compares.
    """
    claim = suite.claims[0]
    if claim.by.analysis is None:
        names = filter(None, (claim.better, claim.alike, claim.arm, *claim.than))
        compared = [split_arm(name, claim) for name in names]
    else:
        compared = [
            (each.experiment, each.arm)
            for each in map(suite.analyses.__getitem__, find_repeated(suite))
            if each.experiment is not None and each.arm is not None and each.repeat == "replicate"
        ]
    return {
        label: frozenset(side for other, side in compared if other == label)
        for label, _ in compared
    }


def find_repeated(suite: Suite) -> frozenset[str]:
    """Return the analyses whose repetitions decide the primary claim; empty where none do."""
    by = suite.claims[0].by
    names = filter(None, (by.analysis, by.over_analysis))
    return frozenset(name for name in names if suite.analyses[name].repeat is not None)


def count_first(name: str, budget: Budget) -> int | None:
    """Return the seeds that decide the primary claim before any are added.

    It is None where more seeds decide nothing: where nothing in the claim is random, or the budget
    is not meant to decide it.
    """
    suite, specs = load_suite(name), make_specs(name, budget)
    if not suite.claims or (budget == "short" and suite.claims[0].not_short is not None):
        return None
    counts = [specs[label].replicates for label in find_deciding(suite) if label in specs]
    counts += [suite.analyses[label].times for label in find_repeated(suite)]
    return min(counts, default=None)


@dataclass(frozen=True)
class Planned:
    """What it takes to decide the primary claim of a suite, if the difference is of some size."""

    difference: str
    """Its size, in words."""
    seeds: int | None
    """About; None beyond 1,000."""
    core_hours: float | None
    """Of all these seeds on one core: as rough a guess as that of the suite."""


def plan_seeds(name: str, budget: Budget) -> list[Planned]:
    """Return what it takes to decide the primary claim; nothing where seeds decide nothing."""
    suite = load_suite(name)
    if count_first(name, budget) is None:
        return []
    claim = suite.claims[0]
    error = 0.05 / max(1, len(claim.than))
    if claim.by.steps_to is not None:
        found: dict[str, int | None] = {
            "a difference of the same sign on all seeds": find_sign_seeds(0, error),
            "one of another sign on two seeds": find_sign_seeds(2, error),
        }
    else:
        sizes = {
            2.0: "a difference of twice its spread between seeds",
            1.0: "one of its spread",
            0.5: "one of half its spread",
        }
        found = {sizes[size]: find_seeds(size, error) for size in PLANNED}
    wider = make_specs(name, budget, 1)
    hours = sum(
        estimate_core_seconds(wider[label]) / wider[label].replicates / 3600
        for label in find_deciding(suite)
    )
    return [
        Planned(words, seeds, None if seeds is None else float(f"{hours * seeds:.2g}"))
        for words, seeds in found.items()
    ]


def find_missing_corpora(name: str, data_root: Path | None) -> dict[str, str]:
    """Return the tasks of a suite whose corpora are not in `data_root`, each with what to do."""
    missing = {}
    for task in _tasks_of(name):
        try:
            TASKS[task.name].check_corpus(task, data_root)
        except CorpusMissingError as error:
            missing[task.name] = str(error)
    return missing


@cache
def _tasks_of(name: str) -> list[TaskConfig]:
    return [spec.task for spec in make_specs(name, "full").values()]


def side_names(experiment: SuiteExperiment, spec: ExperimentSpec) -> list[str]:
    """Return what an experiment's claims compare: its arms, or the values of one parameter."""
    if experiment.sides is None:
        return [arm.label for arm in spec.arms_]
    axis = spec.arms_[0].space.get(experiment.sides)
    if not isinstance(axis, Choice):
        raise ValueError(f"{spec.name}: no list of values of '{experiment.sides}' is searched")
    return [str(value) for value in axis.values]


def split_arm(name: str, claim: Claim) -> tuple[str, str]:
    """Return the experiment and the arm that a claim means by a name."""
    label, slash, arm = name.partition("/")
    return (label, arm) if slash else (claim.experiment, name)


def published_rows(suite: Suite, label: str, spec: ExperimentSpec) -> list[PublishedNumber]:
    """Return the paper's numbers that an experiment of a suite measures, too."""
    wanted = suite.published.get(label, Rows())
    arms = {arm.label for arm in spec.arms_}
    return [
        row
        for row in load_preset(suite.experiments[label].preset).published
        if row.arm in arms
        and (wanted.metrics is None or row.metric in wanted.metrics)
        and (wanted.place is None or set(wanted.place) & set((row.place or "").split("; ")))
    ]


def estimate_core_seconds(spec: ExperimentSpec) -> float:
    """Return a rough guess of the time of all trials one after another on one core."""
    space = spec.space()
    count = spec.trial_count() or 1
    points = list(space) if count <= SMALL else [next(space.corners(arm)) for arm in space.arms]
    seconds = [spec.replicates * seconds_of(spec.trial(p)) for p in points]
    return count * sum(seconds) / len(seconds)


def _make_spec(
    name: str,
    label: str,
    experiment: SuiteExperiment,
    budget: Budget,
    added: int,
    compared: frozenset[str] | None,
    resources: ResourcesConfig | None,
) -> ExperimentSpec:
    preset = load_preset(experiment.preset)
    content = preset.model_dump(mode="json", exclude_unset=True)
    change = experiment.short if budget == "short" else Change()
    kept = change.arms or experiment.arms
    chosen = {
        f"arms.{arm}.space.{path}": [value]
        for arm, values in experiment.chosen.items()
        for path, value in values.items()
    }
    try:
        content = with_settings(content, {**experiment.set, **change.set, **chosen})
        if compared is not None and experiment.sides is not None:
            space = content["search"]["space"]
            values = [value for value in space[experiment.sides] if str(value) in compared]
            space[experiment.sides] = values
        elif compared is not None and "arms" in content:
            kept = [name for name in kept or name_arms(content) if name in compared]
        if kept is not None:
            content["arms"] = list(_keep_arms(content["arms"], kept))
        about: str = budget
        if added:
            content["replicates"] = content.get("replicates", 1) + added
            about = f"{budget}, {content['replicates']} seeds"
        content["name"] = f"{name} {label} ({about})" if label != "main" else f"{name} ({about})"
        content["published"] = []
        if resources is not None:
            content["resources"] = resources.model_dump(mode="json", exclude_unset=True)
        content.setdefault("scheduler", {"rung_every": AT_THE_END})
        return ExperimentSpec.model_validate(content)
    except (PathError, ValidationError) as error:
        raise ValueError(f"reproduction {name}, experiment {label}: {error}") from error


def _keep_arms(arms: list[Mapping[str, Any]], kept: list[str]) -> Iterator[Mapping[str, Any]]:
    by_name = dict(zip(name_arms({"arms": arms}), arms, strict=True))
    for name in kept:
        if name not in by_name:
            raise PathError(f"there is no arm '{name}' to keep; there are {', '.join(by_name)}")
        yield by_name[name]


def _read_suite(name: str) -> Suite:
    return Suite.model_validate(read_text(SUITES.read(name)))

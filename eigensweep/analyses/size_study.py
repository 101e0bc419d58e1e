"""Compare model sizes within an experiment: a curve for each size, and the value at each size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, JsonValue

from eigensweep.analyses.base import (
    AnalysisMethod,
    Content,
    ExperimentSubject,
    Findings,
    Folders,
    Options,
    TrialSubject,
    six_digits,
)
from eigensweep.common.direction import Better, best, sign
from eigensweep.results import figures
from eigensweep.results.ranking import RANKED, cost
from eigensweep.search_spaces.dotted import flatten
from eigensweep.search_spaces.trial import Strict
from eigensweep.store.checkpoints import Store
from eigensweep.store.commits.curves import cut
from eigensweep.tasks.base import Metric, TaskConfig

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIRST_CHOICES = ("model.short_size", "model.hidden_size")
"""Numbers that are taken as the size if they vary and no parameter is given, in this order."""
PALEST = 0.35
"""Opacity of a line's smallest size, where the picture has several lines."""


class SizeStudyOptions(Options):
    """The options of a size study."""

    parameter: str | None = Field(
        None,
        max_length=120,
        description="Which number of a trial's configuration is its size, as a dotted path; "
        "default: `model.short_size`, `model.hidden_size`, or the only number of `model` that "
        "varies",
    )
    metric: str | None = Field(
        None, max_length=60, description="Metric; default: the one that ranks the trials"
    )


class Curve(Strict):
    """The best trial of one size in one arm, with its values over training."""

    line: str
    """The line of the picture that it belongs to."""
    arm: str
    size: int | float
    trials_of_this_size: int
    """Trials of this arm with this size, from which the best one was chosen."""
    trial: int
    state: str
    """How the trial ended."""
    replicates: int
    step: list[int]
    """Optimizer steps at which all replicates were evaluated."""
    epoch: list[float | None]
    """The same in epochs; None for a task without epochs."""
    value: list[float]
    """Mean over the replicates at each step."""
    low: list[float]
    """Smallest value among the replicates at each step, not the end of an interval."""
    high: list[float]
    """Largest value among the replicates at each step, not the end of an interval."""
    final: float
    """The last of `value`."""
    best: float
    """The best of `value`."""

    @property
    def is_whole(self) -> bool:
        """Whether the trial trained to its end."""
        return self.state in RANKED


class ArmAndSize(Strict):
    """One size of one arm."""

    arm: str
    size: int | float


class SizeStudyContent(Content):
    """The numbers of a size study."""

    experiment: str
    name: str
    parameter: str
    """Dotted path of the size."""
    metric: str
    unit: str
    """The metric's unit; empty if it is not the experiment's own metric."""
    data: Literal["test", "validation"]
    baseline: float | None
    """The memoryless baseline; None for another metric than the experiment's own."""
    best_to_worst: list[ArmAndSize]
    """Ordered by the final value; those that did not train to their end come last."""
    sizes: list[Curve]
    """Ordered by line, then by size."""


class SizeStudy(AnalysisMethod[SizeStudyOptions, ExperimentSubject, SizeStudyContent]):
    """Curves for each size of a model, and the final value against the size.

    Each arm is a line of its own. If every size is an arm, as in the preset
    `enrnn/adding-short-sizes`, these arms form one line. Among several trials with the same arm and
    size (with different learning rates, for example) the first in the experiment's ranking is
    shown, which is by validation data alone. One that did not train to its end is shown only if
    none of its size did, and marked.

    Values are those of the test data if `training.test_every_evaluation` was set, and of the
    validation data otherwise; with replicates they are means. `low`, `high` and the bands are the
    smallest and the largest value among the replicates, not an interval of the mean.

    Source: Helfrich & Ye, AAAI 2020, section 6.2, figures 6 and 7.
    """

    of = "experiment"
    Options = SizeStudyOptions
    result_version = 6

    def check(self, options: SizeStudyOptions, subject: ExperimentSubject) -> None:
        _parameter(options, subject)
        _metric(options, subject)

    def run(
        self, options: SizeStudyOptions, subject: ExperimentSubject, folders: Folders
    ) -> Findings[SizeStudyContent]:
        path, store = _parameter(options, subject), Store(folders.storage)
        metric = _metric(options, subject)
        split = _split(subject.trials, store, metric.name)
        lines = group_arms(subject.trials, path)
        groups: dict[tuple[str, str, float], list[TrialSubject]] = defaultdict(list)
        for trial in sorted(subject.trials, key=lambda trial: _place(trial, subject.better)):
            groups[lines[trial.arm], trial.arm, _size(trial, path)].append(trial)
        order = list(dict.fromkeys(lines.values()))
        curves = [
            curve
            for key in sorted(groups, key=lambda key: (order.index(key[0]), key[2]))
            if (curve := _first_curve(key[0], key[2], groups[key], store, split, metric))
        ]
        if not curves:
            raise ValueError(f"no trial of {subject.experiment} has a curve of {metric.name}")
        ranked = sorted(
            curves, key=lambda curve: (not curve.is_whole, sign(metric.better) * curve.final)
        )
        is_own = metric.name == subject.metric
        content = SizeStudyContent(
            experiment=subject.experiment,
            name=subject.name,
            parameter=path,
            metric=metric.name,
            unit=subject.unit if is_own else "",
            data="test" if split == "test_now" else "validation",
            baseline=_baseline(subject, split) if is_own else None,
            best_to_worst=[ArmAndSize(arm=curve.arm, size=curve.size) for curve in ranked],
            sizes=curves,
        )
        columns = ("arm", "size", "trial", "state", "step", "epoch", "value", "low", "high")
        rows = (
            (curve.arm, curve.size, curve.trial, curve.state, *point)
            for curve in curves
            for point in zip(
                curve.step, curve.epoch, curve.value, curve.low, curve.high, strict=True
            )
        )
        return Findings(content, columns, rows)

    def plot(self, content: SizeStudyContent) -> Figure:
        figure, ((curves, ends),) = figures.panels(1, 2, 5.0, 3.8)
        by_epoch = all(curve.epoch[-1] is not None for curve in content.sizes)
        lines: dict[str, list[Curve]] = defaultdict(list)
        for curve in content.sizes:
            lines[curve.line].append(curve)
        if len(lines) == 1:
            (only,) = lines.values()
            _draw_line_by_shades(curves, ends, only, by_epoch)
        else:
            for (line, members), colour in zip(
                lines.items(), figures.colours(len(lines)), strict=True
            ):
                _draw_line(curves, ends, line, members, by_epoch, colour)
        what = f"{content.metric} ({content.data})"
        name = content.name.replace("$", r"\$")  # a dollar sign would begin a formula
        along = "epochs" if by_epoch else "optimizer steps"
        if any(curve.replicates > 1 for curve in content.sizes):
            along += "\nbands: from the smallest to the largest value of the seeds"
        curves.set(title=name, xlabel=along, ylabel=what)
        ends.set(title=f"against {content.parameter}", xlabel=content.parameter, ylabel=what)
        is_positive = min(value for curve in content.sizes for value in curve.value) > 0
        for panel in (curves, ends):
            if is_positive:
                panel.set_yscale("log")
            if content.baseline is not None:
                panel.axhline(
                    content.baseline, color="0.4", linestyle="--", linewidth=0.9, label="baseline"
                )
        _mark_cut(ends, [curve for curve in content.sizes if not curve.is_whole])
        size = content.parameter.rpartition(".")[2]
        curves.legend(fontsize=7, ncols=2, title=size if len(lines) == 1 else f"arm, {size}")
        ends.legend(fontsize=7)
        return figure


def _baseline(subject: ExperimentSubject, split: str) -> float | None:
    """Return the baseline of the experiment's metric on the data that is shown."""
    if split != "test_now" or subject.baseline is None:  # trials may have different tasks
        return subject.baseline
    task = subject.trials[0].trial_config.task
    return task.baselines_on("test").get(subject.metric, subject.baseline)


def group_arms(trials: Sequence[TrialSubject], path: str) -> dict[str, str]:
    """Return for each arm the name of the line that it belongs to.

    An arm is a line of its own, named after it. Exception: a study may have an arm for each size.
    Arms form one line if each of them has one size only, no two have the same size, and their
    models and optimizers differ in numbers only. `path` is the dotted path of the size.
    """
    sizes: dict[str, set[float]] = defaultdict(set)
    choices: dict[str, set[tuple[str, str | bool]]] = defaultdict(set)
    for trial in trials:
        sizes[trial.arm].add(_size(trial, path))
        choices[trial.arm] |= {
            (at, leaf)
            for section in ("model", "optimizer")
            for at, leaf in flatten({section: trial.config[section]}).items()
            if isinstance(leaf, str | bool)
        }
    alike: dict[frozenset[tuple[str, str | bool]], list[str]] = defaultdict(list)
    for arm, found in sizes.items():
        if len(found) == 1:
            alike[frozenset(choices[arm])].append(arm)
    lines = {arm: arm for arm in sizes}
    for arms in alike.values():
        in_order = sorted(arms, key=lambda arm: min(sizes[arm]))
        if len(arms) > 1 and len({min(sizes[arm]) for arm in arms}) == len(arms):
            lines |= dict.fromkeys(arms, f"{in_order[0]} to {in_order[-1]}")
    return lines


def _draw_line_by_shades(curves: Axes, ends: Axes, line: list[Curve], by_epoch: bool) -> None:
    for curve, shade in zip(line, figures.shades(len(line)), strict=True):
        _draw_curve(curves, curve, by_epoch, "", shade)
    sizes = [curve.size for curve in line]
    ends.plot(sizes, [c.final for c in line], marker="o", markersize=4, label="final")
    ends.plot(sizes, [c.best for c in line], marker="^", markersize=4, label="best")


def _draw_line(
    curves: Axes, ends: Axes, name: str, line: list[Curve], by_epoch: bool, colour: Any
) -> None:
    for place, curve in enumerate(line, start=1):
        opacity = PALEST + (1 - PALEST) * place / len(line)
        _draw_curve(curves, curve, by_epoch, f"{curve.arm}, ", colour, opacity)
    sizes = [curve.size for curve in line]
    for values, marker, dashes, word in (
        ([curve.final for curve in line], "o", "-", "final"),
        ([curve.best for curve in line], "^", ":", "best"),
    ):
        ends.plot(
            sizes, values, marker=marker, markersize=4, linestyle=dashes, color=colour,
            label=f"{name}, {word}",
        )  # fmt: skip


def _mark_cut(ends: Axes, cut: list[Curve]) -> None:
    """Draw a ring around the values of trials that did not train to their end."""
    at = [(curve.size, value) for curve in cut for value in (curve.final, curve.best)]
    if at:
        ends.plot(
            *zip(*at, strict=True), marker="o", markersize=9, markerfacecolor="none",
            linestyle="none", color="0.4", label="not trained to its end",
        )  # fmt: skip


def _draw_curve(
    panel: Axes, curve: Curve, by_epoch: bool, arm: str, colour: Any, opacity: float = 1.0
) -> None:
    label = f"{arm}{curve.size:g}" if curve.is_whole else f"{arm}{curve.size:g} ({curve.state})"
    at = [epoch for epoch in curve.epoch if epoch is not None] if by_epoch else curve.step
    panel.plot(at, curve.value, color=colour, alpha=opacity, label=label, linewidth=1.1)
    if curve.replicates > 1:
        panel.fill_between(at, curve.low, curve.high, color=colour, alpha=0.15 * opacity)


def _numbers(config: Mapping[str, JsonValue]) -> dict[str, float]:
    """Return every number of a configuration by its dotted path."""
    return {
        path: value
        for path, value in flatten(config).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _size(trial: TrialSubject, path: str) -> float:
    return _numbers(trial.config)[path]


def _parameter(options: SizeStudyOptions, subject: ExperimentSubject) -> str:
    """Return the path of the size: the one that was asked for, or the one that varies."""
    every = [_numbers(trial.config) for trial in subject.trials]
    shared = set.intersection(*(set(numbers) for numbers in every))
    varied = sorted(path for path in shared if len({numbers[path] for numbers in every}) > 1)
    if options.parameter is not None:
        if options.parameter not in shared:
            raise ValueError(
                f"'parameter' is '{options.parameter}'; expected a number that every trial of "
                f"{subject.experiment} has. These vary: {', '.join(varied) or 'none'}"
            )
        return options.parameter
    models = [path for path in varied if path.startswith("model.")]
    for path in (*FIRST_CHOICES, *(models if len(models) == 1 else ())):
        if path in models:
            return path
    raise ValueError(
        f"it is not clear which number is the size: set 'parameter'. Between the trials of "
        f"{subject.experiment} these vary: {', '.join(varied) or 'none'}"
    )


def _metric(options: SizeStudyOptions, subject: ExperimentSubject) -> Metric:
    return subject.trials[0].trial_config.task.find_metric(options.metric or subject.metric)


def _keys(trial: TrialSubject) -> list[str]:
    return [trial.store_key(seed) for seed in trial.trial_config.seeds]


def _split(trials: list[TrialSubject], store: Store, metric: str) -> str:
    """Return `test_now` if every trial's curve has scores of the test data, else `valid`.

    A trial that diverged before it was first evaluated has neither, and decides nothing.
    """
    scored = [
        {name for point in store.points(_keys(trial)[0]) if point.step for name in point.metrics}
        for trial in trials
    ]
    scored = [names for names in scored if f"valid/{metric}" in names]
    has_test = scored and all(f"test_now/{metric}" in names for names in scored)
    return "test_now" if has_test else "valid"


def _place(trial: TrialSubject, better: Better) -> tuple[bool, int, float, int]:
    """Return a key that sorts trials as the ranking does, those without a place in it last."""
    seeds, value = trial.trial_config.replicates, cost(trial.value, better)
    return trial.state not in RANKED, -seeds, value, trial.number


def _first_curve(
    line: str, size: float, trials: list[TrialSubject], store: Store, split: str, metric: Metric
) -> Curve | None:
    """Return the curve of the first trial that has values of this metric; None if none has."""
    curves = (_curve(line, size, len(trials), trial, store, split, metric) for trial in trials)
    return next((curve for curve in curves if curve), None)


def _curve(
    line: str,
    size: float,
    trials_of_this_size: int,
    trial: TrialSubject,
    store: Store,
    split: str,
    metric: Metric,
) -> Curve | None:
    """Return a trial's curve: means over its replicates at the steps that all of them have."""
    name = f"{split}/{metric.name}"
    curves = [
        {
            point.step: point.metrics[name]
            for point in cut(store.points(key), trial.trial_config.training.steps)
            if name in point.metrics
        }
        for key in _keys(trial)
    ]
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    if not steps:
        return None
    values = [[curve[step] for curve in curves] for step in steps]
    means = [fmean(numbers) for numbers in values]
    return Curve(
        line=line,
        arm=trial.arm,
        size=size,
        trials_of_this_size=trials_of_this_size,
        trial=trial.number,
        state=trial.state,
        replicates=len(curves),
        step=steps,
        epoch=_epochs(steps, trial.trial_config.task),
        value=[six_digits(value) for value in means],
        low=[six_digits(min(numbers)) for numbers in values],
        high=[six_digits(max(numbers)) for numbers in values],
        final=six_digits(means[-1]),
        best=six_digits(best(means, metric.better)),
    )


def _epochs(steps: list[int], task: TaskConfig) -> list[float | None]:
    try:
        return [step / task.steps_per_epoch for step in steps]
    except ValueError:  # the task draws fresh sequences at every step and has no epochs
        return [None] * len(steps)

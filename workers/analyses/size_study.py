"""How far each size of an experiment came: curves for each size, and the end against the size."""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pydantic import Field

from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.workers.analyses import figures
from eigensweep.workers.analyses.base import (
    Analysis,
    ExperimentSubject,
    Findings,
    Options,
    Place,
    TrialSubject,
    rounded,
)
from eigensweep.workers.shared.checkpoints import Store

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIRST_CHOICES = ("model.short_size", "model.hidden_size")
"""What is taken for the size where it varies and nothing else is said, in this order."""


class SizeStudyOptions(Options):
    """What may be set."""

    parameter: str | None = Field(
        None,
        max_length=120,
        description="Dotted path into a trial's configuration of the number that is its size; "
        "default: `model.short_size`, `model.hidden_size`, or the one of `model` that varies",
    )
    metric: str | None = Field(
        None, max_length=60, description="Default: what the experiment ranks by"
    )


class SizeStudy(Analysis):
    """Curves for each size of a model, and the final value against the size.

    Of several trials of one size (other learning rates, say) the best one is shown. Values are of
    the test data where `training.test_every_evaluation` was set, else of the validation data; with
    replicates they are means.

    Source: Helfrich & Ye, AAAI 2020, section 6.2, figures 6 and 7.
    """

    of = "experiment"
    Options = SizeStudyOptions

    def check(self, options: SizeStudyOptions, subject: ExperimentSubject) -> None:
        _parameter(options, subject)
        _metric(options, subject)

    def run(self, options: SizeStudyOptions, subject: ExperimentSubject, place: Place) -> Findings:
        path, store = _parameter(options, subject), Store(place.storage)
        metric, better = _metric(options, subject)
        by_size: dict[float, list[TrialSubject]] = defaultdict(list)
        for trial in subject.trials:
            by_size[_numbers(trial.config)[path]].append(trial)
        sizes, split = [], _split(subject.trials, store, metric)
        for size, trials in sorted(by_size.items()):
            told = [_told(trial, store, f"{split}/{metric}") for trial in trials]
            curves = [one for one in told if one["value"]]
            if curves:
                best = (min if better == "lower" else max)(curves, key=lambda one: one["best"])
                sizes.append({"size": size, "trials_of_this_size": len(trials), **best})
        if not sizes:
            raise ValueError(f"no trial of {subject.experiment} has a curve of {metric}")
        ranked = sorted(sizes, key=lambda one: one["final"], reverse=better == "higher")
        content: dict[str, Any] = {
            "experiment": subject.experiment,
            "name": subject.name,
            "parameter": path,
            "metric": metric,
            "unit": subject.unit if metric == subject.metric else "",
            "data": "test" if split == "test_now" else "validation",
            "baseline": subject.baseline if metric == subject.metric else None,
            "best_to_worst": [one["size"] for one in ranked],
            "sizes": sizes,
        }
        columns = ("size", "trial", "step", "epoch", "value", "low", "high")
        rows = (
            (one["size"], one["trial"], *point)
            for one in sizes
            for point in zip(*(one[name] for name in columns[2:]), strict=True)
        )
        return Findings(content, columns, rows)

    def plot(self, content: dict[str, Any]) -> Figure:
        figure, ((curves, ends),) = figures.panels(1, 2, 5.0, 3.8)
        sizes = content["sizes"]
        by_epoch = all(one["epoch"][-1] is not None for one in sizes)
        for one, colour in zip(sizes, figures.shades(len(sizes)), strict=True):
            at = one["epoch" if by_epoch else "step"]
            curves.plot(at, one["value"], color=colour, label=f"{one['size']:g}", linewidth=1.1)
            if one["replicates"] > 1:
                curves.fill_between(at, one["low"], one["high"], color=colour, alpha=0.15)
        what = f"{content['metric']} ({content['data']})"
        name = content["name"].replace("$", r"\$")  # which would begin a formula
        curves.set(title=name, xlabel="epochs" if by_epoch else "optimizer steps", ylabel=what)
        at = [one["size"] for one in sizes]
        for name, marker in (("final", "o"), ("best", "^")):
            ends.plot(at, [one[name] for one in sizes], marker=marker, markersize=4, label=name)
        ends.set(title=f"against {content['parameter']}", xlabel=content["parameter"], ylabel=what)
        everything = [value for one in sizes for value in one["value"]]
        for panel in (curves, ends):
            if min(everything) > 0:
                panel.set_yscale("log")
            if content["baseline"] is not None:
                panel.axhline(
                    content["baseline"],
                    color="0.4",
                    linestyle="--",
                    linewidth=0.9,
                    label="baseline",
                )
        curves.legend(fontsize=7, ncols=2, title=content["parameter"].rpartition(".")[2])
        ends.legend(fontsize=7)
        return figure


def _numbers(config: dict[str, Any], path: str = "") -> dict[str, float]:
    """Return every number of a configuration by its dotted path."""
    found: dict[str, float] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            found |= _numbers(value, f"{path}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[f"{path}{name}"] = value
    return found


def _parameter(options: SizeStudyOptions, subject: ExperimentSubject) -> str:
    """Return the path of the size, the one asked for or the one that varies."""
    every = [_numbers(trial.config) for trial in subject.trials]
    shared = set.intersection(*(set(numbers) for numbers in every))
    varied = sorted(path for path in shared if len({numbers[path] for numbers in every}) > 1)
    if options.parameter is not None:
        if options.parameter not in shared:
            raise ValueError(
                f"'parameter' is '{options.parameter}'; a number that every trial of "
                f"{subject.experiment} has and that varies is: {', '.join(varied) or 'none'}"
            )
        return options.parameter
    models = [path for path in varied if path.startswith("model.")]
    for path in (*FIRST_CHOICES, *(models if len(models) == 1 else ())):
        if path in models:
            return path
    raise ValueError(
        f"which number is the size? set 'parameter'; what varies between the trials of "
        f"{subject.experiment} is: {', '.join(varied) or 'none'}"
    )


def _metric(options: SizeStudyOptions, subject: ExperimentSubject) -> tuple[str, str]:
    known = {m.name: m.better for m in TrialConfig.from_dict(subject.trials[0].config).task.metrics}
    metric = options.metric or subject.metric
    if metric not in known:
        raise ValueError(f"'metric' is '{metric}'; the task has {', '.join(known)}")
    return metric, known[metric]


def _keys(trial: TrialSubject) -> list[str]:
    first, count = trial.config["seed"], trial.config["replicates"]
    return [f"{trial.place}/{seed}" for seed in range(first, first + count)]


def _split(trials: list[TrialSubject], store: Store, metric: str) -> str:
    """Return whose scores the curves hold for all trials: `test_now`, or else `valid`."""
    has_test = all(
        any(f"test_now/{metric}" in point.metrics for point in store.points(_keys(trial)[0]))
        for trial in trials
    )
    return "test_now" if has_test else "valid"


def _told(trial: TrialSubject, store: Store, metric: str) -> dict[str, Any]:
    """Return a trial's curve: means over its replicates at the steps that all of them have."""
    curves = [
        {p.step: p.metrics[metric] for p in store.points(key) if metric in p.metrics}
        for key in _keys(trial)
    ]
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    values = [[curve[step] for curve in curves] for step in steps]
    task = TrialConfig.from_dict(trial.config).task
    lower = next(m for m in task.metrics if m.name == metric.partition("/")[2]).better == "lower"
    means = [fmean(numbers) for numbers in values]
    return {
        "trial": trial.number,
        "state": trial.state,
        "replicates": len(curves),
        "step": steps,
        "epoch": _epochs(steps, task),
        "value": [rounded(value) for value in means],
        "low": [rounded(min(numbers)) for numbers in values],
        "high": [rounded(max(numbers)) for numbers in values],
        "final": rounded(means[-1]) if means else None,
        "best": rounded((min if lower else max)(means)) if means else None,
    }


def _epochs(steps: list[int], task: Any) -> list[float | None]:
    try:
        return [step / task.steps_per_epoch for step in steps]
    except ValueError:  # fresh sequences at every step: there are no epochs
        return [None] * len(steps)

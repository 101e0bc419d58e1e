"""Optuna's plots of a search that is over, drawn by a process of their own.

`python -m eigensweep.workers.driver.summary.plots FOLDER` reads a `PlotOrder` as JSON from its
input. This program does not load the spec's classes: they import PyTorch, which takes longer than
a plot. Each arm is a study of its own: an importance over arms without a shared parameter would
mean nothing.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypedDict

import matplotlib as mpl
import optuna
from matplotlib.axis import Axis
from optuna.distributions import json_to_distribution
from optuna.importance import BaseImportanceEvaluator
from optuna.study import Study
from optuna.trial import FrozenTrial, create_trial

from eigensweep.results.trees import find_shares

logger = logging.getLogger(__name__)

MOST_LABELS = 20
"""The most labels of one axis."""
LINE_LENGTH = 60
"""Characters that fit side by side below an axis."""

Plot = Callable[..., Any]
Direction = Literal["minimize", "maximize"]


class ArmOrder(TypedDict):
    """The finished trials of an arm."""

    distributions: dict[str, str]
    """What each parameter could be, as Optuna writes it in JSON, by the parameter's label."""
    params: list[dict[str, object]]
    """The parameters of each trial, by their labels."""
    values: list[float]
    """The objective of each trial."""


class PlotOrder(TypedDict):
    """What is to be drawn."""

    metric: str
    direction: Direction
    arms: dict[str, ArmOrder]


class Trees(BaseImportanceEvaluator):
    """The measure of `eigensweep/results/importance.py`, as Optuna's plot asks for it."""

    def evaluate(
        self,
        study: Study,
        params: list[str] | None = None,
        *,
        target: Callable[[FrozenTrial], float] | None = None,
    ) -> dict[str, float]:
        """Return the shares of the parameters that all trials have, the largest first."""
        trials = study.get_trials(deepcopy=False)
        names = sorted(set.intersection(*(set(trial.params) for trial in trials)))
        if not names:
            raise ValueError("the trials have no parameter in common")
        points = [{name: trial.params[name] for name in names} for trial in trials]
        shares = find_shares(points, [trial.values[0] for trial in trials])
        return dict(sorted(shares.items(), key=lambda each: -each[1]))


def draw(folder: Path, order: PlotOrder) -> None:
    """Write the history of the search, and three plots of each arm that varies something.

    The measure of importance is that of `eigensweep/results/importance.py`, which says why.
    """
    studies = {
        name: _make_study(name, order["direction"], arm)
        for name, arm in order["arms"].items()
        if len(arm["values"]) > 1
    }
    from optuna.visualization import matplotlib as shown

    kinds: Mapping[str, Plot] = {
        "parallel": shown.plot_parallel_coordinate,
        "importance": partial(shown.plot_param_importances, evaluator=Trees()),
        "slice": shown.plot_slice,
    }
    name = order["metric"]
    _save(folder / "history.png", shown.plot_optimization_history, list(studies.values()), name)
    for arm, study in studies.items():
        if not any(order["arms"][arm]["params"]):
            continue
        for kind, plot in kinds.items():
            file = f"{kind}-{re.sub(r'[^A-Za-z0-9_.-]', '_', arm)}.png"
            _save(folder / file, plot, study, name)


def _make_study(name: str, direction: Direction, arm: ArmOrder) -> Study:
    among = {label: json_to_distribution(each) for label, each in arm["distributions"].items()}
    study = optuna.create_study(study_name=name, direction=direction)
    study.add_trials(
        create_trial(
            value=value, params=params, distributions={label: among[label] for label in params}
        )
        for params, value in zip(arm["params"], arm["values"], strict=True)
    )
    return study


def _save(path: Path, plot: Plot, subject: Any, target: str) -> None:
    """Write one plot, if these trials allow it; a single value for instance does not."""
    import matplotlib.pyplot as plt

    try:
        plot(subject, target=lambda trial: trial.value, target_name=target)
        figure = plt.gcf()
        for axes in figure.axes:
            _thin_labels(axes.yaxis)
            if sum(map(len, _thin_labels(axes.xaxis))) > LINE_LENGTH:
                axes.tick_params("x", rotation=90)
        figure.savefig(path, dpi=110, bbox_inches="tight")
    except (ValueError, RuntimeError, ImportError) as error:
        logger.warning("no %s: %s", path.name, error)
    finally:
        plt.close("all")


def _thin_labels(axis: Axis) -> list[str]:
    """Label at most `MOST_LABELS` places, evenly spread, and return the labels.

    Optuna labels each value of a choice, which nobody can read where there are many. A thousand
    labels take half a minute to draw.
    """
    places = list(axis.get_ticklocs())
    words = axis.get_major_formatter().format_ticks(places)
    step = -(-len(places) // MOST_LABELS)
    if step > 1:
        places, words = places[::step], words[::step]
        axis.set_ticks(places, words)
    return words


def main() -> None:
    """Draw what the input asks for."""
    mpl.use("Agg")
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    draw(Path(sys.argv[1]), json.load(sys.stdin))


if __name__ == "__main__":
    main()

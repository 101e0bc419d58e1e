"""Optuna's plots of a search that is over, drawn by a process of their own.

`python -m eigensweep.workers.driver.plots FOLDER` reads spec and trials as JSON from its input.
Each arm is a study: an importance over arms that do not share a parameter would mean nothing.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import optuna
from optuna.trial import FrozenTrial, create_trial

from eigensweep.search_spaces.labels import shorten_paths
from eigensweep.search_spaces.space import Space
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.workers.driver.study import DIRECTIONS, make_distribution
from eigensweep.workers.shared.messages import Json

logger = logging.getLogger(__name__)

Plot = Callable[..., Any]


def draw(folder: Path, order: Json) -> None:
    """Write the history of the search, and three plots of each arm that varies something."""
    spec = ExperimentSpec.from_stored(order["spec"])
    space, better = spec.space(), spec.objective_metric.better
    studies = {}
    for arm in space.arms:
        study = optuna.create_study(study_name=arm, direction=DIRECTIONS[better])
        study.add_trials([_trial(space, t) for t in order["trials"] if t["arm"] == arm])
        if len(study.trials) > 1:
            studies[arm] = study
    from optuna.visualization import matplotlib as shown

    name = spec.objective_metric.name
    _save(folder / "history.png", shown.plot_optimization_history, list(studies.values()), name)
    kinds: dict[str, Plot] = {
        "parallel": shown.plot_parallel_coordinate,
        "importance": shown.plot_param_importances,
        "slice": shown.plot_slice,
    }
    for arm, study in studies.items():
        if not any(trial.params for trial in study.trials):
            continue
        for kind, plot in kinds.items():
            file = f"{kind}-{re.sub(r'[^A-Za-z0-9_.-]', '_', arm)}.png"
            _save(folder / file, plot, study, name)


def _trial(space: Space, trial: Json) -> FrozenTrial:
    axes = space.axes(trial["arm"])
    labels = shorten_paths(axes)
    return create_trial(
        value=trial["value"],
        params={labels[path]: value for path, value in trial["params"].items()},
        distributions={labels[path]: make_distribution(axes[path]) for path in trial["params"]},
    )


def _save(path: Path, plot: Plot, subject: Any, target: str) -> None:
    """Write one plot; leave out what these trials do not allow, such as one value alone."""
    import matplotlib.pyplot as plt

    try:
        plot(subject, target=lambda trial: trial.value, target_name=target)
        plt.gcf().savefig(path, dpi=110, bbox_inches="tight")
    except (ValueError, RuntimeError, ImportError) as error:
        logger.warning("no %s: %s", path.name, error)
    finally:
        plt.close("all")


def main() -> None:
    """Draw what the input asks for."""
    mpl.use("Agg")
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    draw(Path(sys.argv[1]), json.load(sys.stdin))


if __name__ == "__main__":
    main()

"""Draw docs/quickstart.svg: the learning curves of a finished experiment, beside its baseline.

`python docs/draw_quickstart.py EXPERIMENT docs/quickstart.svg` asks the service for the trials and
MLflow for their curves.
"""

from __future__ import annotations

import sys
from typing import Any

import matplotlib.pyplot as plt
from mlflow import MlflowClient

from eigensweep import Client

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
LINES = ("-", "--", ":")


def read_curve(trial: dict[str, Any], metric: str) -> tuple[list[int], list[float]]:
    """Return steps and validation values of a trial, from its run in MLflow."""
    address, _, place = trial["links"]["mlflow"].partition("/#/")
    run = place.partition("?")[0].rpartition("/")[2]
    history = MlflowClient(address).get_metric_history(run, f"valid/{metric}")
    points = sorted((point.step, point.value) for point in history)
    return [step for step, _ in points], [value for _, value in points]


def draw(experiment_id: str, path: str) -> None:
    """Write the picture: a colour for each model, a line style for each of its trials."""
    with Client() as client:
        experiment = client.experiment(experiment_id)
        content, trials = experiment.content, experiment.listing()
    metric = content["metric"]["name"]
    plt.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "eigensweep", "font.size": 9}
    figure, axes = plt.subplots(figsize=(7.2, 3.1), layout="constrained")
    arms: dict[str, list[dict[str, Any]]] = {}
    for trial in sorted(trials, key=lambda each: each["number"]):
        arms.setdefault(trial["arm"], []).append(trial)
    for (arm, members), colour in zip(arms.items(), COLOURS, strict=False):
        for trial, style in zip(members, LINES, strict=False):
            rate = trial["params"]["optimizer.lr"]
            steps, values = read_curve(trial, metric)
            axes.plot(steps, values, style, color=colour, label=f"{arm}, learning rate {rate:g}")
    axes.axhline(content["baseline"], color="0.4", linewidth=1)
    axes.annotate(
        "memoryless baseline", (1, content["baseline"]), xycoords=("axes fraction", "data"),
        xytext=(-4, -10), textcoords="offset points", ha="right", fontsize=8, color="0.3",
    )  # fmt: skip
    axes.set(yscale="log", xlabel="training step", xmargin=0)
    axes.set_ylabel(f"validation {metric.replace('_', ' ')} ({content['metric']['unit']})")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    draw(*sys.argv[1:])

"""Find out which models learn: every model on a short copying task and on a short adding task.

`python -m bench.learning` posts the presets `every-model/copying` and `every-model/adding` to the
service of this machine, waits for them, and prints one table in Markdown: a row for each model,
with the step at which it came below half the memoryless baseline, and its best value.
`python -m bench.learning COPYING_ID ADDING_ID` posts nothing and reads these two experiments.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

from eigensweep.client import Client, Experiment
from eigensweep.models import MODELS
from eigensweep.models.base import Model
from eigensweep.reports.markdown import table

PRESETS = ("every-model/copying", "every-model/adding")
LEARNED = 0.5
"""A model has learned a task if its value is below this fraction of the baseline."""

HEAD = ("arm", "file", "paper", "free parameters", "constraint after training")


def main(ids: list[str]) -> None:
    """Print the table of two experiments: those with these ids, or new ones."""
    with Client() as client:
        found = [client.experiment(i) for i in ids] or [client.submit(name) for name in PRESETS]
        copying, adding = (e.wait() for e in found)
        by_arm = {t["arm"]: t for t in details(adding)}
        rows = []
        for trial in details(copying):
            other = by_arm.get(trial["arm"])
            verdicts = (verdict(copying, trial), "" if other is None else verdict(adding, other))
            rows.append((*about(trial), *verdicts))
            by_arm.pop(trial["arm"], None)
        rows += [(*about(trial), "", verdict(adding, trial)) for trial in by_arm.values()]
    sys.stdout.write("\n".join(table([*HEAD, "copying", "adding"], rows)) + "\n")


def details(experiment: Experiment) -> list[dict[str, Any]]:
    """Return the experiment's trials in full, by number."""
    numbers = sorted(trial["number"] for trial in experiment.listing())
    return [experiment.trial(number) for number in numbers]


def about(trial: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells that describe the model of a trial."""
    cls = MODELS[trial["config"]["model"]["name"]]
    file = f"models/{Path(inspect.getfile(cls)).name}"
    constraint = ((trial["result"] or {}).get("constraint") or {}).items()
    kept = ", ".join(f"{name} {value:.2g}" for name, value in constraint)
    count = (trial["parameters"] or {}).get("free")
    free = "" if count is None else f"{count:,}"
    return trial["arm"], f"[{file}]({file})", paper(cls), free, kept or "none"


def paper(cls: type[Model]) -> str:
    """Return authors, venue and year of a model's source, from the docstring of its file."""
    words = " ".join((inspect.getdoc(inspect.getmodule(cls)) or "").split())
    source = re.search(r"Source: (.+?\d{4})", re.sub(r'"[^"]*",? ?', "", words))
    return source[1] if source else ""


def verdict(experiment: Experiment, trial: dict[str, Any]) -> str:
    """Return whether and when a trial came below half the baseline, and its best value."""
    baseline = experiment.content["baseline"]
    if trial["value"] is None:
        return trial["state"]
    ratio = trial["value"] / baseline
    curve = experiment.curves(
        trial["number"], metric=f"valid/{experiment.content['metric']['name']}"
    )
    first = next(iter(curve.loc[curve["value"] < LEARNED * baseline, "step"]), None)
    if first is None:
        return f"no: {ratio:.2g} of the baseline"
    return f"yes, by step {first:,}; best {ratio:.1g} of the baseline"


if __name__ == "__main__":
    main(sys.argv[1:])

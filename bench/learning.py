"""Which models learn: every model at once on a short copying and a short adding task.

`python -m bench.learning` posts the presets `every-model/copying` and `every-model/adding` to the
service of this machine, waits, and prints one table. With two ids it reads those experiments.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

from eigensweep.models import MODELS
from eigensweep.models.base import Model
from eigensweep.service.client import Client, Experiment

PRESETS = ("every-model/copying", "every-model/adding")
LEARNED = 0.5
"""Share of the baseline that a model must get below."""

HEAD = ("arm", "file", "paper", "free parameters", "constraint after training")


def main(ids: list[str]) -> None:
    """Print the table of two experiments, posted now unless their ids are given."""
    with Client() as client:
        found = [client.experiment(i) for i in ids] or [client.submit(name) for name in PRESETS]
        copying, adding = (e.wait() for e in found)
        by_arm = {t["arm"]: t for t in details(adding)}
        rows = []
        for trial in details(copying):
            other = by_arm.get(trial["arm"])
            learned = (verdict(copying, trial), "" if other is None else verdict(adding, other))
            rows.append((*about(trial), *learned))
            by_arm.pop(trial["arm"], None)
        rows += [(*about(trial), "", verdict(adding, trial)) for trial in by_arm.values()]
    print_table([(*HEAD, "copying", "adding"), *rows])


def details(experiment: Experiment) -> list[dict[str, Any]]:
    """Return the experiment's trials in full, by number."""
    numbers = sorted(trial["number"] for trial in experiment.listing())
    return [experiment.trial(number) for number in numbers]


def about(trial: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells that say what a trial's model is."""
    cls = MODELS[trial["config"]["model"]["name"]]
    file = f"models/{Path(inspect.getfile(cls)).name}"
    constraint = ((trial["result"] or {}).get("constraint") or {}).items()
    kept = ", ".join(f"{name} {value:.2g}" for name, value in constraint)
    count = (trial["parameters"] or {}).get("free")
    free = "" if count is None else f"{count:,}"
    return trial["arm"], f"[{file}]({file})", paper(cls), free, kept or "none"


def paper(cls: type[Model]) -> str:
    """Return authors, place and year of a model's source, from the docstring of its file."""
    words = " ".join((inspect.getdoc(inspect.getmodule(cls)) or "").split())
    source = re.search(r"Source: (.+?\d{4})", re.sub(r'"[^"]*",? ?', "", words))
    return source[1] if source else ""


def verdict(experiment: Experiment, trial: dict[str, Any]) -> str:
    """Return whether and when a trial came below half the baseline, and how far it got."""
    baseline = experiment.content["baseline"]
    if trial["value"] is None:
        return trial["state"]
    ratio = trial["value"] / baseline
    steps = (
        report["step"]
        for report in trial["reports"]
        if report["metrics"].get("objective", baseline) < LEARNED * baseline
    )
    first = next(steps, None)
    if first is None:
        return f"no: {ratio:.2g} of the baseline"
    return f"yes, by step {first:,}; best {ratio:.1g} of the baseline"


def print_table(rows: list[tuple[str, ...]]) -> None:
    """Print rows as Markdown, the first one as the head."""
    head, *body = rows
    lines = [head, ("---",) * len(head), *body]
    sys.stdout.write("".join(f"| {' | '.join(row)} |\n" for row in lines))


if __name__ == "__main__":
    main(sys.argv[1:])

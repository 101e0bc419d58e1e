"""Measure the time to draw a batch, beside the training step that uses it.

`python -m bench.drawing` trains a network on each task, at the papers' sizes. In the same rounds,
on one core, it takes the processor time of `Task.train_batch` and of the training step. It prints
one table: a row for each task with both times and the share of drawing in their sum, each a median
over rounds. Corpora are read before the first round; a task whose corpus is missing is left out.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import torch

from bench.report import (
    add_json,
    add_quick,
    add_seconds,
    describe,
    new_parser,
    say,
    table,
    write,
)
from bench.rounds import median_of, ratio, settle, time_in_turns
from bench.steps import our_step
from bench.workloads import Material
from eigensweep.models import MODELS
from eigensweep.tasks import TASKS
from eigensweep.tasks.base import Batch
from eigensweep.tasks.corpus import CorpusMissingError

FLOOR_PERCENT = 5.0
"""Largest share of drawing that we accept."""

COLUMNS = {
    "case": "task",
    "batch": "B",
    "length": "T",
    "model": "model",
    "hidden_size": "n",
    "draw_ms": "drawing ms",
    "step_ms": "step ms",
    "share_percent": "share %",
    "within_floor": f"under {FLOOR_PERCENT:g} %",
}


@dataclass(frozen=True)
class Case:
    """A task and the network that trains on it. Parts of the state are given as fractions of n."""

    task: dict[str, Any]
    model: dict[str, Any]
    quick: dict[str, Any]
    """Other fields of the task for a quick run."""

    def small(self) -> Case:
        """Return the case with small sizes, for a quick run."""
        task = self.task | {"batch_size": 2} | self.quick
        return replace(self, task=task, model=self.model | {"hidden_size": 32})


def enrnn(hidden_size: int, short: float, negative: float, **fields: Any) -> dict[str, Any]:
    """Return the config of an ENRNN."""
    shares = {"short_fraction": short, "negative_fraction": negative}
    return {"name": "enrnn", "hidden_size": hidden_size, **shares, **fields}


CASES = (
    Case({"name": "adding", "length": 750, "batch_size": 50}, enrnn(160, 0.4, 0.3), {"length": 20}),
    Case({"name": "copying", "delay": 2000, "batch_size": 20}, enrnn(192, 0.1, 0.3), {"delay": 9}),
    Case(
        {"name": "copying", "delay": 1000, "batch_size": 128, "marker": "at_marker"},
        {"name": "asrnn", "hidden_size": 138},
        {"delay": 9},
    ),
    Case({"name": "variable_copying", "batch_size": 20}, {"name": "lt_rnn", "hidden_size": 80}, {}),
    Case({"name": "denoise", "batch_size": 128}, {"name": "goru", "hidden_size": 128}, {}),
    Case({"name": "pixel_mnist", "batch_size": 128}, {"name": "asrnn", "hidden_size": 122}, {}),
    Case(
        {"name": "ptb_chars", "reading": "raw", "batch_size": 32, "bptt": 50},
        enrnn(1030, 0.7, 0.6, encoder="embedding", activation="relu"),
        {"bptt": 9},
    ),
    Case(
        {"name": "ptb_chars", "reading": "tokens", "batch_size": 128, "bptt": 150},
        {"name": "asrnn", "hidden_size": 1024, "encoder": "embedding", "embedding_size": 200},
        {"bptt": 9},
    ),
    Case(
        {"name": "speech_frames", "corpus": "fsdd", "batch_size": 28},
        enrnn(468, 0.2, 1.0, coupled=False),
        {},
    ),
)


def measure(case: Case, rounds: int, seconds: float) -> dict[str, Any]:
    """Return the times of a case as a row of the table. The batches are those of successive steps.

    Raises:
        CorpusMissingError: if the task's corpus is missing.
    """
    root = os.environ.get("EIGENSWEEP_DATA_ROOT")
    config = TASKS[case.task["name"]].Config(**case.task)
    task = TASKS[config.name](config, Path(root) if root else None)
    torch.manual_seed(0)
    name = case.model["name"]
    model = MODELS[name](MODELS[name].Config(**case.model), config.shapes)
    step, numbers = our_step(model), count()
    drawn: list[Batch] = []

    def draw() -> Batch:
        drawn[:] = [task.train_batch(next(numbers), 1)]
        return drawn[0]

    def train() -> None:
        (batch,) = drawn
        step.on(Material(task, batch, batch.x, "task"))()

    length, batch_size = draw().x.shape[:2]
    times = time_in_turns({"draw": draw, "step": train}, rounds, seconds)
    both = [d + s for d, s in zip(times["draw"], times["step"], strict=True)]
    share = 100 * ratio(times["draw"], both)
    return {
        "case": config.name,
        "batch": batch_size,
        "length": length,
        "model": name,
        "hidden_size": model.hidden_size,
        "draw_ms": median_of(times["draw"]),
        "step_ms": median_of(times["step"]),
        "share_percent": share,
        "within_floor": share <= FLOOR_PERCENT,
    }


def main() -> None:
    """Measure, print a table, and write the numbers as JSON."""
    parser = new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="rounds; default: %(default)s")
    add_seconds(parser)
    add_quick(parser)
    add_json(parser, "drawing")
    given = parser.parse_args()
    environment = settle()
    describe(environment)
    rows, left_out = [], []
    for case in CASES:
        try:
            rows.append(measure(case.small() if given.quick else case, given.rounds, given.seconds))
        except CorpusMissingError as error:
            left_out.append({"case": case.task["name"], "why": str(error)})
    say("\n" + table(rows, COLUMNS))
    for case_left in left_out:
        say(f"left out: {case_left['case']}: {case_left['why']}")
    write({"environment": environment, "cases": rows, "left_out": left_out}, given.json)


if __name__ == "__main__":
    main()

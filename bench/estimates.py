"""How far the guess of a training's time, which previews show, is from the time that it takes.

    python -m bench.estimates [NAME ...]

Each distinct size among the short experiments of the named reproductions (default: all whose
corpora are there) trains alone on one thread for two seconds. What counts is the processor's time
of a step without evaluations, so that other work on the machine matters little. A ratio of 2 means
that a step takes twice as long as the preview says.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from bench.report import add_json, new_parser, say, table, write
from eigensweep.search_spaces.checks.preview import training_seconds
from eigensweep.search_spaces.shipped.reproductions import (
    find_missing_corpora,
    make_specs,
    suite_names,
)
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.training.training import Training

WARM_UP, SECONDS = 3, 2.0
HEADINGS = {
    "suite": "reproduction",
    "model": "model",
    "n": "n",
    "batch": "batch",
    "length": "length",
    "guess_ms": "guess, ms",
    "measured_ms": "measured, ms",
    "ratio": "ratio",
}


def find_cases(names: list[str], data_root: Path | None) -> Iterator[tuple[str, TrialConfig]]:
    """Yield the name of a reproduction with a configuration, each size and model once."""
    seen = set()
    for name in names:
        if find_missing_corpora(name, data_root):
            continue
        for spec in make_specs(name, "short").values():
            space = spec.space()
            for arm in space.arms:
                config = spec.trial(next(space.corners(arm))).resolve()
                task = config.task
                size = (config.model.name, config.model.hidden_size, task.batch_size)
                if (*size, task.sequence_length) not in seen:
                    seen.add((*size, task.sequence_length))
                    yield name, config


def measure(config: TrialConfig, data_root: Path | None) -> float:
    """Return the processor's seconds of one training step."""
    training = Training(config, 0, data_root=data_root)
    torch.set_flush_denormal(True)
    for _ in range(WARM_UP):
        training.take_step()
    began, taken = time.process_time(), 0
    while time.process_time() - began < SECONDS or not taken:
        training.take_step()
        taken += 1
    return (time.process_time() - began) / taken


def main() -> None:
    """Measure, print a line for each size, and write the numbers as JSON."""
    parser = new_parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: every reproduction")
    add_json(parser, "estimates")
    given = parser.parse_args()
    root = os.environ.get("EIGENSWEEP_DATA_ROOT")
    data_root = Path(root) if root else None
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for name, config in find_cases(given.names or suite_names(), data_root):
        assert config.training.steps is not None
        guess = training_seconds(config) / config.training.steps
        row: dict[str, Any] = {
            "suite": name,
            "model": config.model.name,
            "n": config.model.hidden_size,
            "batch": config.task.batch_size,
            "length": config.task.sequence_length,
            "guess_ms": 1e3 * guess,
            "measured_ms": 1e3 * measure(config, data_root),
        }
        rows.append(row | {"ratio": row["measured_ms"] / row["guess_ms"]})
        say(f"{name} {row['model']} {row['n']}: {rows[-1]['ratio']:.2f}")
    ratios = [row["ratio"] for row in rows]
    low, *_, high = quantiles(ratios, n=10) if len(ratios) > 1 else ratios * 2
    say(table(rows, HEADINGS))
    say(f"ratio: median {median(ratios):.2f}, 80 % lie between {low:.2f} and {high:.2f}")
    write({"sizes": rows}, given.json)


if __name__ == "__main__":
    main()

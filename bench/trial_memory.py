"""How far the guess of a trial's memory, which previews show, is from the memory that it takes.

    python -m bench.trial_memory [NAME ...]

Each case is one attempt at a trial on a CPU, in a process of its own that has only imported what a
trial's process imports: an evaluation, two steps, another evaluation, and its commits. What counts
is the growth of the process's highest resident memory (Linux only), without the pages of libraries
that were touched meanwhile: all processes share those. A ratio of 2 means that the trial takes
twice what the preview says. The last line is the memory of the process before that.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from statistics import median
from typing import Any

from bench.memory import reset_peak, resident_bytes, resident_peak
from bench.report import add_json, new_parser, say, table, write
from eigensweep.protocol.code import own_code
from eigensweep.protocol.messages import Order
from eigensweep.search_spaces.checks.memory import PROCESS, estimate_memory
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.training import attempt
from eigensweep.training.memory import private_bytes, use_one_heap

Sizes = dict[str, Any]

CASES: dict[str, tuple[Sizes, Sizes]] = {
    "small": (
        {"name": "copying", "delay": 50, "batch_size": 20},
        {"name": "scornn", "hidden_size": 32, "negative_ones": 8},
    ),
    "copying": (
        {"name": "copying", "delay": 2000, "batch_size": 20},
        {"name": "scornn", "hidden_size": 190, "negative_ones": 95},
    ),
    "copying-lstm": (
        {"name": "copying", "delay": 1000, "batch_size": 64},
        {"name": "lstm", "hidden_size": 128},
    ),
    "copying-gru": (
        {"name": "copying", "delay": 1000, "batch_size": 64},
        {"name": "gru", "hidden_size": 128},
    ),
    "adding": (
        {"name": "adding", "length": 750, "batch_size": 50},
        {"name": "exprnn", "hidden_size": 170},
    ),
    "mnist": (
        {"name": "pixel_mnist", "batch_size": 128},
        {"name": "exprnn", "hidden_size": 170},
    ),
    "mnist-urnn": (
        {"name": "pixel_mnist", "batch_size": 64},
        {"name": "urnn", "hidden_size": 128},
    ),
    "ptb-asrnn": (
        {"name": "ptb_chars", "batch_size": 128, "bptt": 150},
        {"name": "asrnn", "hidden_size": 1024},
    ),
    "ptb-exprnn": (
        {"name": "ptb_chars", "batch_size": 64, "bptt": 150},
        {"name": "exprnn", "hidden_size": 1024},
    ),
    "mnist-goru": (
        {"name": "pixel_mnist", "batch_size": 64},
        {"name": "goru", "hidden_size": 128, "style": "tunable"},
    ),
    "copying-nnrnn": (
        {"name": "copying", "delay": 500, "batch_size": 64},
        {"name": "nnrnn", "hidden_size": 128},
    ),
    "wide-lstm": (
        {"name": "copying", "delay": 10, "batch_size": 8},
        {"name": "lstm", "hidden_size": 1024},
    ),
}
"""Task and model; the optimizer is Adam, which keeps the most of each parameter."""

HEADINGS = {
    "case": "case",
    "model": "model",
    "n": "n",
    "batch": "batch",
    "length": "length",
    "guess_mb": "guess, MB",
    "measured_mb": "measured, MB",
    "ratio": "ratio",
}


def make_config(name: str) -> TrialConfig:
    """Return the configuration of a case."""
    task, model = CASES[name]
    return TrialConfig.from_dict(
        {"task": task, "model": model, "training": {"steps": 2, "evaluate_every": 2}}
    ).resolve()


def measure(config: TrialConfig) -> tuple[int, int]:
    """Return the bytes that an attempt adds to this process at most, and those that it had."""
    use_one_heap()
    reset_peak()
    own, before = private_bytes() or 0, resident_peak()
    files = before - own
    with tempfile.TemporaryDirectory() as folder:
        order = Order(
            experiment="e",
            number=0,
            attempt=1,
            config=config.model_dump(mode="json"),
            rungs=(2,),
            storage=folder,
            resources={"CPU": 1},
            code=own_code(),
            data_root=os.environ.get("EIGENSWEEP_DATA_ROOT"),
        )
        attempt.Attempt(order, "cpu").advance()
    files_grown = resident_bytes() - (private_bytes() or 0) - files
    return resident_peak() - before - files_grown, own


def main() -> None:
    """Measure, print a line for each case, and write the numbers as JSON."""
    parser = new_parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: every case")
    add_json(parser, "trial-memory")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    context, base = multiprocessing.get_context("spawn"), 0
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        for name in given.names or CASES:
            config = make_config(name)
            measured, base = pool.submit(measure, config).result()
            guess = estimate_memory(config).host - PROCESS
            row: dict[str, Any] = {
                "case": name,
                "model": config.model.name,
                "n": config.model.hidden_size,
                "batch": config.task.batch_size,
                "length": config.task.sequence_length,
                "guess_mb": guess / 1e6,
                "measured_mb": measured / 1e6,
            }
            rows.append(row | {"ratio": measured / guess})
            say(f"{name}: {rows[-1]['ratio']:.2f}")
    say(table(rows, HEADINGS))
    say(f"ratio: median {median(row['ratio'] for row in rows):.2f}")
    say(f"private memory of the process before: {base / 1e6:.0f} MB")
    write({"cases": rows, "base_mb": base / 1e6}, given.json)


if __name__ == "__main__":
    main()

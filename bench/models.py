"""What a training step costs: our models, plain loops, nn.LSTM, and matrix products alone.

`python -m bench.models` takes for each workload, in one process, one thread on one core, in turn
in every round, the processor time of a training step of

- each model, through its ordinary `forward` and the task's own loss;
- a plain PyTorch loop with the same parameters, written as the papers' programs are
  (`bench/authors.py`);
- nn.LSTM with as many parameters as the model, by our count: those that are free (an orthogonal
  matrix has n (n - 1) / 2), and those that are stored;
- the model's matrix products alone: the limit (`bench/limits.py`);

and in fresh processes the peak memory of the first two. Times are medians over rounds, ratios
medians of the ratios within rounds.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench import plots
from bench.limits import operations, step_product, weight_product
from bench.memory import Kind, peaks_mb
from bench.report import describe, say, table, write
from bench.rounds import interleaved, middle, ratio, settle
from bench.steps import loop_step, lstm_step, our_step
from bench.workloads import (
    WORKLOADS,
    Workload,
    lstm_size,
    material,
    network,
    small,
    trained_models,
)

COLUMNS = {
    "model": "model",
    "parameters": "parameters",
    "ours_ms": "ours ms",
    "loop_ms": "loop ms",
    "loop_ratio": "loop/ours",
    "lstm_size": "LSTM n",
    "lstm_ms": "LSTM ms",
    "lstm_ratio": "LSTM/ours",
    "stored_size": "stored n",
    "stored_ratio": "stored/ours",
    "limit_ms": "limit ms",
    "limit_ratio": "ours/limit",
    "ours_mb": "ours MB",
    "loop_mb": "loop MB",
    "memory_ratio": "loop/ours MB",
}


def measured(
    workload: Workload, models: Sequence[str], rounds: int, seconds: float
) -> dict[str, Any]:
    """Return what the steps of a workload cost."""
    given = material(workload.config())
    length, batch = given.values.shape[:2]
    n, shapes = workload.hidden_size, given.shapes
    step, weight = step_product(batch, n), weight_product(batch, n, length)
    variants: dict[str, Callable[[], object]] = {"products/step": step, "products/weight": weight}
    sizes, stored, counts, work = {}, {}, {}, {}
    for name in models:
        model = network(name, n, shapes)
        counts[name] = model.count_parameters("free")
        sizes[name] = lstm_size(counts[name], shapes)
        stored[name] = lstm_size(model.count_parameters("stored"), shapes)
        work[name] = operations(model, batch, length)
        if (loop := loop_step(model)) is not None:
            variants[f"loop/{name}"] = loop.on(given)
        variants[f"ours/{name}"] = our_step(model).on(given)
    for size in {*sizes.values(), *stored.values()}:
        variants[f"lstm/{size}"] = lstm_step(size, given).on(given)
    times = interleaved(variants, rounds, seconds)
    rows = []
    for name in models:
        ours, lstm = times[f"ours/{name}"], times[f"lstm/{sizes[name]}"]
        limit = [
            work[name].states / step.operations * s + work[name].weights / weight.operations * w
            for s, w in zip(times["products/step"], times["products/weight"], strict=True)
        ]
        row = {
            "model": name,
            "parameters": counts[name],
            "ours_ms": middle(ours),
            "lstm_size": sizes[name],
            "lstm_ms": middle(lstm),
            "lstm_ratio": ratio(lstm, ours),
            "stored_size": stored[name],
            "stored_ratio": ratio(times[f"lstm/{stored[name]}"], ours),
            "limit_ms": middle(limit),
            "limit_ratio": ratio(ours, limit),
        }
        if (loops := times.get(f"loop/{name}")) is not None:
            row |= {"loop_ms": middle(loops), "loop_ratio": ratio(loops, ours)}
        rows.append(row)
    gflops = {
        "step_gflops": step.operations / middle(times["products/step"]) / 1e6,
        "weight_gflops": weight.operations / middle(times["products/weight"]) / 1e6,
    }
    return {
        "workload": workload.name,
        "title": workload.title(),
        "batch": batch,
        "hidden_size": n,
        "length": length,
        "data": given.source,
        "floor": workload.floor,
        "rounds": rounds,
        **gflops,
        "rows": rows,
    }


def add_memory(rows: Sequence[dict[str, Any]], workload: Workload) -> None:
    """Add the peak memory of each model and of its loop to the rows of a workload."""
    kinds: tuple[Kind, ...] = ("ours", "loop")
    cases = [(row["model"], kind) for row in rows for kind in kinds]
    for (name, kind), megabytes in zip(cases, peaks_mb(workload, cases), strict=True):
        (row,) = (row for row in rows if row["model"] == name)
        if megabytes is not None:
            row[f"{kind}_mb"] = megabytes
    for row in rows:
        if row["ours_mb"] and "loop_mb" in row:
            row["memory_ratio"] = row["loop_mb"] / row["ours_mb"]


def arguments() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    some: dict[str, Any] = {"nargs": "+", "metavar": "NAME"}
    parser.add_argument("--workloads", **some, choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--models", **some, choices=trained_models(), default=trained_models())
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--seconds", type=float, default=10, help="after so many a variant takes part no more"
    )
    parser.add_argument("--no-memory", action="store_true", help="leave peak memory out")
    parser.add_argument("--quick", action="store_true", help="small shapes, to see that it works")
    parser.add_argument("--plot", type=Path, help="draw cost against T and n: PATH.png, PATH.svg")
    parser.add_argument("--plot-models", **some, default=["exprnn", "asrnn"])
    parser.add_argument("--json", type=Path, default=Path(".bench/models.json"))
    return parser.parse_args()


def main() -> None:
    """Measure, print a table for each workload, and write the numbers as JSON."""
    given = arguments()
    environment = settle()
    describe(environment)
    results = []
    for name in given.workloads:
        workload = small(WORKLOADS[name]) if given.quick else WORKLOADS[name]
        result = measured(workload, given.models, given.rounds, given.seconds)
        gc.collect()
        if workload.floor and not given.no_memory:
            add_memory(result["rows"], workload)
        results.append(result)
        rates = f"{result['step_gflops']:.0f} and {result['weight_gflops']:.0f} GFLOP/s"
        say(f"\n{result['title']}; products of a step and of the weight gradient: {rates}")
        say(table(result["rows"], COLUMNS))
    numbers: dict[str, Any] = {"environment": environment, "workloads": results}
    if given.plot:
        sweeps = plots.sweeps(given.quick)
        numbers["sweeps"] = {
            axis: [measured(w, given.plot_models, given.rounds, given.seconds) for w in points]
            for axis, points in sweeps.items()
        }
        for path in plots.draw(numbers["sweeps"], given.plot):
            say(f"drawn: {path}")
    write(numbers, given.json)


if __name__ == "__main__":
    main()

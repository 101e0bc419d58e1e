"""Measure a training step of our models, beside plain loops, nn.LSTM and bare matrix products.

`python -m bench.models` prints one table for each workload, with a row for each model. All variants
of a workload run in turn, in every round, in one process with one thread on one core. The columns
are processor times of one training step, and ratios of them:

  ours          the model, through its ordinary `forward` and the task's own loss
  loop          a plain PyTorch loop with the same parameters, written as the papers' programs are
                (bench/authors.py)
  LSTM, stored  nn.LSTM with at most as many parameters as the model: its free parameters (an
                orthogonal matrix has n (n - 1) / 2), and its stored parameters
  nn.GRU        nn.GRU of the same size, beside our GRU
  limit         the model's matrix products alone, at the rates of torch.mm (bench/limits.py)
  % of peak     the operations of these products in the time of our step, as a share of the most
                that the core can do in float32
  MB            peak memory of a step, in 10^6 bytes, measured in a process of its own

Above it stand the time of an exponential of n x n with its gradient, and how many products of two
such matrices take as long.

A time is the median over rounds; a ratio is the median of the ratios within rounds.

`python -m bench.models --plot PATH` also draws the cost against sequence length and hidden size.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from bench import plots
from bench.limits import operations, peak, step_product, weight_product
from bench.memory import Kind, peaks_mb
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
from bench.steps import exponential_step, loop_step, lstm_step, our_step
from bench.workloads import (
    WORKLOADS,
    Workload,
    lstm_size,
    material,
    network,
    small,
    trainable_models,
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
    "gru_ratio": "nn.GRU/ours",
    "limit_ms": "limit ms",
    "limit_ratio": "ours/limit",
    "peak_percent": "% of peak",
    "ours_mb": "ours MB",
    "loop_mb": "loop MB",
    "memory_ratio": "loop/ours MB",
}


def measure(
    workload: Workload, models: Sequence[str], rounds: int, seconds: float
) -> dict[str, Any]:
    """Return the times of a workload: a row for each model, and the rates of matrix products."""
    given = material(workload.config())
    length, batch = given.values.shape[:2]
    n, shapes = workload.hidden_size, given.shapes
    step, weight = step_product(batch, n), weight_product(batch, n, length)
    variants: dict[str, Callable[[], object]] = {"products/step": step, "products/weight": weight}
    square = step_product(n, n)
    variants |= {"exponential": exponential_step(n), "products/square": square}
    if "gru" in models:
        variants["nn.GRU"] = lstm_step(n, given, nn.GRU).on(given)
    if (core := peak()) is not None:
        variants["peak"] = core
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
    times = time_in_turns(variants, rounds, seconds)
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
            "ours_ms": median_of(ours),
            "lstm_size": sizes[name],
            "lstm_ms": median_of(lstm),
            "lstm_ratio": ratio(lstm, ours),
            "stored_size": stored[name],
            "stored_ratio": ratio(times[f"lstm/{stored[name]}"], ours),
            "limit_ms": median_of(limit),
            "limit_ratio": ratio(ours, limit),
        }
        if core is not None:
            at_peak = [t * work[name].all / core.operations for t in times["peak"]]
            row["peak_percent"] = 100 * ratio(at_peak, ours)
        if name == "gru":
            row["gru_ratio"] = ratio(times["nn.GRU"], ours)
        if (loops := times.get(f"loop/{name}")) is not None:
            row |= {"loop_ms": median_of(loops), "loop_ratio": ratio(loops, ours)}
        rows.append(row)
    gflops = {
        "step_gflops": step.operations / median_of(times["products/step"]) / 1e6,
        "weight_gflops": weight.operations / median_of(times["products/weight"]) / 1e6,
    }
    if core is not None:
        gflops["peak_gflops"] = core.operations / median_of(times["peak"]) / 1e6
    return {
        "workload": workload.name,
        "title": workload.title(),
        "batch": batch,
        "hidden_size": n,
        "length": length,
        "data": given.source,
        "floor": workload.floor,
        "rounds": rounds,
        "exponential_ms": median_of(times["exponential"]),
        "exponential_products": square.repeats
        * ratio(times["exponential"], times["products/square"]),
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


def parse_arguments() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = new_parser(__doc__)
    some: dict[str, Any] = {"nargs": "+", "metavar": "NAME"}
    workloads, models = list(WORKLOADS), trainable_models()
    parser.add_argument(
        "--workloads",
        **some,
        choices=workloads,
        default=workloads,
        help=f"some of {', '.join(workloads)}; default: all",
    )
    parser.add_argument(
        "--models",
        **some,
        choices=models,
        default=models,
        help=f"some of {', '.join(models)}; default: all",
    )
    parser.add_argument("--rounds", type=int, default=9, help="rounds; default: %(default)s")
    add_seconds(parser)
    parser.add_argument("--no-memory", action="store_true", help="do not measure peak memory")
    add_quick(parser)
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="PATH",
        help="also draw the cost against T and n, as PATH.png and PATH.svg",
    )
    parser.add_argument(
        "--plot-models",
        **some,
        choices=models,
        default=["exprnn", "asrnn"],
        help="models to draw; default: exprnn asrnn",
    )
    add_json(parser, "models")
    return parser.parse_args()


def main() -> None:
    """Measure, print a table for each workload, and write the numbers as JSON."""
    given = parse_arguments()
    environment = settle()
    describe(environment)
    results = []
    for name in given.workloads:
        workload = small(WORKLOADS[name]) if given.quick else WORKLOADS[name]
        result = measure(workload, given.models, given.rounds, given.seconds)
        gc.collect()
        if workload.floor and not given.no_memory:
            add_memory(result["rows"], workload)
        results.append(result)
        rates = f"{result['step_gflops']:.0f} and {result['weight_gflops']:.0f} GFLOP/s"
        if "peak_gflops" in result:
            rates += f"; the core's peak: {result['peak_gflops']:.0f} GFLOP/s"
        rates += (
            f"; an exponential with its gradient: {result['exponential_ms']:.1f} ms,"
            f" {result['exponential_products']:.1f} products of its matrices"
        )
        say(f"\n{result['title']}; products of a step and of the weight gradient: {rates}")
        say(table(result["rows"], COLUMNS))
    numbers: dict[str, Any] = {"environment": environment, "workloads": results}
    if given.plot:
        sweeps = plots.sweeps(given.quick)
        numbers["sweeps"] = {
            axis: [measure(w, given.plot_models, given.rounds, given.seconds) for w in points]
            for axis, points in sweeps.items()
        }
        for path in plots.draw(numbers["sweeps"], given.plot):
            say(f"drawn: {path}")
    write(numbers, given.json)


if __name__ == "__main__":
    main()

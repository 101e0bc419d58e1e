"""1 to 128 lanes of one workload: time of a step, trials an hour, memory and cost."""

from __future__ import annotations

import gc
from functools import partial
from statistics import median
from typing import Any

import torch

from bench.gpu.one_lane import train
from bench.gpu.predictions import STEP_MS, compare
from bench.gpu.sections import Notes, Plan
from bench.gpu.trials import Lanes
from bench.gpu.turns import Later, ratio, time_in_turns
from bench.report import say, table
from bench.workloads import WORKLOADS, small

WORKLOAD, MODEL = "copying-20", "exprnn"

COUNTS = (32, 1, 2, 4, 8, 16, 26, 64, 128)
"""Numbers of lanes, the one that the goal speaks of first."""

COLUMNS = {
    "lanes": "lanes",
    "ms": "ms a step",
    "predicted": "predicted ms",
    "steps": "lane-steps a second",
    "core": "x one CPU core",
    "trials": "trials an hour",
    "seconds": "GPU seconds a trial",
    "cost": "cost of a trial",
    "memory": "memory MB",
}


def measure(plan: Plan, notes: Notes) -> None:
    """Measure each number of lanes beside one CPU core, and print a table."""
    counts = COUNTS[1:4] if plan.quick else COUNTS
    workload = small(WORKLOADS[WORKLOAD]) if plan.quick else WORKLOADS[WORKLOAD]
    say(f"{workload.title()}, {MODEL}; a trial has {plan.trial_steps} steps")
    core = Later(partial(train, workload, MODEL, "cpu"))
    rows: list[dict[str, Any]] = notes.parts.get(WORKLOAD, {}).get("rows", [])
    for number, lanes in enumerate(counts):
        name = f"{lanes} lanes"
        if name in notes.failed or lanes in [row["lanes"] for row in rows]:
            continue
        if notes.seconds_left < 3:
            say(f"{name}: left out, there is no time")
            continue
        forget_memory(plan)
        works = {"lanes": Later(partial(Lanes, workload, MODEL, lanes, plan.device)), "core": core}
        seconds = notes.seconds_left / (len(counts) - number)
        times = time_in_turns(works, notes, name, seconds)
        if "lanes" in times:
            rows.append(row := make_row(lanes, times, plan))
            say(f"{name}: {row['ms']:.3g} ms a step, {row['steps']:.4g} lane-steps a second")
            rows.sort(key=lambda row: row["lanes"])
            notes.keep(WORKLOAD, {"title": workload.title(), "rows": rows})
    say("\n" + table(rows, COLUMNS))
    wanted = counts[0]
    for row in rows:
        if row["lanes"] == wanted and "core" in row:
            notes.reach({"lanes": row["core"]})


def make_row(lanes: int, times: dict[str, list[float]], plan: Plan) -> dict[str, Any]:
    """Return the row of a number of lanes; cost only where a price is given."""
    ms = median(times["lanes"])
    steps = 1e3 * lanes / ms
    row: dict[str, Any] = {
        "lanes": lanes,
        "ms": ms,
        "steps": steps,
        "trials": 3_600 * steps / plan.trial_steps,
        "seconds": plan.trial_steps / steps,
    }
    if "core" in times:
        row["core"] = lanes * ratio(times["core"], times["lanes"])
    if plan.price is not None:
        row["cost"] = plan.price * row["seconds"] / 3_600
    if not plan.is_trial_run:
        row["predicted"] = compare(ms, STEP_MS.get((WORKLOAD, MODEL, lanes)))
    if plan.on_gpu:
        row["memory"] = torch.cuda.max_memory_reserved(plan.device) / 1e6
    return row


def forget_memory(plan: Plan) -> None:
    """Give back what earlier lanes held, and begin to watch the memory anew."""
    gc.collect()
    if plan.on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(plan.device)

"""Each model of the registry with one lane and with eight, on a short copying task."""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import Any

from bench.gpu.lanes import forget_memory
from bench.gpu.sections import Notes, Plan
from bench.gpu.trials import Lanes, make_config
from bench.gpu.turns import Later, time_in_turns
from bench.report import say, table
from bench.workloads import copying, small, trainable_models
from eigensweep.models import MODELS
from eigensweep.training.lanes.stacked.group import explain_alone

COUNTS = (1, 8)
ROUNDS = 3

COLUMNS = {
    "model": "model",
    "one": "1 lane, ms",
    "eight": "8 lanes, ms",
    "gain": "gain",
    "how": "runs",
}


def measure(plan: Plan, notes: Notes) -> None:
    """Measure every model that is not measured yet, and print a line for each."""
    workload = copying("every-model", 96, 20, 200)
    workload = small(workload) if plan.quick else workload
    say(workload.title())
    models = trainable_models()
    for number, model in enumerate(models):
        if model in notes.parts:
            continue
        if notes.seconds_left < 1:
            say(f"{model}: left out, there is no time")
            continue
        if plan.is_wrong(model):
            notes.fail(model, "not timed: the tests of its kernel, or of lanes, did not go well")
            continue
        if reason := explain_alone(make_config(workload, model)):
            notes.keep(model, {"model": model, "how": f"alone: {reason}"})
            continue
        works = {
            f"{lanes} lanes": Later(partial(Lanes, workload, model, lanes, plan.device))
            for lanes in COUNTS
        }
        forget_memory(plan)
        seconds = notes.seconds_left / (len(models) - number)
        times = time_in_turns(works, notes, model, seconds, ROUNDS)
        row: dict[str, Any] = {"model": model, "how": "failed"}
        if len(times) == len(COUNTS):
            one, eight = (median(each) for each in times.values())
            row |= {"one": one, "eight": eight, "gain": 8 * one / eight}
            row["how"] = tell_how(model, works[f"{COUNTS[-1]} lanes"])
        notes.keep(model, row)
        say(f"{model}: {' and '.join(f'{median(times[n]):.3g} ms with {n}' for n in times)}")
    say("\n" + table(list(notes.parts.values()), COLUMNS))


def tell_how(model: str, work: Later) -> str:
    """Return whether the lanes replayed a CUDA graph, and why the model does not allow it."""
    if isinstance(work.work, Lanes) and work.work.group.is_captured:
        return "in lanes, as a graph"
    reason = MODELS[model].not_static
    return f"in lanes, no graph: {reason}" if reason else "in lanes, no graph"

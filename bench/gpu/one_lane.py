"""One training step of one trial: with lanes, as a process alone takes it, by cuDNN, on one core.

Each of our variants takes whole steps of a trial: batches, loss, optimizer, bookkeeping. Those of
cuDNN take the same batch every time and keep no books.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bench.gpu.predictions import STEP_MS, compare
from bench.gpu.sections import Notes, Plan
from bench.gpu.trials import (
    Lanes,
    advance,
    is_in_kernels,
    make_config,
    make_training,
    without_kernels,
)
from bench.gpu.turns import Later, Work, ratio, repeat, time_in_turns
from bench.report import say, table
from bench.steps import Step
from bench.workloads import FIELDS, WORKLOADS, Material, Workload, material, network, small
from eigensweep.models import MODELS
from eigensweep.tasks.base import Shapes

LEAST_SECONDS = 5.0
"""With less time left no workload is begun."""

PAPER_MS = 620.0
"""An iteration of asRNN on copying, B=128, T=1020: the faster of the paper's two numbers."""

COLUMNS = {
    "variant": "variant",
    "graph": "CUDA graph",
    "ms": "ms a step",
    "predicted": "predicted ms",
    "loop": "x loop",
    "core": "x core",
    "paper": "x paper",
    "rnn": "x nn.RNN",
    "lstm": "x nn.LSTM",
}


@dataclass(frozen=True)
class Part:
    """A workload with the models that are measured on it."""

    workload: str
    models: tuple[str, ...]
    goals: dict[str, str]
    """Goal by what the first model's best variant is compared with."""
    with_core: bool = False
    with_cudnn: bool = False
    same_parameters: bool = False
    """Whether models have as many parameters as expRNN of the workload's size."""


PARTS = {
    "copying-20": Part(
        "copying-20",
        ("exprnn", "asrnn"),
        {"loop": "loop", "core": "core", "rnn": "rnn", "lstm": "lstm"},
        with_core=True,
        with_cudnn=True,
    ),
    "copying-128": Part("copying-128", ("asrnn",), {"paper": "paper"}, with_core=True),
    "mnist-512": Part("mnist-512", ("exprnn",), {"loop": "mnist-512"}),
    "ptb-32": Part("ptb-32", ("exprnn",), {"loop": "ptb-32"}),
    "gated": Part("copying-20", ("lstm", "gru", "goru"), {}, with_core=True, same_parameters=True),
    "ptb-128": Part("ptb-128", ("asrnn",), {"loop": "ptb-128"}),
}
"""The most important first."""


class Cudnn(nn.Module):
    """A network of cuDNN with a linear readout."""

    def __init__(self, cell: nn.RNN | nn.LSTM | nn.GRU, shapes: Shapes) -> None:
        super().__init__()
        self.cell = cell
        self.output = nn.Linear(cell.hidden_size, shapes.output_size)
        self.reads_all = shapes.readout == "all"

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, (τ, B, p) or (B, p), of values (τ, B, m)."""
        states, _ = self.cell(x)
        logits: Tensor = self.output(states if self.reads_all else states[-1])
        return logits


def measure(plan: Plan, notes: Notes) -> None:
    """Measure every workload that is not measured yet, and print a table for each."""
    for number, (name, part) in enumerate(PARTS.items()):
        if name in notes.parts:
            continue
        if notes.seconds_left < LEAST_SECONDS:
            say(f"\n{name}: left out, there is no time")
            continue
        seconds = notes.seconds_left / (len(PARTS) - number)
        notes.attempt(name, partial(measure_part, name, part, seconds, plan, notes))


def measure_part(name: str, part: Part, seconds: float, plan: Plan, notes: Notes) -> None:
    """Measure the variants of a workload in turns."""
    workload = WORKLOADS[part.workload]
    workload = small(workload) if plan.quick else workload
    say(f"\n{name}: {workload.title()}")
    works = make_works(part, workload, plan)
    times = time_in_turns(works, notes, name, seconds)
    rows = [make_row(variant, times) | {"graph": tell_graph(works[variant])} for variant in times]
    if not plan.is_trial_run:
        for row in rows:
            model, _, how = str(row["variant"]).partition(", ")
            if how == "one lane":
                row["predicted"] = compare(row["ms"], STEP_MS.get((part.workload, model, 1)))
    if "paper" in part.goals:
        rows = [row | {"paper": PAPER_MS / row["ms"]} for row in rows]
    say(table(rows, COLUMNS))
    ours = next((row for row in rows if row["variant"] in ours_of(part.models[0])), {})
    goals = {goal: ours[key] for key, goal in part.goals.items() if key in ours}
    notes.reach(goals)
    config = workload.config()
    found = {
        "title": workload.title(),
        "batch": config.batch_size,
        "hidden_size": workload.hidden_size,
        "length": config.sequence_length,
        "rounds": max(map(len, times.values()), default=0),
        "rows": rows,
        "ms": times,
    }
    notes.keep(name, found)


def ours_of(model: str) -> tuple[str, ...]:
    """Return the variants of a model that goals speak of, the one to take first."""
    return f"{model}, one lane", f"{model}, alone with kernel"


def tell_graph(work: Later) -> str | None:
    """Return whether lanes replay a CUDA graph; None for other work."""
    if not isinstance(work.work, Lanes):
        return None
    return "yes" if work.work.group.is_captured else "no"


def make_works(part: Part, workload: Workload, plan: Plan) -> dict[str, Later]:
    """Return the variants of a workload by name. Each is built when it is first called."""
    given = material(workload.config())
    works: dict[str, Later] = {}
    for model in part.models:
        if plan.is_wrong(model):
            say(f"{model} is not timed: the tests of its kernel, or of lanes, did not go well")
            continue
        size = workload.hidden_size
        if part.same_parameters:
            size = size_of(model, workload, given.shapes)
        sized = replace(workload, hidden_size=size)
        lane = partial(Lanes, sized, model, 1, plan.device)
        works[f"{model}, one lane"] = Later(lane)
        works[f"{model}, one lane, no graph"] = Later(partial(lane, capture=False))
        if is_in_kernels(model, size):
            works[f"{model}, alone with kernel"] = Later(partial(train, sized, model, plan.device))
            works[f"{model}, one lane, no kernel"] = Later(partial(no_kernels, lane))
        works[f"{model}, loop"] = Later(
            partial(no_kernels, partial(train, sized, model, plan.device))
        )
        if part.with_core:
            works[f"{model}, one CPU core"] = Later(partial(train, sized, model, "cpu"))
    if part.with_cudnn:
        n, shapes = workload.hidden_size, given.shapes
        size = size_of("lstm", workload, shapes)
        rnn = partial(nn.RNN, shapes.input_size, n)
        lstm = partial(nn.LSTM, shapes.input_size, size)
        works["nn.RNN"] = Later(partial(train_cudnn, rnn, given, plan.device))
        works["nn.LSTM"] = Later(partial(train_cudnn, lstm, given, plan.device))
    return works


def make_row(variant: str, times: dict[str, list[float]]) -> dict[str, Any]:
    """Return a row of the table: how many times faster than each other one a variant is."""
    model, mine = variant.partition(",")[0], times[variant]
    row: dict[str, Any] = {"variant": variant, "ms": median(mine)}
    others = {
        "loop": f"{model}, loop",
        "core": f"{model}, one CPU core",
        "rnn": "nn.RNN",
        "lstm": "nn.LSTM",
    }
    for key, other in others.items():
        if other in times and other != variant:
            row[key] = ratio(times[other], mine)
    return row


def size_of(model: str, workload: Workload, shapes: Shapes) -> int:
    """Return the hidden size with about as many parameters as expRNN has in this workload."""
    free = network("exprnn", workload.hidden_size, shapes).count_parameters("free")
    config = MODELS[model].Config(name=model, parameters=free, **FIELDS.get(model, {}))
    size = config.resolve(shapes).hidden_size
    assert size is not None
    return size


def train(workload: Workload, model: str, device: str) -> Work:
    """Return the work of training a trial alone."""
    return advance(make_training(make_config(workload, model), device))


def no_kernels(make: Callable[[], Work]) -> Work:
    """Return work that is made and done as a loop over time in PyTorch's operations."""
    with without_kernels():
        work = make()

    def run(seconds: float) -> int:
        with without_kernels():
            return work(seconds)

    return run


def train_cudnn(make_cell: Callable[[], nn.RNN | nn.LSTM], given: Material, device: str) -> Work:
    """Return the work of training a network of cuDNN on one batch."""
    torch.manual_seed(0)
    there = replace(given, batch=given.batch.to(device), values=given.values.to(device))
    network = Cudnn(make_cell(), given.shapes).to(device)
    return repeat(Step(network, None, plain_loss).on(there), device)


def plain_loss(module: nn.Module, given: Material) -> Tensor:
    """Return the cross-entropy of a network that takes its input as floats."""
    logits: Tensor = module(given.values)
    return cross_entropy(logits.flatten(0, -2), given.batch.y.flatten())

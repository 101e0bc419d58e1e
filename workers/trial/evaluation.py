"""A model's scores on a split, and the state that is carried from one batch to the next."""

from __future__ import annotations

from math import isfinite

import torch
from torch import Tensor

from eigensweep.models.base import Model, State
from eigensweep.tasks.base import Split, Task
from eigensweep.workers.shared.messages import Metrics


@torch.no_grad()
def evaluate(model: Model, task: Task, split: Split, device: str = "cpu") -> Metrics:
    """Return each metric over the whole split, counting what is scored; may be not finite.

    A metric of which nothing was scored is left out.
    """
    sums, counts = sum_scores(model, task, split, device)
    return {name: float(total) / counts[name] for name, total in sums.items() if counts[name]}


def sum_scores(
    model: Model, task: Task, split: Split, device: str = "cpu"
) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Return the sum of each metric over the whole split, and of how many scores it is."""
    sums: dict[str, Tensor] = {}
    counts: dict[str, int] = {}
    state: State | None = None
    run = model.prepare()
    for batch in task.evaluation(split):
        state = carry_into(model, batch.starts, state)
        batch = batch.to(device)
        logits, state = run(batch.x, state)
        for name, (total, count) in task.scores(logits, batch).items():
            sums[name] = sums.get(name, 0.0) + total.double()
            counts[name] = counts.get(name, 0) + count
    return sums, counts


def carry_into(model: Model, starts: Tensor | None, state: State | None) -> State | None:
    """Return the state that a batch begins with: None is the model's own initial state.

    Rows that begin a new sequence beside others that go on begin with it, too.
    """
    if state is None or starts is None or bool(starts.all()):
        return None
    if not bool(starts.any()):
        return state
    return model.restart(state, starts)


def detach(state: State) -> State:
    """Return a state that gradients do not flow back through."""
    return tuple(s.detach() for s in state) if isinstance(state, tuple) else state.detach()


def keep_finite(metrics: Metrics) -> Metrics:
    """Return the metrics that are finite: nothing else is ever recorded."""
    return {name: value for name, value in metrics.items() if isfinite(value)}

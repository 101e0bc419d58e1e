"""A model's scores on a split, the state that is carried between batches, and its spectra."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, isfinite
from numbers import Real
from typing import Literal

import torch
from torch import Tensor

from eigensweep.common.metric_names import EXPECTED, is_metric_name
from eigensweep.models.analysis.spectra import recurrent_spectra
from eigensweep.models.base import Model, State
from eigensweep.results.trial_result import Metrics
from eigensweep.store.spectrum_files import SpectraJson
from eigensweep.tasks.base import Batch, Split, Task

Beginning = Literal["anew", "on", "mixed"]
"""What the rows of a batch begin with: the initial state, the state before it, or some of each."""


@dataclass(frozen=True)
class EvaluatedBatch:
    """A batch of an evaluation, and what it begins with."""

    batch: Batch
    begins: Beginning

    @classmethod
    def of(cls, batch: Batch) -> EvaluatedBatch:
        """Look at a batch on the CPU."""
        return cls(batch, find_beginning(batch.starts))


@dataclass(frozen=True)
class Tally:
    """Scores of some batches."""

    sums: dict[str, Tensor]
    """By metric; float64."""
    counts: dict[str, float | Tensor]
    """Of how many scores a sum is."""
    state: State | None
    """What the next batch goes on from."""


@torch.no_grad()
def evaluate(model: Model, task: Task, split: Split, device: str = "cpu") -> Metrics:
    """Return each metric over the whole split, counting what is scored; may be not finite.

    A metric of which nothing was scored is left out.
    """

    def place(batch: Batch) -> EvaluatedBatch:
        return EvaluatedBatch(batch.to(device), find_beginning(batch.starts))

    found = add_scores(model, task, map(place, task.evaluation(split)))
    counts = {name: float(count) for name, count in found.counts.items()}
    loss = task.config.metrics[0].name
    if loss not in counts:
        raise ValueError(
            f"{type(task).__name__} has no scores of '{loss}' on its {split} data: `evaluation` "
            "must yield batches, and `scores` must count that metric in one of them"
        )
    return {name: float(total) / counts[name] for name, total in found.sums.items() if counts[name]}


def add_scores(
    model: Model, task: Task, pieces: Iterable[EvaluatedBatch], state: State | None = None
) -> Tally:
    """Return the sums over pieces on the model's device; the first goes on from `state`.

    The model is in evaluation mode meanwhile. No value is read, unless the task reads one.
    """
    was_training = model.training
    model.eval()
    try:
        return _add_scores(model, task, pieces, state)
    finally:
        model.train(was_training)


def _add_scores(
    model: Model, task: Task, pieces: Iterable[EvaluatedBatch], state: State | None
) -> Tally:
    sums: dict[str, Tensor] = {}
    counts: dict[str, float | Tensor] = {}
    run = model.prepare()
    for piece in pieces:
        state = _carry(model, piece.begins, piece.batch.starts, state)
        answer = run(piece.batch.x, state)
        check_answer(model, piece.batch.x, answer)
        logits, state = answer
        scores = task.scores(logits, piece.batch)
        if not sums:
            check_scores(task, scores)
        for name, (total, count) in scores.items():
            sums[name] = sums.get(name, 0.0) + total.double().reshape(())
            counted = count.double().reshape(()) if isinstance(count, Tensor) else float(count)
            counts[name] = counts.get(name, 0.0) + counted
    return Tally(sums, counts, state)


def draw_batch(task: Task, step: int, seed: int) -> Batch:
    """Return a training batch; a task of one's own may return something else.

    Raises:
        TypeError, ValueError: if it is no batch, or an empty one.
    """
    batch: object = task.train_batch(step, seed)
    name = type(task).__name__
    if not isinstance(batch, Batch):
        raise TypeError(
            f"{name}.train_batch must return a Batch; it returned a {type(batch).__name__}"
        )
    if not batch.x.numel():
        shape = tuple(batch.x.shape)
        raise ValueError(f"{name}.train_batch returned an empty batch: 'x' has the shape {shape}")
    return batch


def check_answer(model: Model, x: Tensor, answer: object) -> None:
    """Check what `Model.forward` has returned for inputs x.

    A model of one's own may return something else, which losses and scores might not notice.

    Raises:
        TypeError, ValueError: if it is not logits and a state; it says what was expected.
    """
    name, p = type(model).__name__, model.shapes.output_size
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], Tensor)):
        raise TypeError(
            f"{name}.forward must return (logits, state); it returned a {type(answer).__name__}"
            + (f" of {len(answer)}" if isinstance(answer, tuple) else "")
        )
    (steps, rows), given = x.shape[:2], tuple(answer[0].shape)
    read_last = model.shapes.readout == "last"
    wanted = (rows, p) if read_last else (steps, rows, p)
    if given != wanted:
        raise ValueError(
            f"{name}.forward returned logits of shape {given}; expected {wanted}: "
            + ("(B, p), of the last step" if read_last else "(τ, B, p), time first")
        )


def check_scores(task: Task, scores: object) -> None:
    """Check what `Task.scores` has returned: a task of one's own may return something else.

    Raises:
        TypeError, ValueError: if it is no sum and count of each metric; it says what was expected.
    """
    name = type(task).__name__
    if not isinstance(scores, dict):
        raise TypeError(f"{name}.scores must return a dict; it returned a {type(scores).__name__}")
    for metric, pair in scores.items():
        is_pair = isinstance(pair, tuple | list) and len(pair) == 2
        if not (is_pair and _is_one_number(pair[0]) and _is_count(pair[1])):
            told = f"a {type(pair).__name__}"
            if is_pair:
                told = f"a pair of {_describe(pair[0])} and {_describe(pair[1])}"
            raise TypeError(
                f"{name}.scores must return a pair for each metric: a sum, a tensor of one number, "
                f"and a count, a number from 0 or such a tensor; for '{metric}' it returned {told}"
            )
    check_names(scores)


def _describe(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"{value!r:.80}"


def _is_one_number(value: object) -> bool:
    return isinstance(value, Tensor) and value.numel() == 1


def _is_count(value: object) -> bool:
    return _is_one_number(value) or (isinstance(value, Real) and 0 <= float(value) < inf)


def find_beginning(starts: Tensor | None) -> Beginning:
    """Return what a batch with these `starts`, on the CPU, begins with."""
    if starts is None or bool(starts.all()):
        return "anew"
    return "mixed" if bool(starts.any()) else "on"


def carry_into(model: Model, starts: Tensor | None, state: State | None) -> State | None:
    """Return the state that a batch begins with: None is the model's own initial state.

    Rows that begin a new sequence beside others that go on begin with it, too.
    """
    return None if state is None else _carry(model, find_beginning(starts), starts, state)


def _carry(
    model: Model, begins: Beginning, starts: Tensor | None, state: State | None
) -> State | None:
    if state is None or begins == "anew":
        return None
    if begins == "on":
        return state
    assert starts is not None
    return model.restart(state, starts)


def detach(state: State) -> State:
    """Return a state that gradients do not flow back through.

    Raises:
        TypeError: if a model of one's own has returned something else.
    """
    if not all(isinstance(part, Tensor) for part in parts_of(state)) or state is None:
        found = [type(part).__name__ for part in parts_of(state)]
        raise TypeError(
            "a state must be a tensor or a tuple of tensors, batch first; it is "
            f"{' and '.join(found) or 'None'}"
        )
    return tuple(s.detach() for s in state) if isinstance(state, tuple) else state.detach()


def parts_of(state: State | None) -> tuple[Tensor, ...]:
    """Return the tensors of a state; none of None."""
    if state is None:
        return ()
    return state if isinstance(state, tuple) else (state,)


def check_names(names: Iterable[str]) -> None:
    """Raise ValueError if MLflow refuses one of these names of numbers, and with it a whole run."""
    for name in names:
        if not is_metric_name(name):
            raise ValueError(f"a name has {EXPECTED}; got {name[:80]!r}")


def keep_finite(metrics: Metrics) -> Metrics:
    """Return the metrics that are finite: nothing else is ever recorded."""
    return {name: value for name, value in metrics.items() if isfinite(value)}


def find_spectra(model: Model) -> SpectraJson:
    """Return the spectra of a model's recurrent matrices as JSON holds them, by name.

    Raises:
        ValueError: as `recurrent_spectra` does, of a gated model for example.
    """
    return {
        name: {
            "eigenvalues": [[z.real, z.imag] for z in one.eigenvalues.tolist()],
            "singular_values": one.singular_values.tolist(),
        }
        for name, one in recurrent_spectra(model).items()
    }

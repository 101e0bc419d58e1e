"""A training step of M networks of equal shape as one program with fixed shapes.

All state lies in tensors with lanes in front, and no value is read back during a step. So on a GPU
a step is captured once as a CUDA graph and replayed; elsewhere the same program runs as it is. A
lane that is empty, has ended or is not finite goes through the same operations and keeps its state
by `where`: what a lane computes does not depend on its neighbours, bit for bit. `Scorer` evaluates
the lanes in the same way.

Letters in shapes: M lanes, P trained numbers of one network, τ steps, B rows, n units.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor, nn

from eigensweep.models.base import Model, State
from eigensweep.models.stack import Stack
from eigensweep.results.trial_result import Metrics
from eigensweep.tasks.base import Batch, Split, Task
from eigensweep.training.errors import is_of_the_device, is_out_of_memory
from eigensweep.training.evaluation import (
    EvaluatedBatch,
    add_scores,
    check_names,
    detach,
    draw_batch,
    evaluate,
    keep_finite,
    parts_of,
)
from eigensweep.training.lanes.stacked import graphs
from eigensweep.training.lanes.stacked.batches import Batches, equalise
from eigensweep.training.lanes.stacked.optimizers import LaneOptimizers
from eigensweep.training.lanes.stacked.scoring import Scorer
from eigensweep.training.selection import Weights
from eigensweep.training.training import Training

logger = logging.getLogger(__name__)

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
LONGEST_SEGMENT = 16
"""Most steps between two looks at losses and norms."""

Numbers = tuple[float, float, float]
"""Objective, loss and gradient norm of a step."""


class Program:
    """M lanes. A lane holds one training's tensors; `Group` keeps the books."""

    def __init__(
        self, like: Training, lanes: int, *, capture: bool = True, static: bool | None = None
    ) -> None:
        """Make a program for trainings of the shape of `like`, with all lanes empty.

        With `capture` a step on a GPU becomes a CUDA graph. A `static` step leaves to the host, for
        the time between two steps, what needs it; default: not on a CPU.

        Raises:
            ValueError: if there are no lanes, or if the model cannot be stacked.
        """
        if lanes < 1:
            raise ValueError(f"a program has at least 1 lane; {lanes} were asked for")
        self.lanes, self.device = lanes, torch.device(like.device)
        self._task = like.task
        self._scored_singly: set[Split] = set()
        self._model = copy.deepcopy(like.model)
        self._configs = [like.model.config] * lanes
        probe = _probe(like)
        is_static = self.device.type != "cpu" if static is None else static
        self._stack = stack = Stack([like.model] * lanes, host_values=is_static)
        self._optimizers = LaneOptimizers(like.optimizers, lanes, self.device, probe.rare)
        names = {id(p): f"model.{name}" for name, p in like.model.named_parameters()}
        self._trained = [names[id(p)] for p in self._optimizers.params]
        shapes = [stack.parameters[name].shape for name in self._trained]
        self._shapes = dict(zip(self._trained, shapes, strict=True))
        self._flat = torch.cat(
            [stack.parameters[n].detach().reshape(lanes, -1) for n in self._trained], 1
        )
        self._fixed = {n: p.detach() for n, p in stack.parameters.items() if n not in self._shapes}
        own = {f"model.{name}" for name in like.model.state_dict()}
        self._buffers = {name: b for name, b in stack.buffers.items() if name in own}
        self._extra = {name: b for name, b in stack.buffers.items() if name not in own}
        """Numbers of the configs, and the host's values for the next step."""
        pending = {name: b for name, b in self._extra.items() if name == "model.pending"}
        self._changing = self._buffers | pending
        self._updates_itself = type(like.model).after_update is not Model.after_update
        self.batches = Batches(like.task, probe.batch, lanes, 2 * LONGEST_SEGMENT, self.device)
        self._carried: list[Tensor] = []
        self._names = list(like.model.state_dict())
        self._carries_tuple = isinstance(probe.state, tuple)
        if probe.batch.starts is not None:
            self._carried = [torch.stack([s] * lanes) for s in parts_of(probe.state)]

        def flags(dtype: torch.dtype = torch.bool) -> Tensor:
            return torch.zeros(lanes, dtype=dtype, device=self.device)

        self._running, self._fresh = flags(), flags()
        self._step = flags(torch.int64)
        places = self.batches.places
        self._on_host = torch.ones(lanes * places, 1, dtype=torch.float64)
        self._factors = self._on_host.to(self.device, copy=True)
        """Factors on the learning rates, in places as the batches have."""
        self._may_capture = capture and self.device.type == "cuda"
        if self._may_capture and (reason := type(like.model).not_static):
            logger.info("a training step runs without a CUDA graph reason=%s", reason)
            self._may_capture = False
        self._graph: torch.cuda.CUDAGraph | None = None
        self._scorer = Scorer(
            like.task, stack, self._tensors, self.device, captures=self._may_capture
        )
        self._ticks = torch.zeros(1, dtype=torch.int64, device=self.device)
        """Steps that the program has taken, modulo the ring of results."""
        self._results = torch.zeros(places, 3, lanes, dtype=self._flat.dtype, device=self.device)
        self._at = 0
        self._steps = [0] * lanes
        """Steps of each lane, as far as the host knows: one that stopped has taken fewer."""
        self._try_out(like)

    @property
    def is_captured(self) -> bool:
        """Whether steps are replayed as a CUDA graph."""
        return self._graph is not None

    @property
    def scores_captured(self) -> int:
        """Number of CUDA graphs that evaluations replay."""
        return self._scorer.captured

    def run(self, ticks: int, factors: Mapping[int, Sequence[float]]) -> list[list[Numbers]]:
        """Let the running lanes take `ticks` steps; return their numbers, by step and lane.

        `factors` holds, for each running lane, the factors on the learning rates of these steps. A
        lane whose numbers are not finite stops there and keeps its state; its numbers of later
        steps are of no use.
        """
        places = self.batches.places
        for lane in factors:
            self.prepare(lane, ticks)
        for lane, values in factors.items():
            first = self._steps[lane]
            for step, value in enumerate(values, first):
                self._on_host[lane * places + step % places] = value
            self._steps[lane] += ticks
        self._factors.copy_(self._on_host)
        self.batches.wait()
        if self._may_capture and self._graph is None:
            self._capture()
        for _ in range(ticks):
            if self._graph is None:
                self._tick()
            else:
                self._graph.replay()
            if self._stack.reads_host_values:
                parameters = self._views(self._flat) | self._fixed
                self._stack.work_on_host(parameters, self._buffers | self._extra)
        for lane in factors:  # while the device works
            self.batches.draw(lane, self._steps[lane] + LONGEST_SEGMENT)
            if self.device.type != "cpu":
                self.batches.place(lane, self._steps[lane] + ticks, ahead=True)
        return self._read(ticks)

    def _try_out(self, like: Training) -> None:
        """Take a step in which no lane takes part."""
        try:
            self._tick()
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, NotImplementedError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"{like.config.model.name} on {like.config.task.name} cannot train in lanes, and "
                f"trains alone: {reason}"
            ) from error
        finally:
            self._ticks.zero_()

    def prepare(self, lane: int, ticks: int) -> None:
        """Have a lane's next batches at hand. It raises what drawing them raised."""
        self.batches.place(lane, self._steps[lane] + ticks)

    def _capture(self) -> None:
        """Capture a step as a CUDA graph; the steps before it are taken by no lane."""
        running, ticks = self._running.clone(), self._ticks.clone()
        self._running.zero_()
        self._graph = graphs.capture(self._tick, self.device, "a training step")
        self._may_capture = self._graph is not None
        self._running.copy_(running)
        self._ticks.copy_(ticks)

    @torch.no_grad()
    def _tick(self) -> None:
        """Take one step in all lanes."""
        batch, running = self.batches.pick(self._step), self._running
        buffers = {name: b.clone() for name, b in self._changing.items()}
        flat = self._flat.detach().requires_grad_()
        starts = batch.starts
        if starts is not None:
            batch = replace(batch, starts=starts | self._fresh.unsqueeze(1))
        with torch.enable_grad():
            objective, loss, carried = self._stack.call(
                _differentiable_step,
                self._task,
                batch.x,
                batch.y,
                batch.mask,
                batch.starts,
                batch.padded_to,
                self._carried_state(),
                lanes=(None, 0, 0, 0, 0, None, 0),
                parameters=self._views(flat) | self._fixed,
                buffers=self._extra | buffers,
            )
            (gradient,) = torch.autograd.grad(objective.sum(), flat)
        objective, loss = objective.detach(), loss.detach()
        norm = torch.linalg.vector_norm(gradient, dim=1)
        numbers = torch.stack((objective, loss, norm))
        alive = running & numbers.isfinite().all(0)
        # A training alone counts what its forward pass did to buffers even in a step not taken.
        seen = {name: _choose(running, buffers[name], b) for name, b in self._changing.items()}
        factor = self._factors.index_select(0, self.batches.find(self._step))
        rates = self._optimizers.rates(factor)
        begins = alive if batch.starts is None else batch.starts.any(1)
        flat = self._optimizers.step(self._flat, gradient, norm, rates, alive, begins)
        if self._updates_itself:
            moved = {name: p.clone() for name, p in self._views(flat).items()}
            after = {name: b.clone() for name, b in seen.items()}
            given = {name: rate.squeeze(1).to(flat.dtype) for name, rate in rates.items()}
            self._stack.call(
                "after_update",
                given,
                lanes=(dict.fromkeys(given, 0),),
                parameters=moved | self._fixed,
                buffers=self._extra | after,
            )
            flat = torch.cat([moved[name].reshape(self.lanes, -1) for name in self._trained], 1)
            seen = {name: _choose(alive, after[name], b) for name, b in seen.items()}
        self._flat.copy_(_choose(alive, flat, self._flat))
        for name, known in self._changing.items():
            known.copy_(seen[name])
        for old, new in zip(self._carried, parts_of(carried), strict=True):
            old.copy_(_choose(alive, new, old))
        self._results.index_copy_(0, self._ticks, numbers.unsqueeze(0))
        self._ticks.add_(1).remainder_(len(self._results))
        self._fresh.logical_and_(~alive)
        self._step.add_(alive)
        self._running.copy_(alive)

    def _read(self, ticks: int) -> list[list[Numbers]]:
        rows = [(self._at + tick) % len(self._results) for tick in range(ticks)]
        self._at = (self._at + ticks) % len(self._results)
        kept = self._results.tolist()
        return [list(zip(*kept[row], strict=True)) for row in rows]

    def load(self, lane: int, training: Training) -> None:
        """Put a training's tensors into a lane; it runs from the next step on."""
        self._put(lane, training.model.state_dict())
        self._configs[lane] = training.model.config
        for name, value in self._stack.extra_buffers(training.model).items():
            self._extra[f"model.{name}"][lane] = value
        config = training.config.optimizer
        self._optimizers.load(lane, training.optimizers, config, training.step)
        self._fresh[lane] = training.carried is None
        if training.carried is not None:
            for known, part in zip(self._carried, parts_of(training.carried), strict=True):
                known[lane] = part
        self._step[lane] = self._steps[lane] = training.step
        self.batches.join(lane, training.seed, training.step, training.steps)
        self.set_running(lane, not training.is_finished)

    def store(self, lane: int, training: Training) -> None:
        """Copy a lane's tensors back into its training."""
        carried: State | None = None
        if self._carried and not self._fresh[lane]:
            parts = tuple(part[lane].clone() for part in self._carried)
            carried = parts if self._carries_tuple else parts[0]
        training.take_over(self.weights(lane), self._optimizers.state_dict(lane), carried)

    def unload(self, lane: int) -> None:
        """Empty a lane."""
        self.set_running(lane, False)
        self.batches.leave(lane)

    def empty(self, like: Training) -> None:
        """Empty all lanes; give them the weights of `like`. What is left, `load` writes over."""
        self.batches.empty()
        for lane in range(self.lanes):
            self.set_running(lane, False)
            self._put(lane, like.model.state_dict())
        self._ticks.zero_()
        self._at = 0

    def set_running(self, lane: int, running: bool) -> None:
        """Say whether a lane takes part in the next steps."""
        self._running[lane] = running

    def weights(self, lane: int) -> Weights:
        """Return a copy of a lane's parameters and buffers, as its model's `state_dict` has them.

        They stay on the device.
        """
        found = self._views(self._flat) | self._fixed | self._buffers
        return {name: found[f"model.{name}"][lane].clone() for name in self._names}

    @torch.no_grad()
    def score(
        self, split: Split, lanes: Collection[int], weights: Mapping[int, Weights] | None = None
    ) -> dict[int, Metrics]:
        """Return the scores of some lanes on a split; some may be not finite.

        All lanes are computed, so that a lane's scores do not depend on which are asked for.
        `weights` takes the place of the weights of some lanes.
        """
        with self._with_weights(weights or {}):
            if split not in self._scored_singly:
                try:
                    found = self._scorer.score(split)
                    return {lane: found[lane] for lane in lanes}
                except RuntimeError as error:
                    if is_out_of_memory(error) or is_of_the_device(error):
                        raise
                    reason = str(error).splitlines()[0]
                    logger.info("lanes are scored one by one split=%s reason=%s", split, reason)
                    self._scored_singly.add(split)
            return {lane: self._score_alone(split, lane) for lane in lanes}

    def score_batch(self, piece: EvaluatedBatch) -> dict[str, Tensor]:
        """Return the sum of each metric over a batch that begins anew, (M,) each."""

        def score_lane(model: Model) -> dict[str, Tensor]:
            return add_scores(model, self._task, [piece]).sums

        parameters, buffers = self._tensors()
        found: dict[str, Tensor] = self._stack.call(
            score_lane, parameters=parameters, buffers=buffers
        )
        return found

    def _score_alone(self, split: Split, lane: int) -> Metrics:
        model = self._model_of(lane, self.weights(lane))
        return evaluate(model, self._task, split, str(self.device))

    def _model_of(self, lane: int, weights: Weights) -> Model:
        """Return a model with these weights and the config of a lane, whose numbers are its own."""
        self._model.config = self._configs[lane]
        self._model.load_state_dict(weights)
        return self._model

    def _tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return parameters and buffers of all lanes, by name."""
        return self._views(self._flat) | self._fixed, self._extra | self._buffers

    @contextmanager
    def _with_weights(self, weights: Mapping[int, Weights]) -> Iterator[None]:
        """Let some lanes have other weights for a while, in the same memory."""
        if not weights:
            yield
            return
        held = [self._flat, *self._fixed.values(), *self._buffers.values(), *self._extra.values()]
        index = torch.tensor(list(weights)).to(self.device)
        before = [tensor.index_select(0, index) for tensor in held]
        try:
            for lane, given in weights.items():
                self._put(lane, given)
                if self._stack.reads_host_values:
                    for name, value in self._model_of(lane, given).host_values().items():
                        self._extra[f"model.{name}"][lane] = value
            yield
        finally:
            for tensor, value in zip(held, before, strict=True):
                tensor.index_copy_(0, index, value)

    @torch.no_grad()
    def report_constraint(self) -> list[Metrics]:
        """Return each lane's report on its model's constraint; finite numbers only."""
        parameters, buffers = self._tensors()
        found = self._stack.call("constraint_report", parameters=parameters, buffers=buffers)
        check_names(found)
        columns = {name: values.tolist() for name, values in found.items()}
        return [
            keep_finite({name: column[lane] for name, column in columns.items()})
            for lane in range(self.lanes)
        ]

    def close(self) -> None:
        """End the threads that draw batches, and let go of graphs and data for evaluations.

        Then all tensors go with the program itself: it and its scorer refer to each other.
        """
        self.batches.close()
        self._graph = None
        self._scorer.close()

    def _put(self, lane: int, weights: Weights) -> None:
        """Write parameters and buffers into a lane, in the same memory."""
        columns = [weights[name.removeprefix("model.")].flatten() for name in self._trained]
        self._flat[lane] = torch.cat(columns).to(self._flat)
        for name, known in (*self._fixed.items(), *self._buffers.items()):
            known[lane] = weights[name.removeprefix("model.")]

    def _views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the trained parameters by name, lanes in front, each contiguous."""
        pieces = torch.split(flat, [shape[1:].numel() for shape in self._shapes.values()], 1)
        return {
            name: piece.contiguous().view(shape)
            for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)
        }

    def _carried_state(self) -> State | None:
        if not self._carried:
            return None
        return tuple(self._carried) if self._carries_tuple else self._carried[0]


def _differentiable_step(
    model: Model,
    task: Task,
    x: Tensor,
    y: Tensor,
    mask: Tensor | None,
    starts: Tensor | None,
    padded_to: int | None,
    state: State | None,
) -> tuple[Tensor, Tensor, State | tuple[()]]:
    """Return objective, loss and the state to carry on, of one lane."""
    if starts is not None:
        assert state is not None
        state = model.restart(state, starts)
    logits, state = model(x, state)
    loss = task.loss(logits, Batch(x, y, mask, starts, padded_to))
    return loss + model.penalty(), loss, () if starts is None else detach(state)


@dataclass(frozen=True)
class _Probe:
    """What one forward and backward pass of one network showed."""

    batch: Batch
    state: State
    rare: list[nn.Parameter]
    """Parameters that have a gradient only where a sequence begins: a first state."""


def _probe(like: Training) -> _Probe:
    """Try a step out on a copy of the model.

    Raises:
        ValueError: if nothing is trained, or a parameter is not used.
    """
    model = copy.deepcopy(like.model)
    batch = equalise(like.task, draw_batch(like.task, like.step, like.seed))
    there = batch.to(like.device)

    def unused(state: State | None) -> tuple[set[str], State]:
        logits, last = model(there.x, state)
        objective = like.task.loss(logits, there) + model.penalty()
        if not objective.requires_grad:
            raise ValueError(f"{like.config.model.name}: nothing is trained")
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        gradients = torch.autograd.grad(objective, list(named.values()), allow_unused=True)
        return {n for n, g in zip(named, gradients, strict=True) if g is None}, last

    if reason := _explain_difference(model, like.task):
        raise ValueError(f"{like.config.model.name} trains alone: {reason}")
    never, state = unused(None)
    if never:
        raise ValueError(
            f"{like.config.model.name}: lanes need a gradient of every parameter; "
            f"there is none of {', '.join(sorted(never))}"
        )
    if there.starts is None:
        return _Probe(batch, state, [])
    state = detach(state)
    if not _restarts_as_it_starts(model, there, state):
        raise ValueError(
            f"{like.config.model.name} trains alone: `restart` gives another state than `forward` "
            "begins with"
        )
    rare = unused(state)[0]
    return _Probe(batch, state, [like.model.get_parameter(name) for name in sorted(rare)])


@torch.no_grad()
def _restarts_as_it_starts(model: Model, batch: Batch, state: State) -> bool:
    """Tell whether `restart` gives what `forward` begins with, whatever the parameters are.

    They are moved away from their first values, where a first state may be zero. A few steps show
    it; over many steps the errors of rounding could grow.
    """
    assert batch.starts is not None
    moved = copy.deepcopy(model).eval()
    for parameter in moved.parameters():
        parameter.add_(0.1)
    x, everywhere = batch.x[:4], torch.ones_like(batch.starts)
    begun, restarted = (moved(x, s)[0] for s in (None, moved.restart(state, everywhere)))
    return torch.allclose(begun, restarted, rtol=1e-4, atol=1e-6, equal_nan=True)


def _explain_difference(model: Model, task: Task) -> str | None:
    """Return why a model of one's own would be another one in lanes, None if it would not."""
    known = {name for name, _ in chain(model.named_parameters(), model.named_buffers())}
    if shared := sorted(model.state_dict().keys() - known):
        return f"{', '.join(shared)} is shared with another part of it"
    with torch.no_grad():
        report: object = model.constraint_report()
    numbers = report.values() if isinstance(report, dict) else [report]
    if not all(isinstance(number, Tensor) and number.numel() == 1 for number in numbers):
        return "`constraint_report` returns no dict of tensors"
    if task.config.has_unequal_batches and any(isinstance(part, NORMS) for part in model.modules()):
        return "batch normalisation would count what only fills batches up"
    return None


def _choose(flag: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Return `new` in the lanes where `flag`, (M,), is true, and `old` in the others."""
    return torch.where(flag.reshape(-1, *[1] * (old.dim() - 1)), new, old)

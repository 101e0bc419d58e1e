"""The evaluation of M lanes as a program with fixed shapes, as the training step is one.

A split is cut into segments of some batches. All lanes score a segment at once, sums and carried
states stay on the device, and no value is read before the split is over. On a GPU segments of equal
shapes share one CUDA graph, which copies of their batches go into; the smaller last batch of a
split makes its segment one of another shape, with a graph of its own. Elsewhere, and beyond
`MOST_GRAPHS` shapes, the same program runs uncaptured.

Letters in shapes: M lanes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from eigensweep.models.base import Model, State
from eigensweep.models.stack import Stack
from eigensweep.results.trial_result import Metrics
from eigensweep.tasks.base import Batch, Split, Task
from eigensweep.training.evaluation import EvaluatedBatch, add_scores, parts_of
from eigensweep.training.lanes.stacked import graphs

SEGMENT_STEPS = 4_096
"""Time steps of a segment, unless one batch has more. The recurrent matrix is computed once in
each."""

MOST_GRAPHS = 16
"""Segments of so many shapes are captured."""

HELD_BYTES = 1 << 30
"""Evaluation data up to this size stays on the device."""

Tensors = Callable[[], tuple[dict[str, Tensor], dict[str, Tensor]]]
"""Returns parameters and buffers of all lanes. They lie in the same memory at every call."""

Segment = tuple[EvaluatedBatch, ...]


@dataclass(frozen=True)
class _Captured:
    """A graph of segments of one shape."""

    graph: torch.cuda.CUDAGraph
    segment: Segment
    """Its batches are where the graph reads."""
    counts: Counter[str]
    """What it scores, as far as the shapes tell."""
    state: list[Tensor]

    def replay(self, segment: Segment) -> None:
        for mine, given in zip(self.segment, segment, strict=True):
            new = given.batch.tensors
            for name, known in mine.batch.tensors.items():
                known.copy_(new[name])
        self.graph.replay()


class Scorer:
    """Scores all lanes of a stack on the data of a split."""

    def __init__(
        self, task: Task, stack: Stack, tensors: Tensors, device: torch.device, *, captures: bool
    ) -> None:
        """Read lanes' weights from `tensors`. With `captures` segments become CUDA graphs."""
        self._task, self._stack, self._tensors, self._device = task, stack, tensors, device
        self._captures = captures
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self._captured: dict[Any, _Captured] = {}
        self._splits: dict[Split, list[Segment]] = {}
        self._sums: dict[str, Tensor] = {}
        """Sums of scores by metric, (M,)."""
        self._scored: dict[str, Tensor] = {}
        """How many scores a sum is of, (M,), where the device counts them."""
        self._counts: Counter[str] = Counter()
        """The same where shapes tell it."""
        self._states: dict[Any, list[Tensor]] = {}
        """Carried states by their shapes, lanes in front."""
        self._state: list[Tensor] = []
        """Those that the next segment goes on from."""
        self._is_tuple = False

    @property
    def captured(self) -> int:
        """Number of CUDA graphs."""
        return len(self._captured)

    def close(self) -> None:
        """Let go of graphs, data and the owner of the weights; it is of no use afterwards."""
        self._captured.clear()
        self._splits.clear()
        del self._tensors

    def score(self, split: Split) -> list[Metrics]:
        """Return each lane's scores; they may be not finite.

        Raises:
            RuntimeError: if the task's scores are not made of tensors alone.
        """
        self._counts, self._state = Counter(), []
        for known in (*self._sums.values(), *self._scored.values()):
            known.zero_()
        for segment in self._segments(split):
            self._run(segment)
        names = list(self._sums)
        counts = [self._scored.get(name) for name in names]
        rows = [*self._sums.values(), *(c.double() for c in counts if c is not None)]
        found = iter(torch.stack(rows).tolist())  # the one read
        sums = {name: next(found) for name in names}
        lanes = range(len(self._stack))
        on_device = [[0.0] * len(lanes) if c is None else next(found) for c in counts]
        totals = {
            name: [self._counts[name] + count for count in column]
            for name, column in zip(names, on_device, strict=True)
        }
        return [
            {name: sums[name][m] / totals[name][m] for name in names if totals[name][m]}
            for m in lanes
        ]

    def _segments(self, split: Split) -> Iterable[Segment]:
        """Return the segments of a split; they stay on the device if there is room for them."""
        if split in self._splits:
            return self._splits[split]
        size, held = 0, []
        for segment in _cut(self._task.evaluation(split)):
            size += sum(t.nbytes for piece in segment for t in piece.batch.tensors.values())
            if size > HELD_BYTES:
                return map(self._place, _cut(self._task.evaluation(split)))
            held.append(self._place(segment))
        self._splits[split] = held
        return held

    def _place(self, segment: Segment) -> Segment:
        return tuple(replace(p, batch=p.batch.to(str(self._device))) for p in segment)

    def _run(self, segment: Segment) -> None:
        if self._captures:
            shape = _shape_of(segment)
            known = self._captured.get(shape)
            if known is None and len(self._captured) < MOST_GRAPHS:
                known = self._capture(segment)
                if known is not None:
                    self._captured[shape] = known
            if known is not None:
                known.replay(segment)
                self._counts += known.counts
                self._state = known.state
                return
        counts, self._state = self.add(segment, self._state)
        self._counts += counts

    def _capture(self, segment: Segment) -> _Captured | None:
        """Capture the scoring of a segment, which changes no sum."""
        mine = tuple(replace(piece, batch=piece.batch.map(Tensor.clone)) for piece in segment)
        came_from, found = self._state, None
        before = {id(tensor): tensor.clone() for tensor in self._changing()}

        def act() -> None:
            nonlocal found
            found = self.add(mine, came_from)

        graph = graphs.capture(act, self._device, "an evaluation", pool=self._pool)
        for tensor in self._changing():
            tensor.copy_(before.get(id(tensor), torch.zeros_like(tensor)))
        if graph is None or found is None:
            self._captures = False
            return None
        counts, state = found
        return _Captured(graph, mine, counts, state)

    def _changing(self) -> list[Tensor]:
        return [*self._sums.values(), *self._scored.values(), *chain(*self._states.values())]

    def add(self, segment: Segment, came_from: list[Tensor]) -> tuple[Counter[str], list[Tensor]]:
        """Add the scores of a segment to the sums on the device; this is what a graph repeats.

        `came_from` is the state that the segment before has left. Return the counts that shapes
        tell, and where the state is that the next segment goes on from.
        """
        counts: Counter[str] = Counter()

        def score_lane(model: Model, state: State | None) -> tuple[Any, Any, Any]:
            found = add_scores(model, self._task, segment, state)
            counts.update({n: c for n, c in found.counts.items() if isinstance(c, float)})
            on_device = {n: c for n, c in found.counts.items() if isinstance(c, Tensor)}
            self._is_tuple = isinstance(found.state, tuple)
            carries = segment[-1].batch.starts is not None
            return found.sums, on_device, parts_of(found.state) if carries else ()

        parameters, buffers = self._tensors()
        state: State | None = None
        if came_from and segment[0].begins != "anew":
            state = tuple(came_from) if self._is_tuple else came_from[0]
        sums, scored, last = self._stack.call(
            score_lane, state, lanes=(0,), parameters=parameters, buffers=buffers
        )
        for totals, found in ((self._sums, sums), (self._scored, scored)):
            for name, value in found.items():
                if name not in totals:
                    totals[name] = torch.zeros_like(value)
                totals[name].add_(value)
        shapes = tuple(part.shape for part in last)
        if shapes not in self._states:
            self._states[shapes] = [torch.zeros_like(part) for part in last]
        for known, part in zip(self._states[shapes], last, strict=True):
            known.copy_(part)
        return counts, self._states[shapes]


def _cut(batches: Iterable[Batch]) -> Iterator[Segment]:
    """Cut batches into segments; the first batch begins anew, and so does each that says so."""
    segment: list[EvaluatedBatch] = []
    steps = 0
    for number, batch in enumerate(batches):
        piece = EvaluatedBatch.of(batch)
        if segment and steps + batch.x.shape[0] > SEGMENT_STEPS:
            yield tuple(segment)
            segment, steps = [], 0
        segment.append(piece if number else replace(piece, begins="anew"))
        steps += batch.x.shape[0]
    if segment:
        yield tuple(segment)


def _shape_of(segment: Segment) -> Any:
    """Return all of a segment that is not in the values of its tensors."""
    return tuple(
        (
            piece.begins,
            piece.batch.padded_to,
            *((name, tuple(t.shape), t.dtype) for name, t in piece.batch.tensors.items()),
        )
        for piece in segment
    )

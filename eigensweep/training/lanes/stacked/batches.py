"""The next training batches of every lane, drawn ahead in threads and laid out on the device.

Each lane has K places. The batch of step s lies in place s mod K, so a program finds it by a count
of steps on the device, and lanes may be at any step. Letters in shapes: M lanes, τ steps, B rows.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from eigensweep.tasks.base import Batch, Task
from eigensweep.training.evaluation import draw_batch

PARTS = ("x", "y", "mask", "starts")

KEPT_BYTES = 256 << 20
"""Drawn batches up to this size together are kept for lanes that come to the same steps later."""


@dataclass
class _Lane:
    seed: int
    end: int
    """No batch of this step or a later one is needed."""
    placed: int
    """Steps before this one are in their places."""
    drawn: dict[int, Future[Batch]]
    """What is being drawn or waits to be placed, by step."""


class Batches:
    """Batches of M lanes that train the same task, each with its own seed and step."""

    def __init__(
        self, task: Task, like: Batch, lanes: int, places: int, device: torch.device
    ) -> None:
        """Make places for batches of the shapes of `like`."""
        self.places = places
        self._task, self._like, self._device = task, like, device
        shapes, is_ours = task.config.shapes, type(task).__module__.startswith("eigensweep.tasks.")
        # Numbers of symbols and classes; a task of one's own may mean something else by them.
        narrow = is_ours and max(shapes.input_size, shapes.output_size) < 2**15
        self._rings: dict[str, Tensor] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        for name in PARTS:
            part = getattr(like, name)
            if part is not None:
                dtype = torch.int16 if narrow and part.dtype == torch.int64 else part.dtype
                shape = (lanes * places, *part.shape)
                self._rings[name] = torch.zeros(shape, dtype=dtype, device=device)
                self._dtypes[name] = part.dtype
        self._offsets = torch.arange(lanes, device=device) * places
        self._lanes: dict[int, _Lane] = {}
        size = sum(ring[0].nbytes for ring in self._rings.values())
        self._most_kept = KEPT_BYTES // max(1, size)
        self._kept: OrderedDict[tuple[int, int], Future[Batch]] = OrderedDict()
        """By seed and step, the last requested batch at the end. Trials of a search have the same
        seeds, so a trial that takes a free lane later needs the batches that others have used."""
        self._pool = ThreadPoolExecutor(max(1, min(4, os.cpu_count() or 1)), "batches")
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream(device))

    def join(self, lane: int, seed: int, step: int, end: int) -> None:
        """Prepare a lane to begin at `step` and to end before `end`."""
        self._lanes[lane] = _Lane(seed, end, step, {})

    def leave(self, lane: int) -> None:
        """Forget what was drawn for a lane."""
        del self._lanes[lane]  # what was drawn for it may serve other lanes

    def empty(self) -> None:
        """Forget all lanes, and all that was drawn."""
        self._lanes.clear()
        self._kept.clear()

    def draw(self, lane: int, until: int) -> None:
        """Begin to draw a lane's batches before step `until`."""
        queue = self._lanes[lane]
        for step in range(queue.placed, min(until, queue.end)):
            if step not in queue.drawn:
                key = (queue.seed, step)
                future = self._kept.pop(key, None)
                if future is None or (future.done() and future.exception() is not None):
                    future = self._pool.submit(self._make, *key)
                queue.drawn[step] = self._kept[key] = future
        while len(self._kept) > self._most_kept:
            self._kept.popitem(last=False)

    def place(self, lane: int, until: int, *, ahead: bool = False) -> None:
        """Put a lane's batches before step `until` into their places; wait until they are drawn.

        On a GPU the copies run beside the program; `wait` makes the program wait for them. What
        lay in these places must have been used. What drawing a batch raises is raised here, but not
        `ahead` of its need: then it stays to be raised.
        """
        self.draw(lane, until)
        queue = self._lanes[lane]
        until = min(until, queue.end)
        if queue.placed >= until:
            return
        if self._stream is None:
            self._place(lane, queue, until, ahead)
            return
        with torch.cuda.stream(self._stream):
            self._place(lane, queue, until, ahead)

    def wait(self) -> None:
        """Make the current stream wait for all copies so far."""
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def find(self, step: Tensor) -> Tensor:
        """Return the number of each lane's place of its `step`, both (M,) int64."""
        return self._offsets + step % self.places

    def pick(self, step: Tensor) -> Batch:
        """Return each lane's batch of its `step`, (M,) int64: every part with lanes in front."""
        index = self.find(step)
        parts = {
            name: ring.index_select(0, index).to(self._dtypes[name])
            for name, ring in self._rings.items()
        }
        x, y, mask, starts = (parts.get(name) for name in PARTS)
        assert x is not None
        assert y is not None
        return Batch(x, y, mask, starts, self._like.padded_to)

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _place(self, lane: int, queue: _Lane, until: int, ahead: bool) -> None:
        for step in range(queue.placed, until):
            if ahead and queue.drawn[step].exception() is not None:
                return
            batch = queue.drawn.pop(step).result()
            place = lane * self.places + step % self.places
            for name, ring in self._rings.items():
                ring[place].copy_(getattr(batch, name), non_blocking=True)
            queue.placed = step + 1

    def _make(self, seed: int, step: int) -> Batch:
        batch = equalise(self._task, draw_batch(self._task, step, seed))
        for name in PARTS:
            part, expected = getattr(batch, name), getattr(self._like, name)
            if (part is None) != (expected is None) or (
                part is not None and (part.shape, part.dtype) != (expected.shape, expected.dtype)
            ):
                forms = [
                    None if t is None else f"{tuple(t.shape)} {t.dtype}" for t in (part, expected)
                ]
                raise ValueError(
                    f"{self._task.config.name}: the batches of lanes are of equal shape and type; "
                    f"'{name}' of step {step} is {forms[0]}, that of the first batch was {forms[1]}"
                )
        if self._stream is None:
            return batch
        parts = {
            name: getattr(batch, name).to(ring.dtype).pin_memory()
            for name, ring in self._rings.items()
        }
        return Batch(parts["x"], parts["y"], parts.get("mask"), parts.get("starts"))


def equalise(task: Task, batch: Batch) -> Batch:
    """Return a training batch in the one shape that all batches of the task are padded to."""
    config = task.config
    if not config.has_unequal_batches:
        return batch
    return batch.pad(batch.padded_to or config.sequence_length, config.batch_size)

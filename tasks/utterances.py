"""Batches of recordings of unequal length: padded at the end, with a mask over the padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigensweep.tasks.base import Batch
from eigensweep.tasks.spectra import BINS, SILENCE_DB, frame_count, log_magnitudes, spectrum

Mask = Literal["lengths", "lengths-1"]
"""Which frames are scored: every frame of a recording, or all but the last one."""


@dataclass(frozen=True, eq=False)
class Utterances:
    """Recordings as frames. Each frame is to be predicted from the frames before it."""

    frames: NDArray[np.float32]
    """(all frames + 1, p): the log magnitudes of all recordings, one after another. The last row
    and the first frame of each recording are silence, so silence follows every recording."""
    lengths: NDArray[np.int64]
    """Number of frames of each recording."""
    begins: NDArray[np.int64]
    """Index into `frames` of the first frame of each recording."""

    @classmethod
    def of(cls, recordings: Sequence[NDArray[np.int16]]) -> Utterances:
        """Return recordings, given as samples, as frames of log magnitudes."""
        lengths = [frame_count(len(samples)) for samples in recordings]
        utterances = cls.silent(lengths, BINS)
        for samples, begin, length in zip(recordings, utterances.begins, lengths, strict=True):
            utterances.frames[begin : begin + length] = log_magnitudes(spectrum(samples))
        return utterances

    @classmethod
    def silent(cls, lengths: Sequence[int], bins: int) -> Utterances:
        """Return silent recordings with these numbers of frames, to be filled in."""
        each = np.array(lengths, np.int64)
        frames = np.full((each.sum() + 1, bins), SILENCE_DB, np.float32)
        return cls(frames, each, each.cumsum() - each)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def longest(self) -> int:
        """Number of frames of the longest recording."""
        return int(self.lengths.max())

    def by_length(self) -> NDArray[np.int64]:
        """Return the row numbers of all recordings, the shortest first."""
        return np.argsort(self.lengths, kind="stable")

    def batch(
        self,
        rows: NDArray[np.int64],
        mask: Mask,
        padded_to: int | None = None,
        with_rows: bool = False,
    ) -> Batch:
        """Return these recordings side by side: x and y (τ, B, p), mask (τ, B, 1).

        τ is the length of the longest one, and y is one frame ahead of x. The target of a
        recording's last frame is the silence after it; `lengths` scores it, `lengths-1` does not.
        """
        lengths = self.lengths[rows]
        step = np.arange(lengths.max() + 1)[:, None]
        places = np.where(step < lengths, self.begins[rows] + step, len(self.frames) - 1)
        seen = torch.from_numpy(self.frames.take(places, axis=0))
        scored = step[:-1] < (lengths if mask == "lengths" else lengths - 1)
        return Batch(
            seen[:-1],
            seen[1:],
            torch.from_numpy(scored[..., None]),
            padded_to=padded_to,
            rows=torch.from_numpy(rows.copy()) if with_rows else None,
        )

    def targets(self, mask: Mask) -> Iterator[NDArray[np.float32]]:
        """Yield the targets of each recording, (scored frames, p)."""
        for begin, length in zip(self.begins, self.lengths, strict=True):
            end = begin + (length if mask == "lengths" else length - 1)
            yield self.frames[begin + 1 : end + 1]

    def mean_target(self, mask: Mask) -> NDArray[np.float64]:
        """Return the mean over all targets, (p,)."""
        total = sum(y.sum(0, dtype=np.float64) for y in self.targets(mask))
        return total / self.scored_frames(mask)

    def mean_error(self, mask: Mask, answer: NDArray[np.float64]) -> float:
        """Return the mean squared error of always answering `answer`, (p,)."""
        total = sum(float(((y - answer) ** 2).sum()) for y in self.targets(mask))
        return total / self.scored_frames(mask) / self.frames.shape[1]

    def scored_frames(self, mask: Mask) -> int:
        """Return the number of frames that are scored."""
        return int(self.lengths.sum()) - (0 if mask == "lengths" else len(self))


def squared_error(logits: Tensor, batch: Batch) -> Tensor:
    """Return the sum of the squared errors over all scored frames."""
    assert batch.mask is not None
    return torch.where(batch.mask, logits - batch.y, 0.0).square().sum()


def divisor(metric: str, batch: Batch, mask: Mask) -> Tensor | int:
    """Return by how many numbers a sum of squared errors is divided for this metric.

    The frames of the batch's longest recording follow from the mask, so steps that were added
    behind it do not count.
    """
    _, B, bins = batch.y.shape
    assert batch.mask is not None
    if metric == "padded_mse" and batch.padded_to is not None:
        return B * batch.padded_to * bins
    if metric in ("padded_mse", "batch_padded_mse"):
        longest = batch.mask.any(1).sum() + (mask == "lengths-1")
        return B * longest * bins
    return batch.mask.sum() * bins

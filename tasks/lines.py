"""Batches of lines of unequal length: padded at the end, with a mask over the padding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from eigensweep.tasks.base import Batch


@dataclass(frozen=True, eq=False)
class Lines:
    """Lines of text. Each symbol of a line but the first is predicted from those before it."""

    symbols: NDArray[np.integer]
    """All lines, end to end."""
    begins: NDArray[np.int64]
    """Index into `symbols` of the first symbol of each line."""
    steps: NDArray[np.int64]
    """Number of symbols to predict in each line: all but the first."""

    @classmethod
    def of(cls, stream: NDArray[np.integer], end: int) -> Lines:
        """Return the lines of a stream in which each line ends with the symbol `end`."""
        ends = np.flatnonzero(stream == end)
        begins = np.append(0, ends[:-1] + 1)
        return cls(stream, begins, ends - begins - 1)

    def __len__(self) -> int:
        return len(self.begins)

    def by_length(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows sorted by the length of their lines; ties keep their order."""
        # NumPy sorts 16 bits five times as fast as 64; no line is that long.
        return rows[np.argsort(self.steps[rows].astype(np.uint16), kind="stable")]

    def batch(self, rows: NDArray[np.int64]) -> Batch:
        """Return these lines side by side: x, y and mask (τ, B); τ is the length of the longest."""
        step = np.arange(self.steps[rows].max())[:, None]
        mask = step < self.steps[rows]
        places = np.where(mask, self.begins[rows] + step, 0)
        x, y = (np.where(mask, self.symbols[p], 0).astype(np.int64) for p in (places, places + 1))
        return Batch(torch.from_numpy(x), torch.from_numpy(y), mask=torch.from_numpy(mask))

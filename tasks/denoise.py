"""Denoise: recall symbols that are scattered among blanks, in their order.

Source: the program of Jing et al., Gated orthogonal recurrent units, 2017. *Departure*: places are
drawn without replacement, so that no symbol is lost, and the marker has its own input symbol.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from eigensweep.tasks.recall import Alphabet, BatchSize, Recall, RecallConfig
from eigensweep.tasks.streams import below, draw


class DenoiseConfig(RecallConfig):
    """The settings of the denoise task."""

    name: Literal["denoise"] = "denoise"
    batch_size: BatchSize = 128
    alphabet: Alphabet = 9


class Denoise(Recall):
    """Recall `symbols` symbols that were scattered among blanks, starting one step after a marker.

    The symbols stand at S different steps among the first T+S-1. All sets of steps are equally
    likely.

    >>> print(Denoise(DenoiseConfig(delay=6, symbols=3)).picture(seed=1))
    input   . . 4 3 . . . 6 : . . .
    target  . . . . . . . . . 4 3 6
    """

    Config = DenoiseConfig
    config: DenoiseConfig

    def sequences(
        self, stream: str, rows: Sequence[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        S, T, K = self.config.symbols, self.config.delay, self.config.alphabet
        marker = T + S - 1
        numbers = draw(stream, rows, S + marker)
        string = 1 + below(numbers[:, :S], K).T
        places = np.argpartition(numbers[:, S:], S - 1, axis=1)[:, :S]  # of the S smallest
        x = np.zeros((T + 2 * S, len(rows)), dtype=np.int64)
        y = np.zeros_like(x)
        x[np.sort(places, axis=1).T, np.arange(len(rows))] = y[T + S :] = string
        x[marker] = K + 1
        return x, y

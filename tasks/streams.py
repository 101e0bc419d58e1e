"""Random numbers that are looked up rather than drawn in turn.

A generated data set is never held in memory: row r of a stream is computed from the stream's name
and r whenever it is asked for. Names such as `adding/train/7` tell tasks, splits and seeds apart,
so no stream ever moves another.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

MAX_SIZE = 10_000_000
"""Most rows of a data set: the order of an epoch is held in memory, 8 bytes a row."""


def draw(stream: str, rows: Sequence[int] | NDArray[np.int64], count: int) -> NDArray[np.uint64]:
    """Return uniform 64-bit numbers, (rows, count); row r depends on `stream` and r alone.

    The generator is Philox 4x64-10 with the first 16 bytes of SHA-256 of the name as its key and
    [0, r, 0, 0] as its counter. Raw output is used, which NumPy keeps frozen: the numbers are the
    same on every machine. A shorter row is the beginning of a longer one.
    """
    key = hashlib.sha256(stream.encode()).digest()[:16]
    counter = np.zeros(4, np.uint64)
    state: Any = {
        "bit_generator": "Philox",
        "state": {"counter": counter, "key": np.frombuffer(key, dtype="<u8")},
        **_NOTHING_AHEAD,
    }
    generator = _generator()
    numbers = np.empty((len(rows), count), dtype=np.uint64)
    for i, row in enumerate(rows):
        counter[:] = 0, row, 0, 0
        generator.state = state  # a tenth of the cost of a new generator
        numbers[i] = generator.random_raw(count)
    return numbers


_NOTHING_AHEAD = {
    "buffer": np.zeros(4, np.uint64),
    "buffer_pos": 4,
    "has_uint32": 0,
    "uinteger": 0,
}
_of_thread = threading.local()


def _generator() -> Philox:
    """Return this thread's generator, whatever its state."""
    if not hasattr(_of_thread, "generator"):
        _of_thread.generator = Philox(0)
    return _of_thread.generator


def uniform(numbers: NDArray[np.uint64]) -> NDArray[np.float32]:
    """Return the numbers as floats in [0, 1), multiples of 2^-24, all of them exact."""
    return (numbers >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)


def below(numbers: NDArray[np.uint64], bound: int) -> NDArray[np.int64]:
    """Return the numbers as integers in 0..bound-1."""
    return (numbers % np.uint64(bound)).astype(np.int64)


@lru_cache(maxsize=16)
def shuffled(stream: str, epoch: int, size: int) -> NDArray[np.int64]:
    """Return 0..size-1 in the order of an epoch, read-only; the last few orders are kept."""
    order = np.argsort(draw(stream, [epoch], size)[0], kind="stable")
    order.setflags(write=False)
    return order


def chunks(size: int, length: int, positions: int = 200_000) -> list[range]:
    """Return rows 0..size-1 in chunks of about `positions` time steps, at most 1,000 rows each."""
    rows = min(1_000, max(1, positions // length))
    return [range(start, min(start + rows, size)) for start in range(0, size, rows)]

"""Random numbers by stream and row, so that a generated data set is never held in memory.

Row r of a stream is computed from the stream's name and r, whenever it is needed. Each task, split
and seed has its own name, such as `adding/train/7`, so no stream depends on another.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

MAX_SIZE = 10_000_000
"""Most rows of a data set. The order of an epoch is held in memory, 8 bytes for each row."""
MOST_CACHED, CACHED_BYTES = 128, 64 * 2**20
"""Most orders of epochs that are kept in memory, and their bytes beyond the first 16."""


def draw(stream: str, rows: Sequence[int] | NDArray[np.int64], count: int) -> NDArray[np.uint64]:
    """Return random 64-bit numbers, (rows, count); row r depends on `stream` and r alone.

    The generator is Philox 4x64-10. Its key is the first 16 bytes of the SHA-256 of the stream's
    name, and its counter is [0, r, 0, 0]. The numbers are the same on every machine, since NumPy
    never changes the generator's raw output. A shorter row is the beginning of a longer one.
    """
    key = hashlib.sha256(stream.encode()).digest()[:16]
    counter = np.zeros(4, np.uint64)
    state: Any = {
        "bit_generator": "Philox",
        "state": {"counter": counter, "key": np.frombuffer(key, dtype="<u8")},
        **_EMPTY_BUFFER,
    }
    generator = _generator()
    numbers = np.empty((len(rows), count), dtype=np.uint64)
    for i, row in enumerate(rows):
        counter[:] = 0, row, 0, 0
        generator.state = state  # takes a tenth of the time of a new generator
        numbers[i] = generator.random_raw(count)
    return numbers


_EMPTY_BUFFER = {
    "buffer": np.zeros(4, np.uint64),
    "buffer_pos": 4,
    "has_uint32": 0,
    "uinteger": 0,
}
_of_thread = threading.local()


def _generator() -> Philox:
    """Return this thread's generator, in any state."""
    if not hasattr(_of_thread, "generator"):
        _of_thread.generator = Philox(0)
    return _of_thread.generator


def uniform(numbers: NDArray[np.uint64]) -> NDArray[np.float32]:
    """Return the numbers as floats in [0, 1): multiples of 2^-24, which float32 holds exactly."""
    return (numbers >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)


def below(numbers: NDArray[np.uint64], bound: int) -> NDArray[np.int64]:
    """Return the numbers as integers from 0 to bound - 1."""
    return (numbers % np.uint64(bound)).astype(np.int64)


def epoch_order(stream: str, epoch: int, size: int) -> NDArray[np.int64]:
    """Return 0 to size - 1 in the random order of an epoch; read-only.

    The latest are cached: 16, and for each of many lanes its own as far as `CACHED_BYTES` reach.
    """
    key = stream, epoch, size
    with _cache_lock:
        if key in _orders:
            _orders.move_to_end(key)
            return _orders[key]
    order = np.argsort(draw(stream, [epoch], size)[0], kind="stable")
    order.setflags(write=False)
    with _cache_lock:
        _orders[key] = order
        while len(_orders) > 16 and sum(each.nbytes for each in _orders.values()) > CACHED_BYTES:
            _orders.popitem(last=False)
        if len(_orders) > MOST_CACHED:
            _orders.popitem(last=False)
    return order


_orders: OrderedDict[tuple[str, int, int], NDArray[np.int64]] = OrderedDict()
_cache_lock = threading.Lock()


def chunks(size: int, length: int, positions: int = 200_000) -> list[range]:
    """Cut the rows 0 to size - 1 into chunks of at most 1,000 rows and about `positions` steps.

    A row has `length` time steps.
    """
    rows = min(1_000, max(1, positions // length))
    return [range(start, min(start + rows, size)) for start in range(0, size, rows)]

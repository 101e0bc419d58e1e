"""A set of digests of points and configurations, for experiments of up to a million trials."""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np

MOST_NEW: Final = 4096
"""Digests kept as Python's numbers, of 80 bytes each, before they are merged into the array."""


def digest(*words: str) -> int:
    """Return a digest of words in 64 bits.

    With a million trials, two digests collide in one of about 40 million experiments.
    """
    content = "\0".join(words).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")


class Digests:
    """A set of digests that only grows, in eight bytes each.

    >>> seen = Digests()
    >>> seen.add(digest("scornn", "lr=0.1"))
    >>> digest("scornn", "lr=0.1") in seen, digest("lstm", "lr=0.1") in seen, len(seen)
    (True, False, 1)
    """

    def __init__(self) -> None:
        self._sorted = np.empty(0, dtype=np.uint64)
        self._new: set[int] = set()

    def add(self, each: int) -> None:
        """Put a digest in; do nothing if it is there."""
        if each in self:
            return
        self._new.add(each)
        if len(self._new) >= MOST_NEW:
            new = np.fromiter(self._new, dtype=np.uint64, count=len(self._new))
            self._sorted = np.sort(np.concatenate([self._sorted, new]))
            self._new = set()

    def __contains__(self, each: int) -> bool:
        if each in self._new:
            return True
        place = int(np.searchsorted(self._sorted, np.uint64(each)))
        return place < len(self._sorted) and int(self._sorted[place]) == each

    def __len__(self) -> int:
        return len(self._sorted) + len(self._new)

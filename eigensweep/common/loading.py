"""What a process loads once, and Python's garbage collector leaves alone."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def load_for_good() -> Iterator[None]:
    """Keep what is loaded inside, and what was there before, out of garbage collection.

    It is hundreds of thousands of objects, which stay until the process ends. To look at all of
    them takes 0.4 s in a service, and nobody is answered meanwhile. The collector would do so
    several times while they are loaded, and again later.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()

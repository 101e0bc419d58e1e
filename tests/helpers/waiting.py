"""How tests wait for other processes: they ask until it is so, with one common limit.

The limit only ends a test that hangs. No test says how fast something must be.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE = float(os.environ.get("TEST_PATIENCE", "300"))
"""Seconds until a wait gives up. A machine with a load of 15 stays far below."""


def wait_until(
    ask: Callable[[], T],
    describe: Callable[[], Any] = lambda: "it did not come about",
    pause: float = 0.1,
) -> T:
    """Return the first true answer of `ask`.

    Raises:
        AssertionError: with what `describe` returns, if there is none in `PATIENCE` seconds.
    """
    deadline = time.monotonic() + PATIENCE
    while not (answer := ask()):
        if time.monotonic() > deadline:
            raise AssertionError(f"after {PATIENCE:g} s: {describe()}")
        time.sleep(pause)
    return answer

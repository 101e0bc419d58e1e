"""How long a training may take no step before it counts as stalled."""

from __future__ import annotations

from typing import Final

STALL_SECONDS: Final = 1800.0
"""Patience with a training, where its spec does not say otherwise."""

OWN_PACE: Final = 10.0
"""A training that was slow before is waited for so many times its longest pause so far."""

START_SECONDS: Final = 600.0
"""Patience, at least, with an attempt that has not begun to train: its process may have to start,
to compile the steps and to read a corpus."""


def patience_with(stall_seconds: float | None, longest_pause: float = 0.0) -> float:
    """Return the seconds without a step after which a training counts as stalled.

    That is `limits.stall_seconds` of the spec, or by default half an hour. The default grows with
    the longest pause that the same training has made and come back from.

    >>> patience_with(None), patience_with(None, longest_pause=400), patience_with(60, 400)
    (1800.0, 4000.0, 60)
    """
    if stall_seconds is not None:
        return stall_seconds
    return max(STALL_SECONDS, OWN_PACE * longest_pause)

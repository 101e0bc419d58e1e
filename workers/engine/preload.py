"""Loads what a trial's process needs, before it has a trial."""

from __future__ import annotations

from contextlib import suppress

from eigensweep.workers.shared.loading import load_for_good


def load() -> None:
    """Import what takes seconds, as `TrialProcess` would, which does so again for nothing.

    Where something is missing the trial says so. An error here would only end the process.
    """
    with suppress(ImportError), load_for_good():
        from eigensweep.workers.engine import trial_process  # noqa: F401  (Ray)
        from eigensweep.workers.shared.code import own_code
        from eigensweep.workers.trial import attempt  # noqa: F401  (torch)

        own_code()

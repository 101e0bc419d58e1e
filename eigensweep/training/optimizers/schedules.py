"""How learning rates fall in the course of a training.

`halve_on_plateau`: the programs of Kerg et al., NeurIPS 2019, and Nguyen-Duy, Pham & Nguyen, ICLR
2023 tiny papers, halve every rate after each epoch without a new best validation loss.
`exponential`: that of Zhang, Lei & Dhillon, ICML 2018, multiplies it with 0.99 after each epoch.
"""

from __future__ import annotations

from eigensweep.search_spaces.trial import OptimizerConfig


class RateSchedule:
    """The factor on all learning rates of one training; `config` is resolved."""

    def __init__(self, config: OptimizerConfig) -> None:
        self.is_none = config.schedule == "none"
        """Whether the factor is always 1."""
        self._factor = config.schedule_factor or 1.0
        self._every, self._patience = config.schedule_every, config.schedule_patience
        self.falls = 0
        """How often the rates have fallen because there was no new best."""

    def factor(self, step: int) -> float:
        """Return what the rates of update `step` (0-based) are multiplied with."""
        falls = self.falls if self._every is None else step // self._every
        return self._factor**falls

    def see(self, stale: int) -> None:
        """Take in how many evaluations running have brought no new best."""
        if self._patience is not None and stale and stale % self._patience == 0:
            self.falls += 1

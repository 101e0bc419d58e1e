"""How learning rates rise and fall in the course of a training.

`halve_on_plateau`: the programs of Kerg et al., NeurIPS 2019, and Nguyen-Duy, Pham & Nguyen, ICLR
2023 tiny papers, halve every rate after each epoch without a new best validation loss.
`exponential`: that of Zhang, Lei & Dhillon, ICML 2018, multiplies it with 0.99 after each epoch.
`cosine`, and a warm-up before it: Loshchilov & Hutter, ICLR 2017, without restarts, and Orvieto et
al., ICML 2023, for the LRU.
"""

from __future__ import annotations

from math import cos, pi

from eigensweep.search_spaces.trial import OptimizerConfig


class RateSchedule:
    """The factor on all learning rates of one training; `config` is resolved."""

    def __init__(self, config: OptimizerConfig) -> None:
        self.is_none = config.schedule == "none" and not config.warmup_steps
        """Whether the factor is always 1."""
        self._name, self._warmup = config.schedule, config.warmup_steps
        self._factor = 1.0 if config.schedule_factor is None else config.schedule_factor
        self._every, self._patience = config.schedule_every, config.schedule_patience
        self.falls = 0
        """How often the rates have fallen because there was no new best."""

    def factor(self, step: int) -> float:
        """Return what the rates of update `step` (0-based) are multiplied with."""
        if step < self._warmup:
            return (step + 1) / self._warmup * self._fall(step)
        return self._fall(step)

    def see(self, stale: int) -> None:
        """Take in how many evaluations running have brought no new best."""
        if self._patience is not None and stale and stale % self._patience == 0:
            self.falls += 1

    def _fall(self, step: int) -> float:
        if self._name == "cosine":
            assert self._every is not None
            share = (step - self._warmup) / (self._every - self._warmup)
            left = (1 + cos(pi * min(max(share, 0.0), 1.0))) / 2
            return self._factor + (1 - self._factor) * left
        falls = self.falls if self._every is None else step // self._every
        return self._factor**falls

"""Finished results, here and in other experiments, that trials take over or go on from."""

from __future__ import annotations

from eigensweep.protocol.ledger import Finished, SweepLedger, TrialEntry
from eigensweep.results.trial_result import Result, Source
from eigensweep.search_spaces.spec import ExperimentSpec


class Donors:
    """Looks for trials of the same configuration and the same seed."""

    def __init__(self, spec: ExperimentSpec, ledger: SweepLedger) -> None:
        self._ledger = ledger
        self._is_population = spec.scheduler.name == "pbt"
        self._may_know = spec.reuse and not self._is_population

    def knows(self, entry: TrialEntry) -> bool:
        """Return whether any trial of the configuration has ended with a result."""
        return self._may_know and self._ledger.knows(entry.config_hash)

    def find_finished(self, entry: TrialEntry) -> Finished | None:
        """Return a result with all seeds and the whole budget of a trial."""
        config, steps = entry.config, entry.config["training"]["steps"]
        return self._ledger.find_finished(
            entry.config_hash, config["seed"], config["replicates"], steps
        )

    def find_donor(self, entry: TrialEntry, is_known: bool) -> tuple[Source | None, Result | None]:
        """Return the donor that a trial goes on from, beside its own checkpoints.

        The donor's result comes with it, if it has fewer seeds and the same budget. `is_known` is
        what `knows` says.
        """
        if self._is_population:
            return None, None
        config, steps = entry.config, entry.config["training"]["steps"]
        if entry.result is not None and entry.result.reused_from is not None:
            before = config if entry.earlier is None else entry.earlier.config
            is_of_budget = before["training"]["steps"] == steps
            return entry.result.reused_from, entry.result if is_of_budget else None
        if not is_known:
            return None, None
        part = self._ledger.find_part(entry.config_hash, config["seed"], steps)
        if part is not None:
            return part.source, part.result
        shorter = self._ledger.find_shorter(
            entry.config_hash, config["seed"], config["replicates"], steps
        )
        return (None, None) if shorter is None else (shorter.source, None)

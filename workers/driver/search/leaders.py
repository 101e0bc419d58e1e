"""More seeds for the leaders of a search that is over: how a race becomes work for the sweep.

An experiment with `racing` first finishes its search. Then each round reopens the leading trials,
and their processes train the new seeds alone: the earlier seeds are in their results. Optuna is not
told of a race, as it draws no more points.
"""

from __future__ import annotations

from eigensweep.protocol.ledger import TrialEntry
from eigensweep.protocol.messages import ConfigJson
from eigensweep.results.seeds import join_seeds
from eigensweep.results.trial_result import Outcome, Result


def give_seeds(entry: TrialEntry, replicates: int) -> tuple[ConfigJson, str]:
    """Return the configuration with which a trial is reopened, and the reason."""
    first = entry.config["seed"]
    old, new = first + entry.config["replicates"], first + replicates - 1
    seeds = f"seed {new}" if old == new else f"seeds {old} to {new}"
    return {**entry.config, "replicates": replicates}, f"{seeds} of the race"


def config_to_train(entry: TrialEntry) -> ConfigJson:
    """Return the configuration that a trial's process trains: with the new seeds alone, if any.

    If the result was taken over from another trial, the process gets all seeds, the earlier ones
    with that trial's checkpoints, so that the store has all seeds in one place.
    """
    new = _count_new(entry)
    if not new:
        return entry.config
    old = entry.config["replicates"] - new
    return {**entry.config, "seed": entry.config["seed"] + old, "replicates": new}


def complete_result(entry: TrialEntry, outcome: Outcome, result: Result | None) -> Result | None:
    """Return the result over all seeds of a trial whose process trained only the new ones."""
    if result is None or entry.result is None or outcome == "reused" or not _count_new(entry):
        return result
    return join_seeds(entry.result, result)


def _count_new(entry: TrialEntry) -> int:
    """Return how many new seeds the process of a reopened trial trains."""
    taken_over = entry.result is not None and entry.result.reused_from is not None
    return 0 if taken_over else entry.added_seeds

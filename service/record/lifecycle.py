"""The states of experiments and trials, and which may follow which."""

from __future__ import annotations

from typing import Final, Literal, get_args

from eigensweep.workers.shared.ledger import ExperimentEnd, Outcome, TrialState

ExperimentState = Literal["queued", "running"] | ExperimentEnd
"""A queued experiment has no driver yet; a running one has one, or gets one again."""

Intent = Literal["run", "cancel"]
"""What the person wants of an experiment."""

ENDED: Final[frozenset[str]] = frozenset(get_args(ExperimentEnd))
OUTCOMES: Final[frozenset[str]] = frozenset(get_args(Outcome))
RANKED: Final[frozenset[str]] = frozenset({"completed", "reused"})
"""The outcomes whose value counts in the ranking."""

EXPERIMENT_STATES: Final[tuple[ExperimentState, ...]] = (
    "queued",
    "running",
    "completed",
    "cancelled",
    "failed",
)
TRIAL_STATES: Final[tuple[TrialState, ...]] = ("waiting", "running", *get_args(Outcome))

NEXT: Final[dict[str, frozenset[str]]] = {
    "queued": frozenset({"running", "cancelled", "failed"}),
    "running": frozenset(ENDED),
    **{state: frozenset() for state in ENDED},
}
"""Experiment state to the states that may follow it."""


def may_follow(state: str, following: str) -> bool:
    """Return whether an experiment in `state` may become `following`.

    >>> may_follow("queued", "cancelled"), may_follow("cancelled", "running")
    (True, False)
    """
    return following in NEXT[state]

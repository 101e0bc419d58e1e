"""The states of trials, experiments and analyses, and which of them are ends."""

from __future__ import annotations

from typing import Final, Literal, get_args

Outcome = Literal["completed", "pruned", "diverged", "failed", "cancelled", "reused", "invalid"]
"""How a trial can end."""

OpenTrialState = Literal["waiting", "running"]
"""A trial that has not ended: it waits for a process, or it has one."""

TrialState = OpenTrialState | Outcome

ExperimentEnd = Literal["completed", "failed", "cancelled"]

ExperimentState = Literal["queued", "running"] | ExperimentEnd
"""A queued experiment has no driver yet; a running one has one, or gets a new one."""

Intent = Literal["run", "cancel"]
"""What the person wants of an experiment."""

OPEN_TRIALS: Final[tuple[OpenTrialState, ...]] = get_args(OpenTrialState)
OUTCOMES: Final[frozenset[str]] = frozenset(get_args(Outcome))
RANKED: Final[frozenset[str]] = frozenset({"completed", "reused"})
"""The outcomes whose value counts in the ranking."""
INSTRUCTIVE: Final[frozenset[str]] = RANKED | {"diverged"}
"""The outcomes that tell a later search something about a configuration."""


def brings_back(earlier: Outcome, outcome: Outcome) -> bool:
    """Return whether a trial that was opened again becomes what it was before.

    That is so if its new end tells less than the `earlier` one: a person or a limit cancelled it,
    or it failed where it had trained to an end before.

    >>> brings_back("completed", "failed"), brings_back("failed", "failed")
    (True, False)
    """
    return outcome == "cancelled" or (
        outcome == "failed" and earlier not in ("failed", "cancelled")
    )


TRIAL_STATES: Final[tuple[TrialState, ...]] = (*OPEN_TRIALS, *get_args(Outcome))

ENDED: Final[frozenset[str]] = frozenset(get_args(ExperimentEnd))
"""The states of an experiment that is over."""
EXPERIMENT_STATES: Final[tuple[ExperimentState, ...]] = (
    "queued",
    "running",
    "completed",
    "cancelled",
    "failed",
)

OPEN_ANALYSES: Final[frozenset[str]] = frozenset({"queued", "running"})
"""The states of an analysis that is not over."""

NEXT: Final[dict[str, frozenset[str]]] = {
    "queued": frozenset({"running", "cancelled", "failed"}),
    "running": ENDED,
    **{state: frozenset() for state in ENDED},
}
"""Experiment state to the states that may follow it."""


def may_follow(state: str, following: str) -> bool:
    """Return whether an experiment in `state` may become `following`.

    >>> may_follow("queued", "cancelled"), may_follow("cancelled", "running")
    (True, False)
    """
    return following in NEXT[state]

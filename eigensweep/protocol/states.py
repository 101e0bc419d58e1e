"""The states of experiments, trials and analyses, and which may follow which.

`EXPERIMENT_MOVES` and `TRIAL_MOVES` are the one place that says so. The record refuses every other
change, and writes the event that stands there in the transaction of the change.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from eigensweep.results.ranking import RANKED
from eigensweep.results.trial_result import Outcome

OpenTrialState = Literal["waiting", "running"]
"""A trial that has not ended: it waits for a process, or it has one."""

TrialState = Literal[OpenTrialState, Outcome]

ExperimentEnd = Literal["completed", "cancelled", "failed"]

Phase = Literal["starting", "waiting_for_room", "running"]
"""What the driver of an experiment that goes on is at: it starts, no node has room for a trial, or
trials have begun."""

ExperimentState = Literal[
    "queued", Phase, "pausing", "paused", "cancelling", ExperimentEnd, "deleting"
]
"""A queued or paused experiment has no driver; a finished one keeps its driver until delivery to
MLflow is complete."""

Intent = Literal["run", "pause", "cancel"]
"""What the person wants of an experiment."""

Action = Literal[
    "pause",
    "resume",
    "cancel",
    "prioritize",
    "retry",
    "extend",
    "archive",
    "unarchive",
    "deliver",
    "delete",
]
"""What a person can do to an experiment."""

OPEN_TRIALS: Final[tuple[OpenTrialState, ...]] = get_args(OpenTrialState)
OUTCOMES: Final[frozenset[str]] = frozenset(get_args(Outcome))
INSTRUCTIVE: Final[frozenset[str]] = RANKED | {"diverged", "pruned"}
"""The outcomes that tell a later search something about a configuration."""

UNTRAINED: Final[frozenset[str]] = frozenset({"failed", "stalled"})
"""The outcomes of trials that could not be trained to an end, although nobody stopped them."""


def brings_back(earlier: Outcome, outcome: Outcome) -> bool:
    """Return whether a trial that was opened again becomes what it was before.

    That is so if its new end tells less than the `earlier` one: a person or a limit cancelled it,
    or it failed or hung where it had trained to an end before. One that was cancelled before has
    come further since.

    >>> brings_back("completed", "failed"), brings_back("failed", "stalled")
    (True, False)
    """
    if earlier == "cancelled":
        return False
    return outcome == "cancelled" or (outcome in UNTRAINED and earlier not in UNTRAINED)


TRIAL_STATES: Final[tuple[TrialState, ...]] = get_args(TrialState)

TRIAL_ENDS: Final[dict[str, str]] = {outcome: outcome for outcome in get_args(Outcome)}

TRIAL_MOVES: Final[dict[str, dict[str, str]]] = {
    "waiting": {"running": "started", **TRIAL_ENDS},
    # From running to running: the driver was lost, and the next one begins another attempt.
    "running": {"running": "started", "waiting": "interrupted", **TRIAL_ENDS},
    **{outcome: {"waiting": "reopened"} for outcome in get_args(Outcome)},
    "invalid": {},
}
"""Trial state to the states that may follow it, each with the kind of its event, `trial.KIND`.

A trial that was opened again in vain is again what it was: that event is `trial.kept`."""

ENDED: Final[frozenset[str]] = frozenset(get_args(ExperimentEnd))
"""The states of an experiment that is over."""
PHASES: Final[frozenset[str]] = frozenset(get_args(Phase))
"""The states of an experiment whose driver starts trials, or waits to."""
DRIVEN: Final[frozenset[str]] = PHASES | {"pausing", "cancelling"}
"""The states in which an experiment has a driver, or gets another one."""
EXPERIMENT_STATES: Final[tuple[ExperimentState, ...]] = get_args(ExperimentState)

OPEN_ANALYSES: Final[frozenset[str]] = frozenset({"queued", "running"})
"""The states of an analysis that is not over."""

_ENDS: Final[dict[str, str]] = {end: end for end in get_args(ExperimentEnd)}
_ASKED: Final[dict[str, str]] = {"pausing": "pause_requested", "cancelling": "cancel_requested"}

EXPERIMENT_MOVES: Final[dict[str, dict[str, str]]] = {
    "queued": {
        "starting": "started",
        "paused": "paused",
        "cancelling": "cancel_requested",
        "failed": "failed",
    },
    "starting": {
        "waiting_for_room": "waiting_for_room",
        "running": "running",
        **_ASKED,
        **_ENDS,
    },
    "waiting_for_room": {"starting": "room_found", "running": "running", **_ASKED, **_ENDS},
    "running": {"waiting_for_room": "waiting_for_room", **_ASKED, **_ENDS},
    "pausing": {"paused": "paused", "cancelling": "cancel_requested", **_ENDS},
    "paused": {"queued": "resumed", "cancelling": "cancel_requested"},
    "cancelling": {"cancelled": "cancelled", "failed": "failed"},
    **{
        end: {"queued": "reopened", "deleting": "delete_requested"}
        for end in get_args(ExperimentEnd)
    },
    "deleting": {},
}
"""Experiment state to the states that may follow it, each with the kind of its event,
`experiment.KIND`."""

ACTIONS: Final[dict[Action, frozenset[str]]] = {
    "pause": frozenset({"queued", *get_args(Phase)}),
    "resume": frozenset({"paused"}),
    "cancel": frozenset({"queued", *get_args(Phase), "pausing", "paused"}),
    "prioritize": frozenset({"queued", *get_args(Phase), "pausing", "paused"}),
    "retry": ENDED,
    "extend": ENDED,
    "archive": ENDED,
    "unarchive": ENDED,
    "deliver": ENDED,
    "delete": ENDED,
}
"""What a person can do, and in which states of an experiment."""

DONE: Final[dict[Action, frozenset[str]]] = {
    "pause": frozenset({"pausing", "paused"}),
    "cancel": frozenset({"cancelling", "cancelled"}),
    "delete": frozenset({"deleting"}),
}
"""The states in which it was done before, so that doing it once more changes nothing; those of
other actions: none."""


def intent_of(state: str) -> Intent:
    """Return what the person wants of an experiment in this state.

    >>> intent_of("running"), intent_of("pausing"), intent_of("cancelled")
    ('run', 'pause', 'cancel')
    """
    if state in ("pausing", "paused"):
        return "pause"
    return "cancel" if state in ("cancelling", "cancelled") else "run"


def name_actions(state: str) -> str:
    """Return what a person can do to an experiment in this state, in words.

    >>> name_actions("paused"), name_actions("deleting")
    ('resume, cancel, prioritize', 'nothing but to wait')
    """
    found = [action for action, states in ACTIONS.items() if state in states]
    return ", ".join(found) or "nothing but to wait"

"""The experiment that is tracked, as its runs in MLflow describe it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import yaml

from eigensweep.common.direction import Better
from eigensweep.common.versions import git_revision, name_versions
from eigensweep.protocol.messages import ConfigJson, Params
from eigensweep.search_spaces.labels import format_value, shorten_paths
from eigensweep.search_spaces.sections import Arm
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.workers.tracking.mlflow_runs import flatten
from eigensweep.workers.tracking.run_writes import MLFLOW_USER

BUDGET, SIZE = "model.parameters", "model.hidden_size"


@dataclass(frozen=True)
class TrackedExperiment:
    """The experiment that is tracked."""

    id: str
    name: str
    project: str
    description: str
    spec: str
    """As YAML."""
    metric: str
    """What trials are ranked by."""
    better: Better
    tags: dict[str, str]
    """What every run of it carries."""
    replicates: int
    """Seeds that every trial has; a race gives some of them more."""
    races: bool
    """Whether there is a race, so that trials which have ended may go on."""
    axes: dict[str, tuple[str, ...]]
    """What the search varies in each arm: dotted paths, in the order of the spec."""
    settings: dict[str, dict[str, object]]
    """What each arm sets for itself, by dotted path."""
    constants: dict[str, object]
    """What the spec sets for all arms, by dotted path."""

    @cached_property
    def all_axes(self) -> tuple[str, ...]:
        """What the search varies in any arm."""
        return tuple(dict.fromkeys(path for paths in self.axes.values() for path in paths))

    @cached_property
    def _labels(self) -> Mapping[str, str]:
        return shorten_paths(self.all_axes)

    def name_trial(self, number: int, arm: str, params: Params) -> str:
        """Return the name of a trial's run: its number, its arm, and what the search chose.

        MLflow's lists show the beginning of a name, so the number comes first.
        """
        chosen = (f"{self._labels.get(p, p)}={format_value(v)}" for p, v in params.items())
        return " ".join([str(number), arm, *chosen])

    def describe(self, arm: str, params: Params, config: ConfigJson) -> dict[str, object]:
        """Return what a trial's run shows as its own parameters, by dotted path.

        Where a budget of free parameters is given, the size that follows from it is one of them.
        """
        own = self.settings.get(arm, {}) | params
        size = config.get("model", {}).get("hidden_size")
        if size is not None and BUDGET in self.constants.keys() | own.keys():
            own[SIZE] = size
        return own


def make_subject(
    experiment: str, spec: ExperimentSpec, better: Better, owner: str
) -> TrackedExperiment:
    """Return how MLflow describes the experiment, with the versions that run it here."""
    space = spec.space()
    axes = {arm: tuple(space.axes(arm)) for arm in space.arms}
    return TrackedExperiment(
        id=experiment,
        name=spec.name,
        project=spec.project,
        description=spec.description,
        spec=yaml.safe_dump(spec.model_dump(mode="json", exclude_unset=True), sort_keys=False),
        metric=spec.objective_metric.name,
        better=better,
        replicates=spec.replicates,
        races=spec.racing is not None,
        axes=axes,
        settings={arm.label: _settings(arm) for arm in spec.arms or ()},
        constants=_constants(spec),
        tags={
            **spec.tags,
            MLFLOW_USER: owner,
            "eigensweep.versions": name_versions(),
            "eigensweep.git": git_revision(),
        },
    )


SHARED = (
    "task",
    "model",
    "optimizer",
    "training",
    "search",
    "scheduler",
    "replicates",
    "racing",
    "seed",
)
"""The parts of a spec that all arms share."""


def _constants(spec: ExperimentSpec) -> dict[str, object]:
    shared = spec.model_dump(mode="json", include=set(SHARED), exclude_unset=True)
    shared.get("search", {}).pop("space", None)
    return flatten(shared)


def _settings(arm: Arm) -> dict[str, object]:
    own = {"model", "optimizer"}
    return flatten(arm.model_dump(mode="json", include=own, exclude_unset=True))

"""The sections of a spec: an arm, the search, the scheduler, resources, limits.

The unions of models and of tasks are made from the registries, so what an installed package adds
appears in specs, messages and the JSON Schema by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, Union

from pydantic import Field

from eigensweep.models import MODELS
from eigensweep.models.base import ModelConfig
from eigensweep.registry import Registry
from eigensweep.search_spaces.parameters import Parameter
from eigensweep.search_spaces.trial import OptimizerConfig, Strict
from eigensweep.tasks import TASKS
from eigensweep.tasks.base import TaskConfig

Name = Annotated[str, Field(min_length=1, max_length=120, pattern=r"^[^\x00-\x1f\x7f]+$")]
ArmName = Annotated[str, Field(max_length=60, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
Line = Annotated[str, Field(max_length=200)]
SpaceField = Annotated[dict[str, Parameter], Field(max_length=64)]
"""Dotted path to what it may be; at most 64 parameters."""


def union_of(registry: Registry[Any]) -> Any:
    """Return the union of the configs of a registry, told apart by `name`."""
    configs = tuple(cls.Config for cls in registry.values())
    return Annotated[Union[configs], Field(discriminator="name")]  # noqa: UP007


if TYPE_CHECKING:
    AnyModel: TypeAlias = ModelConfig
    AnyTask: TypeAlias = TaskConfig
else:
    AnyModel = union_of(MODELS)
    AnyTask = union_of(TASKS)


class Arm(Strict):
    """One model with its optimizer and what the search varies on it."""

    name: ArmName | None = Field(None, description="Default: the model's name")
    model: AnyModel
    optimizer: OptimizerConfig | None = Field(None, description="Default: the spec's own")
    space: SpaceField = Field({}, description="Added to `search.space`, and in its place")

    @property
    def label(self) -> str:
        """The arm's name."""
        return self.name or self.model.name


class SearchConfig(Strict):
    """How configurations are chosen."""

    method: Literal["grid", "random", "tpe"] = Field(
        "grid",
        description="Every point once, in order; points at random; or Optuna's TPE. None repeats",
    )
    space: SpaceField = Field(
        {}, description="Dotted path (model., optimizer., task., training.) to what it may be"
    )
    seed: int = Field(0, ge=0, lt=2**31, description="Seed of the choice of configurations")
    trials: int | None = Field(
        None, ge=1, le=1_000_000, description="Trials to choose; random and TPE need it"
    )


class SchedulerConfig(Strict):
    """Which trials are stopped at a rung because others do better."""

    name: Literal["none", "asha", "median"] = Field(
        "none", description="None; successive halving without waiting; or below the running median"
    )
    rung_every: int | None = Field(
        None, ge=1, description="Steps between rungs; default: about a tenth of the budget"
    )
    min_steps: int | None = Field(
        None, ge=1, description="No trial is stopped before; default: the first rung"
    )
    reduction_factor: int = Field(
        3, ge=2, le=100, description="ASHA: one trial in so many goes on at each rung"
    )
    min_samples: int = Field(
        3, ge=1, description="Median: other trials that must have reached a rung to compare with"
    )


class ResourcesConfig(Strict):
    """What one trial occupies."""

    cpus: float = Field(1.0, gt=0, le=1024, description="CPU cores")
    gpus: float = Field(0.0, ge=0, le=64, description="A fraction lets trials share a GPU")


class LimitsConfig(Strict):
    """Where an experiment ends, whatever its search would still like to do."""

    trials: int | None = Field(None, ge=1, le=1_000_000, description="At most so many trials")
    wall_seconds: float | None = Field(
        None, gt=0, description="After so long, open trials are cancelled"
    )
    concurrency: int | None = Field(None, ge=1, le=10_000, description="Trials at once")
    grid: int = Field(
        10_000, ge=1, le=1_000_000, description="A grid of more points is refused when posted"
    )


class PublishedNumber(Strict):
    """One number that a paper prints, to be held beside a measured one."""

    id: Line | None = Field(None, description="Number of the row, as the project counts them")
    model: Line | None = None
    hidden: Line | None = Field(None, description="Hidden size as printed")
    parameters: Line | None = Field(None, description="Parameters as printed")
    metric: Line
    value: float
    note: Line | None = None

"""TrialConfig: the recipe of one trial, and the hash that names its result.

A TrialConfig is a spec with one point applied. It is frozen, survives JSON unchanged, and is what
Ray carries, MLflow stores and a rerun reads.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny

from models import MODELS
from models.base import ModelConfig
from tasks import TASKS
from tasks.base import TaskConfig

TRAINER_RESULT_VERSION = 1
"""Raised when a change of `workers/training.py` makes the same config give other results."""


class Strict(BaseModel):
    """Frozen, refuses unknown fields and numbers that are not finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class OptimizerConfig(Strict):
    """How parameters are updated; `name_orth` and `lr_orth` are for the group `orth`, if any."""

    name: Literal["adam", "rmsprop", "adagrad"] = Field("adam", description="Update rule")
    lr: float = Field(1e-3, gt=0, le=100, description="Learning rate")
    name_orth: Literal["adam", "rmsprop", "adagrad"] | None = Field(
        None, description="Optimizer of the orthogonal group; default: `name`"
    )
    lr_orth: float | None = Field(
        None, gt=0, le=100, description="Learning rate of the orthogonal group; default: `lr`"
    )
    alpha: float = Field(0.9, ge=0, lt=1, description="RMSprop's smoothing")
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = Field(
        (0.9, 0.999), description="Adam's decay rates"
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="RMSprop's momentum")
    weight_decay: float = Field(0.0, ge=0, le=1, description="Coupled L2 decay; never on `orth`")
    clip_norm: float | None = Field(
        None, gt=0, description="Clip the global L2 norm of the gradient"
    )
    clip_value: float | None = Field(None, gt=0, description="Clip each entry of the gradient")

    def checked(self) -> None:
        """Raise ValueError if both clippings are given."""
        if self.clip_norm is not None and self.clip_value is not None:
            raise ValueError(
                "optimizer takes 'clip_norm' or 'clip_value' or neither; both are given"
            )


class TrainingConfig(Strict):
    """How long a trial trains and when it looks at the validation data."""

    steps: int | None = Field(None, ge=1, le=10**9, description="Optimizer steps; or give `epochs`")
    epochs: float | None = Field(None, gt=0, le=10**6, description="Passes over the training data")
    evaluate_every: int | None = Field(
        None, ge=1, description="Steps between evaluations; default: the task's own"
    )
    log_every: int = Field(10, ge=1, description="Steps between points of the training curve")
    patience: int | None = Field(
        None,
        ge=1,
        description="Stop after this many evaluations without a new best; default: never",
    )

    def resolved(self, task: TaskConfig) -> Self:
        """Return the budget in steps, with every default filled in.

        Raises:
            ValueError: unless exactly one of `steps` and `epochs` is given.
        """
        if (self.steps is None) == (self.epochs is None):
            given = "both are" if self.steps is not None else "neither is"
            raise ValueError(f"training takes exactly one of 'steps' and 'epochs'; {given} given")
        steps = self.steps
        if steps is None:
            assert self.epochs is not None
            steps = max(1, round(self.epochs * task.steps_per_epoch))
        every = self.evaluate_every or task.default_evaluate_every
        return self.model_copy(update={"steps": steps, "epochs": None, "evaluate_every": every})


class DivergenceConfig(Strict):
    """When a trial counts as diverged, beside a loss or gradient that is not finite."""

    factor: float = Field(
        100.0,
        gt=1,
        description="Too high is a loss so many times the baseline, or the first value if larger",
    )
    evaluations: int = Field(
        3, ge=1, description="Evaluations running at which it must be too high"
    )


class ObjectiveConfig(Strict):
    """What trials are ranked by: the best validation value of one of the task's metrics."""

    metric: str | None = Field(None, description="Default: the task's loss")


class TrialConfig(Strict):
    """One configuration, complete: every size absolute, every default filled in."""

    task: SerializeAsAny[TaskConfig]
    model: SerializeAsAny[ModelConfig]
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig
    divergence: DivergenceConfig = DivergenceConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    seed: int = Field(0, ge=0, lt=2**31, description="Seed of the first replicate; next ones add 1")
    replicates: int = Field(1, ge=1, le=1000)

    @property
    def seeds(self) -> list[int]:
        """One seed for each replicate."""
        return list(range(self.seed, self.seed + self.replicates))

    def content_hash(self) -> str:
        """Return the name of this configuration's results, 16 hex digits; no budget, no seeds.

        (hash, seed, step reached) names a result for ever: a longer budget continues it.
        """
        content = self.model_dump(mode="json", exclude={"seed", "replicates"})
        for budget in ("steps", "epochs", "log_every"):
            content["training"].pop(budget, None)
        content["result_version"] = {
            "model": MODELS[self.model.name].result_version,
            "task": TASKS[self.task.name].result_version,
            "trainer": TRAINER_RESULT_VERSION,
        }
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Self:
        """Return the TrialConfig that `model_dump(mode="json")` gave as a dict."""
        task = TASKS[content["task"]["name"]].Config.model_validate(content["task"])
        model = MODELS[content["model"]["name"]].Config.model_validate(content["model"])
        return cls.model_validate({**content, "task": task, "model": model})

    def resolved(self) -> Self:
        """Return the config with sizes, budget and defaults absolute; what is hashed and run.

        Raises:
            ValueError: if fields contradict one another, with what is allowed.
        """
        self.task.checked()
        self.optimizer.checked()
        names = [m.name for m in self.task.metrics]
        metric = self.objective.metric or names[0]
        if metric not in names:
            raise ValueError(
                f"{self.task.name} has no metric '{metric}'; it has {', '.join(names)}"
            )
        optimizer = self.optimizer.model_copy(
            update={
                "name_orth": self.optimizer.name_orth or self.optimizer.name,
                "lr_orth": self.optimizer.lr_orth or self.optimizer.lr,
            }
        )
        return self.model_copy(
            update={
                "model": self.model.resolved(self.task.shapes),
                "optimizer": optimizer,
                "training": self.training.resolved(self.task),
                "objective": ObjectiveConfig(metric=metric),
            }
        )

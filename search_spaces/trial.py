"""TrialConfig: the recipe of one trial, and the hash that names its result.

A TrialConfig is a spec with one point applied. It is frozen, survives JSON unchanged, and is what
Ray carries, MLflow stores and a rerun reads.
"""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, SerializeAsAny

from eigensweep.common.made_of import MadeOf
from eigensweep.common.plain_numbers import PlainNumbers
from eigensweep.models import MODELS
from eigensweep.models.base import ModelConfig
from eigensweep.search_spaces.hashing import drop_removed_fields, select_hashed
from eigensweep.tasks import TASKS
from eigensweep.tasks.base import Metric, TaskConfig

TRAINER_RESULT_VERSION = 1
"""Raised when the same config gives other results than before: after a change of how trials are
trained, or of the default of a later field of the sections below (see `hashed_fields.yaml`)."""


class Strict(PlainNumbers, MadeOf):
    """Frozen, refuses unknown fields and numbers that are not finite or not written as numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


UpdateRule = Literal[
    "adam",
    "adamw",
    "sgd",
    "rmsprop",
    "adagrad",
    "adam_tf1",
    "rmsprop_tf1",
    "adagrad_tf1",
    "rmsprop_urnn",
]
ScheduleName = Literal["none", "exponential", "halve_on_plateau", "cosine"]
FACTORS: dict[ScheduleName, float] = {"exponential": 0.99, "halve_on_plateau": 0.5, "cosine": 0.0}
"""What `schedule_factor` is unless it is given."""


class OptimizerConfig(Strict):
    """How parameters are updated. `name_orth` and `lr_orth` are for the parameter group `orth`."""

    name: UpdateRule = Field(
        "adam",
        description="Update rule. As in TensorFlow 1, `rmsprop_tf1` and `adagrad_tf1` start their "
        "sums of squares at 1 and at 0.1, and `adam_tf1` adds epsilon before it corrects for the "
        "first steps; `rmsprop_urnn` is that of the uRNN's program: it starts at 0.001 and has no "
        "epsilon",
    )
    lr: float = Field(1e-3, gt=0, le=100, description="Learning rate")
    name_orth: UpdateRule | None = Field(
        None,
        description="Update rule of the orthogonal group (matrices that stay orthogonal or "
        "unitary); default: `name`",
    )
    lr_orth: float | None = Field(
        None, gt=0, le=100, description="Learning rate of the orthogonal group; default: `lr`"
    )
    alpha: float = Field(
        0.9, ge=0, lt=1, description="RMSprop: smoothing constant of the mean of squares"
    )
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = Field(
        (0.9, 0.999), description="Adam, AdamW: decay rates of the two means"
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="RMSprop, SGD: momentum")
    weight_decay: float = Field(
        0.0,
        ge=0,
        le=1,
        description="L2 penalty, added to the gradient. `adamw` has no penalty: each step takes "
        "this share, times the learning rate, off the weights. The orthogonal group has none",
    )
    clip_norm: float | None = Field(
        None,
        gt=0,
        description="Largest L2 norm of the whole gradient; a longer gradient is scaled down to it",
    )
    clip_value: float | None = Field(
        None,
        gt=0,
        description="Largest absolute value of an entry of the gradient; larger entries are cut "
        "to it",
    )
    schedule: ScheduleName = Field(
        "none",
        description="How both learning rates fall. `none`: they do not; `exponential`: by a "
        "factor every so many steps; `halve_on_plateau`: by a factor after "
        "evaluations without a new best; `cosine`: along half a wave of the cosine",
    )
    schedule_factor: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="Factor of both learning rates at each fall; default: 0.99 for `exponential`,"
        " 0.5 for `halve_on_plateau`. `cosine`: the share of them that is left in the end; "
        "default: 0",
    )
    schedule_every: int | None = Field(
        None,
        ge=1,
        description="`exponential`: steps between two falls; default: one epoch. `cosine`: the "
        "step at which the rates are at their lowest; default: the last one",
    )
    schedule_patience: int | None = Field(
        None,
        ge=1,
        description="`halve_on_plateau`: consecutive evaluations without a new best before each "
        "fall; default: 1",
    )
    warmup_steps: int = Field(
        0,
        ge=0,
        le=10**9,
        description="Steps in which both learning rates rise evenly to their values, with every "
        "schedule; `cosine` begins after them",
    )

    def check(self) -> None:
        """Raise ValueError if both kinds of clipping are given, or a field of another schedule."""
        if self.clip_norm is not None and self.clip_value is not None:
            raise ValueError(
                "optimizer takes 'clip_norm' or 'clip_value' or neither; both are given"
            )
        taken: dict[str, tuple[ScheduleName, ...]] = {
            "schedule_factor": ("exponential", "halve_on_plateau", "cosine"),
            "schedule_every": ("exponential", "cosine"),
            "schedule_patience": ("halve_on_plateau",),
        }
        for field, schedules in taken.items():
            if getattr(self, field) is not None and self.schedule not in schedules:
                raise ValueError(
                    f"optimizer takes '{field}' with schedule {' or '.join(schedules)}; "
                    f"the schedule is {self.schedule}"
                )
        if self.schedule_factor == 0 and self.schedule != "cosine":
            raise ValueError("optimizer takes 'schedule_factor' 0 with schedule cosine only")

    def resolve(self, task: TaskConfig, steps: int | None) -> Self:
        """Return the config with every default filled in, for a training of so many steps.

        Raises:
            ValueError: if no step is left for the schedule after the warm-up.
        """
        filled: dict[str, Any] = {
            "name_orth": self.name_orth or self.name,
            "lr_orth": self.lr_orth or self.lr,
        }
        if self.schedule != "none":
            given = self.schedule_factor
            filled["schedule_factor"] = FACTORS[self.schedule] if given is None else given
        if self.schedule == "exponential":
            filled["schedule_every"] = self.schedule_every or _steps_of_an_epoch(task)
        elif self.schedule == "halve_on_plateau":
            filled["schedule_patience"] = self.schedule_patience or 1
        elif self.schedule == "cosine":
            filled["schedule_every"] = last = self.schedule_every or steps
            if last is not None and last <= self.warmup_steps:
                raise ValueError(
                    f"with schedule cosine 'warmup_steps' is less than the {last:,} steps in which "
                    f"the rates rise and fall; got {self.warmup_steps:,}"
                )
        return self.model_copy(update=filled)


def say_foreign(error: BaseException) -> str:
    """Return what a person reads of an error in the code of an own model's or task's config."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{frame.name}, line {frame.lineno} of {Path(frame.filename).name}"
    return f"code of your package raised {type(error).__name__}: {error} (in {place})"


class TrainingConfig(Strict):
    """How long a trial trains, and when it is scored on the validation data."""

    steps: int | None = Field(
        None, ge=1, le=10**9, description="Optimizer steps; give either `steps` or `epochs`"
    )
    epochs: float | None = Field(
        None,
        gt=0,
        le=10**6,
        description="Passes over the training data; give either `steps` or `epochs`",
    )
    evaluate_every: int | None = Field(
        None, ge=1, description="Steps between two evaluations; default: chosen by the task"
    )
    log_every: int = Field(10, ge=1, description="Steps between two points of the training curve")
    patience: int | None = Field(
        None,
        ge=1,
        description="Consecutive evaluations without a new best after which training stops; "
        "default: it does not stop early",
    )
    test_every_evaluation: bool = Field(
        False,
        description="Also score the test data at each evaluation, and report the best and the "
        "last of these scores, as some papers do, beside those of the selected point",
    )

    spectra: bool = Field(
        False,
        description="Keep the eigenvalues and singular values of the recurrent matrix at each "
        "evaluation, for the analysis `spectra`; results do not depend on it",
    )

    def resolve(self, task: TaskConfig) -> Self:
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
    """When a trial counts as diverged, apart from a loss or gradient that is not finite."""

    factor: float = Field(
        100.0,
        gt=1,
        description="A loss is too high above this factor times the larger of the baseline and "
        "the loss before training",
    )
    evaluations: int = Field(
        3,
        ge=1,
        description="Consecutive evaluations with too high a loss after which the trial counts as"
        " diverged",
    )


class ObjectiveConfig(Strict):
    """What trials are ranked by: the best validation value of one of the task's metrics."""

    metric: str | None = Field(
        None,
        description="The metric; trials are ranked by its best validation value. Default: the "
        "task's loss",
    )


def _steps_of_an_epoch(task: TaskConfig) -> int:
    try:
        return task.steps_per_epoch
    except ValueError as error:
        raise ValueError(
            f"with schedule exponential the rates fall after each epoch, and {task.name} has none "
            "that its config tells: give 'optimizer.schedule_every', in steps"
        ) from error


def find_code(task: str, model: str, *, now: bool = False) -> str | None:
    """Return a digest of the installed packages that bring a task and a model, by their names.

    It is that of what this process has loaded, with `now` that of the files on the disk. None if
    both are the project's own.
    """
    found = TASKS.code_of(task, now=now), MODELS.code_of(model, now=now)
    return "+".join(dict.fromkeys(filter(None, found))) or None


class TrialConfig(Strict):
    """One configuration, complete: every size absolute, every default filled in."""

    task: SerializeAsAny[TaskConfig]
    model: SerializeAsAny[ModelConfig]
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig
    divergence: DivergenceConfig = DivergenceConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    seed: int = Field(
        0, ge=0, lt=2**31, description="Seed of the first replicate; each further replicate adds 1"
    )
    replicates: int = Field(
        1, ge=1, le=1000, description="Trainings of this configuration, each with its own seed"
    )

    code: str | None = Field(
        None,
        description="Digest of the installed packages that bring the task and the model; null if "
        "both are Eigensweep's own",
    )

    @property
    def seeds(self) -> list[int]:
        """One seed for each replicate."""
        return list(range(self.seed, self.seed + self.replicates))

    @property
    def objective_metric(self) -> Metric:
        """The metric that trials are ranked by.

        Raises:
            ValueError: if the task has no such metric, or has it on test data alone.
        """
        return self.task.objective_metric(self.objective.metric)

    def content_hash(self) -> str:
        """Return the name of this configuration's results: 16 hex digits, without budget and seeds.

        (hash, seed, step reached) names a result: a trial with a longer budget continues from it.
        """
        text = json.dumps(self.content_to_hash(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def settings_hash(self) -> str:
        """Return `content_hash` without the code: what a checkpoint is gone on from by.

        Whoever changes a model of their own and resumes an experiment goes on from its commits.
        """
        return self.model_copy(update={"code": None}).content_hash()

    def content_to_hash(self) -> dict[str, Any]:
        """Return what `content_hash` covers: settings and the versions of the code they go to."""
        content = select_hashed(self)
        content["result_version"] = {
            "model": MODELS[self.model.name].result_version,
            "task": TASKS[self.task.name].result_version,
            "trainer": TRAINER_RESULT_VERSION,
        }
        return content

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Self:
        """Return the TrialConfig that `model_dump(mode="json")` gave as a dict.

        It may come from an older version: fields that were removed since are left out.
        """
        task = TASKS[content["task"]["name"]].Config
        model = MODELS[content["model"]["name"]].Config
        stored_task = drop_removed_fields("task", content["task"], task.model_fields)
        stored_model = drop_removed_fields("model", content["model"], model.model_fields)
        return cls.model_validate(
            {
                **content,
                "task": task.model_validate(stored_task),
                "model": model.model_validate(stored_model),
            }
        )

    def find_contradictions(self) -> dict[str, str]:
        """Return by section, in words, the rules about several fields that this config breaks."""
        found: dict[str, str] = {}

        def check_optimizer() -> None:
            self.optimizer.check()
            if "task" not in found:
                steps = None
                with suppress(ValueError):  # told as one of the training
                    steps = self.training.resolve(self.task).steps
                self.optimizer.resolve(self.task, steps)

        rules: dict[str, Callable[[], object]] = {
            "task": self.task.check,
            "optimizer": check_optimizer,
            "model": self._resolve_model,
            "training": lambda: self.training.resolve(self.task),
            "objective": lambda: self.objective_metric,
        }
        for section, check in rules.items():
            if "task" in found and section != "optimizer":
                continue  # the others read the task
            try:
                check()
            except ValueError as error:
                found[section] = str(error)
            except (Exception, SystemExit) as error:
                if self.code is None:
                    raise
                found[section] = say_foreign(error)
        return found

    def _resolve_model(self) -> ModelConfig:
        """Return the model's config resolved; one of somebody's own counts its parameters."""
        model = self.model.resolve(self.task.shapes)
        count = 0 if self.code is None else model.free_parameters(self.task.shapes)
        if type(count) is not int:
            raise ValueError(
                f"{model.name}: free_parameters returned {count!r}, a {type(count).__name__}; it "
                "must be an int, as n * (n - 1) // 2 is"
            )
        return model

    def resolve(self) -> Self:
        """Return the config with sizes, budget and defaults absolute; what is hashed and run.

        Raises:
            ValueError: if fields contradict one another, with what is allowed.
        """
        self.task.check()
        self.optimizer.check()
        training = self.training.resolve(self.task)
        return self.model_copy(
            update={
                "model": self._resolve_model(),
                "optimizer": self.optimizer.resolve(self.task, training.steps),
                "training": training,
                "objective": ObjectiveConfig(metric=self.objective_metric.name),
            }
        )

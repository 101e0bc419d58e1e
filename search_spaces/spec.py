"""ExperimentSpec: at once the POST body, the YAML file, the preset and the stored JSON.

A spec is a base (task, models, optimizers, budget) and a search that varies fields of it by dotted
paths. `ExperimentSpec.trial` applies one point of the search. What pydantic cannot refuse field by
field is refused by `checks.check_spec`, before anything is queued.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice, product
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from eigensweep.models import MODELS
from eigensweep.models.base import ModelConfig
from eigensweep.search_spaces.config_fields import replace_fields
from eigensweep.search_spaces.constraints import Constraint
from eigensweep.search_spaces.errors import (
    ConstraintError,
    InvalidPointError,
    SpecError,
    UnreadableSpecError,
)
from eigensweep.search_spaces.hashing import drop_removed_fields
from eigensweep.search_spaces.sections import (
    COSTS,
    SEARCHED,
    AnyModel,
    AnyTask,
    Arm,
    LimitsConfig,
    Line,
    Name,
    Objectives,
    PublishedNumber,
    RacingConfig,
    ResourcesConfig,
    SchedulerConfig,
    SearchConfig,
    TagName,
    Words,
    drop_unseen,
)
from eigensweep.search_spaces.sequences import draw_at_random
from eigensweep.search_spaces.space import Point, Scalar, Space
from eigensweep.search_spaces.spec_text import TextError, read_text
from eigensweep.search_spaces.trial import (
    DivergenceConfig,
    ObjectiveConfig,
    OptimizerConfig,
    Strict,
    TrainingConfig,
    TrialConfig,
    find_code,
    say_foreign,
)
from eigensweep.tasks import TASKS
from eigensweep.tasks.base import Metric, TaskConfig

Config = TypeVar("Config", bound=BaseModel)

MOST_NAME = 120
LEAST_PRIORITY, LARGEST_PRIORITY = -1000, 1000
RUNGS = 10
"""Approximate number of rungs if the spec does not set `rung_every`."""
SAMPLE = 200
"""Points that are looked at where the extreme ones tell nothing."""
MOST_ENDS = 64
"""Tasks whose baselines are compared."""


class ExperimentSpec(Strict):
    """One task, one or more arms, a search, a budget.

    One arm may be written flat (`model`, `optimizer`). With `arms`, `optimizer` is the default of
    arms that have none.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        json_schema_extra={
            "examples": [
                {
                    "name": "a grid of nine",
                    "task": {"name": "copying", "delay": 100},
                    "model": {"name": "scornn", "hidden_size": 64},
                    "optimizer": {"name": "rmsprop"},
                    "training": {"steps": 1000, "evaluate_every": 100},
                    "search": {
                        "method": "grid",
                        "space": {
                            "optimizer.lr": [1e-2, 1e-3, 1e-4],
                            "model.negative_fraction": [0.0, 0.5, 1.0],
                        },
                    },
                },
                {
                    "name": "two models, the better half of TPE's thirty",
                    "task": {"name": "adding", "length": 200},
                    "arms": [
                        {
                            "model": {"name": "enrnn", "parameters": 15000},
                            "space": {
                                "model.short_fraction": [0.2, 0.4, 0.6],
                                "model.negative_fraction": {"low": 0.0, "high": 1.0, "step": 0.1},
                            },
                        },
                        {
                            "model": {"name": "lstm", "parameters": 15000},
                            "space": {"model.forget_bias": {"low": -4, "high": 4}},
                        },
                    ],
                    "training": {"epochs": 1},
                    "search": {
                        "method": "tpe",
                        "trials": 30,
                        "space": {"optimizer.lr": {"low": 1e-5, "high": 1e-2, "log": True}},
                    },
                    "scheduler": {"name": "asha"},
                },
            ]
        },
    )

    name: Name = Field("", description="Name of the experiment; default: its arms and its task")
    task: AnyTask = Field(description="The task that all arms learn")
    model: AnyModel | None = Field(
        None, description="The model, if there is only one; else give `arms`"
    )
    optimizer: OptimizerConfig = Field(
        OptimizerConfig(), description="Optimizer of the one model, and of each arm without its own"
    )
    arms: list[Arm] | None = Field(
        None,
        min_length=1,
        max_length=50,
        description="Models to compare on the task; or give `model`",
    )
    project: Name = Field("default", description="Experiment in MLflow that collects the runs")
    description: Words = Field("", max_length=5_000, description="Free text")
    tags: dict[TagName, Line] = Field(
        {},
        max_length=20,
        description="Names and values to find the experiment by; its runs in MLflow have them, too",
        examples=[{"paper": "rebuttal", "cluster": "a100"}],
    )
    source: Words = Field(
        "", max_length=500, description="Paper or program that the settings come from"
    )
    published: list[PublishedNumber] = Field(
        [], max_length=200, description="Numbers that a paper reports for this experiment"
    )
    search: SearchConfig = Field(
        SearchConfig(), description="What varies, and how configurations are chosen"
    )
    training: TrainingConfig = Field(
        TrainingConfig(), description="How long trials train, and when they are evaluated"
    )
    scheduler: SchedulerConfig = Field(
        SchedulerConfig(), description="Which trials are stopped early"
    )
    replicates: int = Field(
        1, ge=1, le=1000, description="Trainings of each configuration, each with its own seed"
    )
    racing: RacingConfig | None = Field(
        None,
        description="After the search: the configurations that may still be the best, or all "
        "arms, get more seeds, one after another, until it is decided which is better. Default: "
        "no configuration gets more than `replicates`",
    )
    seed: int = Field(
        0, ge=0, lt=2**30, description="Seed of the first replicate; each further replicate adds 1"
    )
    reuse: bool = Field(
        True,
        description="Whether results and checkpoints of the same configuration, trained by the "
        "same code, are reused. `false` trains everything anew",
    )
    objective: Objectives = Field(
        Objectives(), description="What trials are ranked by, and what that is weighed against"
    )
    divergence: DivergenceConfig = Field(
        DivergenceConfig(), description="When a trial counts as diverged"
    )
    resources: ResourcesConfig = Field(ResourcesConfig(), description="What one trial occupies")
    limits: LimitsConfig = Field(LimitsConfig(), description="Upper limits of the whole experiment")
    priority: int = Field(
        0,
        ge=LEAST_PRIORITY,
        le=LARGEST_PRIORITY,
        description="Experiments with a higher priority start first, and have places first",
    )

    @model_validator(mode="after")
    def _has_either_model_or_arms(self) -> Self:
        if (self.model is None) == (self.arms is None):
            given = "neither is" if self.model is None else "both are"
            raise ValueError(f"give exactly one of 'model' and 'arms'; {given} given")
        labels = [arm.label for arm in self.arms_]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            raise ValueError(f"two arms are called '{twice[0]}'; give each a 'name' of its own")
        for number in self.published:
            if number.arm is not None and number.arm not in labels:
                raise ValueError(
                    f"a published number stands beside arm '{number.arm}', which is not there; "
                    f"there are {', '.join(labels)}"
                )
        if not self.name:
            object.__setattr__(self, "name", self.default_name())
        return self

    def default_name(self) -> str:
        """Return the name of an experiment that was given none: its arms and its task."""
        labels = ", ".join(arm.label for arm in self.arms_)
        return f"{labels} on {self.task.name}"[:MOST_NAME]

    @classmethod
    def from_stored(cls, content: Mapping[str, Any]) -> Self:
        """Return the spec that `model_dump(mode="json")` gave, maybe in an older version.

        Fields that models and tasks have lost since are left out, and signs that texts may hold no
        more.

        Raises:
            UnreadableSpecError: if it names what is not here, such as a model of a package that is
                not installed any more.
        """
        current = dict(content)
        texts = {name: content[name] for name in ("description", "source") if content.get(name)}
        current |= {name: drop_unseen(text) for name, text in texts.items()}
        current["task"] = _drop_removed("task", content["task"])
        if content.get("model") is not None:
            current["model"] = _drop_removed("model", content["model"])
        if content.get("arms") is not None:
            current["arms"] = [
                {**arm, "model": _drop_removed("model", arm["model"])} for arm in content["arms"]
            ]
        try:
            return cls.model_validate(current)
        except ValidationError as error:
            raise UnreadableSpecError(_explain_unreadable(content, error)) from error

    @property
    def objective_metric(self) -> Metric:
        """The metric that trials are ranked by.

        Raises:
            ValueError: if the task has no such metric, or has it on test data alone.
        """
        return self.task.objective_metric(self.objective.metric)

    def goals(self, against: Sequence[str] | None = None) -> list[Metric]:
        """Return all that should be good, the metric that ranks first; `against` is the rest.

        Raises:
            ValueError: if one of them is neither a cost nor a metric of the task.
        """
        others = self.objective.against if against is None else against
        return [
            self.objective_metric,
            *(COSTS.get(name) or self.task.objective_metric(name) for name in others),
        ]

    @cached_property
    def baseline(self) -> float | None:
        """The memoryless baseline of the objective.

        None where the config alone does not tell, and where the search varies the task, so that
        trials have other ones.
        """
        found: set[float] = set()
        for fields in chain.from_iterable(map(_vary_task, self.arms_)):
            try:
                task = _change(self.task, fields or None)
            except ValidationError:
                continue  # there is no such trial
            try:
                found.add(task.baseline(self.objective_metric.name))
            except ValueError:
                return None
        return found.pop() if len(found) == 1 else None

    @cached_property
    def arms_(self) -> list[Arm]:
        """The arms, complete: each with its name, its optimizer and its whole space."""
        arms = self.arms
        if arms is None:
            assert self.model is not None
            arms = [Arm(model=self.model)]
        return [
            arm.model_copy(
                update={
                    "name": arm.label,
                    "optimizer": arm.optimizer or self.optimizer,
                    "space": {**self.search.space, **arm.space},
                }
            )
            for arm in arms
        ]

    def space(self) -> Space:
        """Return all points of the experiment.

        Raises:
            ConditionError: if a condition can never hold.
        """
        return Space({arm.label: arm.space for arm in self.arms_})

    def read_first(self, space: Space) -> Iterator[Point]:
        """Yield the points of `search.first`; `space` is this spec's own."""
        return (space.locate(each.arm, each.params) for each in self.search.first)

    def corners(self, space: Space, arm: str) -> Iterator[Point]:
        """Yield extreme points of an arm of this spec's own space, and others behind them.

        The others are there only where `search.constraints` may leave out all extreme points.
        """
        yield from space.corners(arm)
        if self.search.constraints:
            yield from self.sample(Space({arm: space.axes(arm)}))

    def sample(self, space: Space) -> Iterator[Point]:
        """Return all points of a small space, and of another some that are drawn at random."""
        size = space.count()
        if size is not None and size <= SAMPLE:
            return iter(space)
        return islice(draw_at_random(space, self.search.seed), SAMPLE)

    def trial_count(self) -> int | None:
        """Return the largest number of points that run, None if only time ends the search."""
        drawn = None if self.search.method == "grid" else self.search.trials
        bounds = [self._size, drawn, self.limits.trials]
        return min((bound for bound in bounds if bound is not None), default=None)

    @property
    def is_sampled(self) -> bool:
        """Whether a sample of a grid runs, spread over it, and not all of its points."""
        size, limit = self.space().count(), self.limits.trials
        is_part = size is not None and limit is not None and limit < size
        return self.search.method == "grid" and is_part

    @property
    def population(self) -> int | None:
        """Trials of a generation in each arm; None where the method has none or chooses itself."""
        if self.search.population is not None or self.search.method != "nsga2":
            return self.search.population
        share = (self.trial_count() or 0) // len(self.arms_) // 5
        return min(max(share, 4), 50)

    def trial(self, point: Point) -> TrialConfig:
        """Return the configuration at a point, resolved.

        Raises:
            InvalidPointError: if the point breaks a rule about several fields.
            ConstraintError: if it breaks one of `search.constraints`.
        """
        try:
            written = self._assemble(point)
            config = written.resolve()
        except ValidationError as error:
            message = _say_first(error)
        except ValueError as error:
            message = str(error)
        except (Exception, SystemExit) as error:
            if find_code(self.task.name, self._arm[point.arm].model.name) is None:
                raise
            message = say_foreign(error)
        else:
            self._check_constraints(point, written, config)
            return config
        raise InvalidPointError(f"arms.{point.arm}", message, got=dict(point.params))

    def keeps(self, point: Point) -> bool:
        """Tell whether a point keeps `search.constraints`."""
        try:
            self.trial(point)
        except ConstraintError:
            return False
        except InvalidPointError:
            pass  # it breaks another rule
        return True

    def _check_constraints(self, point: Point, written: TrialConfig, resolved: TrialConfig) -> None:
        fields: dict[str, dict[str, Any]] = {}
        for section in SEARCHED if self._constraints else ():
            fields[section] = dict(vars(getattr(written, section)))  # also shares, budgets, epochs
            known = vars(getattr(resolved, section)).items()
            fields[section] |= {name: value for name, value in known if value is not None}
        for constraint in self._constraints:
            try:
                words = "" if constraint.holds(fields) else f"'{constraint.text}' does not hold"
            except ValueError as error:
                words = str(error)
            if words:
                raise ConstraintError(f"arms.{point.arm}", words, got=dict(point.params))

    def find_contradictions(self, point: Point) -> dict[str, str]:
        """Return by section, in words, the rules about several fields that a point breaks."""
        try:
            return self._assemble(point).find_contradictions()
        except ValidationError as error:
            sections = {"task": self.task, "optimizer": self.optimizer, "training": self.training}
            classes = {type(config).__name__: section for section, config in sections.items()}
            return {classes.get(error.title, "model"): _say_first(error)}

    def _assemble(self, point: Point) -> TrialConfig:
        """Return the configuration at a point as it was written, before it is resolved."""
        arm = self._arm[point.arm]
        changes: dict[str, dict[str, Any]] = {}
        for path, value in point.params.items():
            section, _, field = path.partition(".")
            changes.setdefault(section, {})[field] = value
        return TrialConfig(
            task=_change(self.task, changes.get("task")),
            model=_change(arm.model, changes.get("model")),
            optimizer=_change(arm.optimizer or self.optimizer, changes.get("optimizer")),
            training=_change(self.training, changes.get("training")),
            divergence=self.divergence,
            objective=ObjectiveConfig(metric=self.objective.metric),
            seed=self.seed,
            replicates=self.replicates,
            code=find_code(self.task.name, arm.model.name),
        )

    def rung_steps(self, config: TrialConfig) -> list[int]:
        """Return the steps at which a trial reports: every few evaluations, and at its end."""
        steps = config.training.steps
        assert steps is not None
        stride = self._rung_stride(config)
        return [*range(stride, steps, stride), steps]

    def first_rung(self, config: TrialConfig) -> int:
        """Return the first of these steps, without listing them."""
        assert config.training.steps is not None
        return min(self._rung_stride(config), config.training.steps)

    def rung_count(self, config: TrialConfig) -> int:
        """Return how many rungs a trial has, without listing them."""
        assert config.training.steps is not None
        return -(-config.training.steps // self._rung_stride(config))

    def _rung_stride(self, config: TrialConfig) -> int:
        steps, every = config.training.steps, config.training.evaluate_every
        assert steps is not None
        assert every is not None
        if self.scheduler.rung_every is not None:
            return -(-self.scheduler.rung_every // every) * every
        return max(1, round(steps / every / RUNGS)) * every

    @cached_property
    def _size(self) -> int | None:
        """Number of points; where there are few, only of those that keep `search.constraints`."""
        space = self.space()
        size = space.count()
        if self.search.constraints and size is not None and size <= SAMPLE:
            return sum(map(self.keeps, space))
        return size

    @cached_property
    def _constraints(self) -> list[Constraint]:
        return [Constraint(text) for text in self.search.constraints]

    @cached_property
    def _arm(self) -> dict[str, Arm]:
        return {arm.label: arm for arm in self.arms_}


def _vary_task(arm: Arm) -> Iterator[dict[str, Scalar]]:
    """Yield the fields of the task at the ends of an arm's space; none, once, if none varies."""
    axes = {path: axis for path, axis in arm.space.items() if path.startswith("task.")}
    fields = [path.removeprefix("task.") for path in axes]
    for values in islice(product(*(axis.extremes() for axis in axes.values())), MOST_ENDS):
        yield dict(zip(fields, values, strict=True))


def _change(base: Config, changes: Mapping[str, Any] | None) -> Config:
    """Return a copy of `base` with other values in some fields, validated again.

    A default counts as not given: a spec that was stored has all of them.
    """
    if changes is None:
        return base
    given = base.model_dump(exclude_unset=True, exclude_defaults=True)
    if isinstance(base, ModelConfig | TaskConfig):
        given["name"] = base.name
    return type(base).model_validate({**given, **replace_fields(vars(base), changes)})


def _say_first(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _explain_unreadable(content: Mapping[str, Any], error: ValidationError) -> str:
    """Return in words why a stored spec is none here."""
    models = [content.get("model"), *(arm["model"] for arm in content.get("arms") or ())]
    missing = [
        f"its {kind} '{each['name']}'{_in_brackets(registry.explain_absence(each['name']))}"
        for kind, registry, named in (
            ("task", TASKS, [content["task"]]),
            ("model", MODELS, filter(None, models)),
        )
        for each in named
        if each["name"] not in registry
    ]
    if missing:
        words = ", ".join(dict.fromkeys(missing))
        return f"not installed here: {words}; install the package that brought it"
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    return f"this version cannot read its spec: {place}: {first['msg']}"


def _in_brackets(reason: str | None) -> str:
    return f" ({reason})" if reason else ""


def _drop_removed(section: Literal["task", "model"], stored: Mapping[str, Any]) -> dict[str, Any]:
    registry: Mapping[str, Any] = TASKS if section == "task" else MODELS
    if stored["name"] not in registry:
        return dict(stored)  # validation refuses the name, with the names that exist
    return drop_removed_fields(section, stored, registry[stored["name"]].Config.model_fields)


def read_spec(text: str) -> ExperimentSpec:
    """Return the spec that a YAML (or JSON) text describes.

    Raises:
        SpecError: if the text is not YAML, or not one object.
        pydantic.ValidationError: if it is not a spec.
    """
    try:
        content = read_text(text)
    except TextError as error:
        raise SpecError("", str(error), expected="YAML or JSON") from error
    if not isinstance(content, dict):
        raise SpecError("", "a spec is an object with a task and a model", expected="an object")
    return ExperimentSpec.model_validate(content)

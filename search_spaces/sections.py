"""The sections of a spec: an arm, the search, the scheduler, resources, limits.

The unions of models and of tasks are made from the registries, so what an installed package adds
appears in specs, messages and the JSON Schema by itself.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias, Union

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from eigensweep.common.direction import Better, sign
from eigensweep.common.registry import Registry
from eigensweep.models import MODELS
from eigensweep.models.base import ModelConfig
from eigensweep.search_spaces.constraints import Constraint
from eigensweep.search_spaces.parameters import Parameter, Value
from eigensweep.search_spaces.trial import ObjectiveConfig, OptimizerConfig, Strict
from eigensweep.tasks import TASKS
from eigensweep.tasks.base import Metric, TaskConfig

SEARCHED = "model", "optimizer", "task", "training"
"""Sections whose fields a search may vary."""

UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
"""Control characters, and those that change the direction of a text or cannot be seen in it."""


def _refuse_unseen(text: str) -> str:
    if found := UNSEEN.search(text):
        raise ValueError(
            "should hold no control characters and none that cannot be seen or turn the direction "
            f"of a text; it has U+{ord(found[0]):04X}"
        )
    return text


def _refuse_unseen_but_lines(text: str) -> str:
    _refuse_unseen(re.sub(r"[\t\r\n]", "", text))
    return text


def drop_unseen(text: str) -> str:
    """Return a text of several lines without what `Words` refuses."""
    return UNSEEN.sub(lambda found: found[0] if found[0] in "\t\r\n" else "", text)


Words = Annotated[str, AfterValidator(_refuse_unseen_but_lines)]
"""Free text of several lines."""
Name = Annotated[str, Field(min_length=1, max_length=120), AfterValidator(_refuse_unseen)]
ArmName = Annotated[str, Field(max_length=60, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
Line = Annotated[str, Field(max_length=200), AfterValidator(_refuse_unseen)]


TAG_NAME = r"[A-Za-z0-9][A-Za-z0-9_./ -]{0,59}"


def _check_tag_name(name: str) -> str:
    if not re.fullmatch(TAG_NAME, name):
        raise ValueError(
            "the name of a tag has at most 60 letters, digits, blanks and any of _ . / -, and "
            "begins with a letter or a digit"
        )
    if name.startswith(("mlflow.", "eigensweep.")):
        raise ValueError("tags of MLflow and of this service have such names; choose another")
    return name


TagName = Annotated[str, AfterValidator(_check_tag_name)]


def _read_rule(text: str) -> str:
    return Constraint(text).text


Rule = Annotated[str, Field(max_length=300), AfterValidator(_read_rule)]
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
    """One model, its optimizer, and what the search varies for it."""

    name: ArmName | None = Field(None, description="Name of the arm; default: the model's name")
    model: AnyModel = Field(description="The model")
    optimizer: OptimizerConfig | None = Field(
        None, description="Optimizer of this arm; default: the spec's `optimizer`"
    )
    space: SpaceField = Field(
        {},
        description="What varies in this arm only; it replaces entries of `search.space` with the"
        " same path",
    )

    @property
    def label(self) -> str:
        """The arm's name."""
        return self.name or self.model.name


SearchMethod = Literal["grid", "random", "qmc", "tpe", "gp", "cmaes", "nsga2"]
JOINT: frozenset[SearchMethod] = frozenset({"gp", "cmaes", "nsga2"})
"""Methods that look at all parameters of an arm together; the arms take turns."""
LEARNING: frozenset[SearchMethod] = JOINT | {"tpe"}
"""Methods that choose points by the results so far."""
IN_GENERATIONS: frozenset[SearchMethod] = frozenset({"cmaes", "nsga2"})


class FirstPoint(Strict):
    """A point of the search that a person names: `arm` and `params` as in a trial's answer."""

    arm: ArmName | None = Field(
        None, description="Arm of the point; not needed if there is only one"
    )
    params: Annotated[dict[str, Value], Field(max_length=64)] = Field(
        {}, description="Value of each parameter that exists at the point, by dotted path"
    )


class SearchConfig(Strict):
    """How configurations are chosen."""

    method: SearchMethod = Field(
        "grid",
        description="`grid`: every point once, in order, or with `limits.trials` a sample that is "
        "spread over the grid; `random`: points drawn at random; `qmc`: points that fill the space "
        "evenly; `tpe`, `gp`, `cmaes`, `nsga2`: points that Optuna's TPE, Gaussian process, CMA-ES "
        "or NSGA-II proposes. No method runs a configuration twice",
    )
    space: SpaceField = Field(
        {},
        description="What varies: the path of a field (below `model`, `optimizer`, `task` or "
        "`training`) and the values it takes",
    )
    seed: int = Field(0, ge=0, lt=2**31, description="Seed of the choice of configurations")
    trials: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="Number of trials; every method but `grid` needs it, or `limits.trials`",
    )
    population: int | None = Field(
        None,
        ge=4,
        le=1000,
        description="`cmaes` and `nsga2`: trials of a generation, in each arm. Default for `nsga2`:"
        " a fifth of an arm's trials, from 4 to 50; for `cmaes`: 4 + 3 ln d for d parameters",
    )

    warm_start: list[Annotated[str, Field(min_length=1, max_length=32)]] = Field(
        [],
        max_length=20,
        description="Ids of finished experiments. The sampler first learns from their trials "
        "whose configuration is a point of this space; `tpe` also from those that were stopped "
        "early. For methods that learn",
    )
    constraints: list[Rule] = Field(
        [],
        max_length=20,
        examples=[["optimizer.lr_orth <= optimizer.lr"]],
        description="Rules that every trial keeps: comparisons of fields, numbers and texts, with "
        "`+ - * /`, `and`, `or` and `not`. Points that break one are left out. Where a field is "
        "empty, or an arm lacks it, a rule asks nothing",
    )
    first: list[FirstPoint] = Field(
        [],
        max_length=1000,
        description="Points to try before any other, in this order, such as a paper's settings or "
        "the best ones so far. They count among the trials, and methods learn from them",
    )


class SchedulerConfig(Strict):
    """Which trials stop at a rung because others do better."""

    name: Literal["none", "asha", "hyperband", "median", "pbt"] = Field(
        "none",
        description="`none`: every trial trains to its end; `asha`: asynchronous successive "
        "halving; `hyperband`: the same in several brackets, each of which starts to "
        "stop trials later; `median`: a trial stops when it falls below the median of"
        " the others; `pbt`: population-based training: at each rung the worst trials"
        " continue as copies of the best, with changed values",
    )
    rung_every: int | None = Field(
        None,
        ge=1,
        description="Steps between rungs, where a trial reports, and may be stopped or replaced; "
        "default: about a tenth of the budget",
    )
    min_steps: int | None = Field(
        None,
        ge=1,
        description="Steps that every trial trains before it may be stopped or replaced; default: "
        "to the first rung",
    )
    reduction_factor: int = Field(
        3,
        ge=2,
        le=100,
        description="`asha`, `hyperband`: at each rung, one trial in this many goes on",
    )
    brackets: int | None = Field(
        None,
        ge=1,
        le=20,
        description="`hyperband`: largest number of brackets; default: as many as fit between "
        "`min_steps` and the budget, up to 5",
    )
    margin: float | None = Field(
        0.1,
        ge=0,
        description="A rung stops or replaces trials only after some trial at this rung is better"
        " than the baseline, by this share of the baseline; null: every rung decides."
        " It has no effect if the task has no baseline",
    )
    min_samples: int = Field(
        3,
        ge=1,
        description="`median`: other trials that must have reached a rung before a trial may be "
        "stopped there",
    )
    quantile: float = Field(
        0.2,
        gt=0,
        le=0.5,
        description="`pbt`: share of the trials, the worst, that is replaced at a rung; as large a "
        "share, the best, is copied. At least one trial is",
    )
    perturb: float = Field(
        0.2,
        gt=0,
        lt=1,
        description="`pbt`: a replaced trial multiplies each value by 1 plus or 1 minus this; of a "
        "list it takes the next larger or smaller value",
    )
    resample: float = Field(
        0.25,
        ge=0,
        le=1,
        description="`pbt`: probability that a replaced trial draws a value anew instead",
    )

    def good_enough(self, baseline: float | None, better: Better) -> float | None:
        """Return the value that a trial must beat before any is stopped; None if there is none."""
        if baseline is None or self.margin is None:
            return None
        return baseline - sign(better) * self.margin * abs(baseline)


class RacingConfig(Strict):
    """More seeds for the configurations, or the arms, that cannot be told apart yet."""

    between: Literal["configurations", "arms"] = Field(
        "configurations",
        description="Who races: the configurations that lead, all arms together, or the best "
        "configuration of each arm. Where an arm has several, the seeds that chose one do not "
        "count in the comparison",
    )
    most: int = Field(
        ge=3,
        le=1000,
        description="Largest number of trainings of a configuration, each with a seed",
    )
    seeds: int = Field(
        1, ge=1, le=1000, description="Trainings that each one gets between two looks, at most"
    )
    leaders: int = Field(
        8,
        ge=2,
        le=1000,
        description="`configurations`: the largest number that get more seeds. Where more cannot "
        "be told apart, those with the best means do",
    )
    smallest: float | None = Field(
        None,
        gt=0,
        description="Smallest difference of interest, in the metric's unit: configurations that "
        "are shown to differ by no more are equivalent, and get no more seeds; null: "
        "any difference is of interest",
    )
    alpha: float = Field(
        0.05,
        ge=1e-100,
        le=0.5,
        description="Share of races in which the best one may be called worse, or, between arms, "
        "equal ones different",
    )
    core_hours: float | None = Field(
        None,
        gt=0,
        description="Time of all trainings of the experiment, by the cores of each, after which no "
        "further seed begins; what it took over from other trials does not count; null: `most` is "
        "the only limit",
    )

    def list_rounds(self, replicates: int) -> list[int]:
        """Return how many seeds a configuration has at each look, the last one included.

        >>> RacingConfig(most=8, seeds=2).list_rounds(replicates=3)
        [3, 5, 7, 8]
        """
        return [*range(replicates, self.most, self.seeds), self.most]

    def count_comparisons(self, racers: int) -> int:
        """Return among how many comparisons `alpha` is divided.

        The best configuration is compared with each other one; between arms every pair counts.

        >>> RacingConfig(most=8).count_comparisons(5)
        4
        """
        pairs = racers * (racers - 1) // 2 if self.between == "arms" else racers - 1
        return max(1, pairs)


COSTS = {"parameters": Metric("parameters", ""), "seconds": Metric("seconds", "s")}
"""What the objective may be weighed against beside metrics of the task; lower is better."""


class Objectives(ObjectiveConfig):
    """What trials are ranked by, and what that is weighed against."""

    against: list[Line] = Field(
        [],
        max_length=2,
        description="What else should be good: `parameters` (trainable ones), `seconds` (of "
        "training), or another metric of the task. Methods that learn then look for all trials "
        "that no other one beats in everything; trials are still ranked by `metric`",
    )


MOST_LANES = 512


def _check_lanes(lanes: Any) -> Any:
    """Return lanes as they were given, or say what may be given: a union would say it twice."""
    is_number = isinstance(lanes, int) and not isinstance(lanes, bool)
    if lanes is None or lanes == "auto" or (is_number and 1 <= lanes <= MOST_LANES):
        return lanes
    raise ValueError(f"should be 'auto' or a whole number from 1 to {MOST_LANES}")


BYTES = {"MB": 10**6, "GB": 10**9, "MiB": 2**20, "GiB": 2**30}
"""Units in which an amount of memory may be written."""
LEAST_MEMORY, MOST_MEMORY = 10**6, 2**50
MEMORY_TEXT = re.compile(r"(\d{1,9}(?:\.\d{1,6})?) ?(MB|GB|MiB|GiB)")


def _read_memory(memory: Any) -> Any:
    """Return an amount of memory in bytes, or say how one is written."""
    if memory is None:
        return None
    if isinstance(memory, str) and (found := MEMORY_TEXT.fullmatch(memory.strip())):
        memory = int(float(found[1]) * BYTES[found[2]])
    is_number = isinstance(memory, int) and not isinstance(memory, bool)
    if is_number and LEAST_MEMORY <= memory <= MOST_MEMORY:
        return memory
    raise ValueError(
        f"should be bytes, a whole number from {LEAST_MEMORY:,} to {MOST_MEMORY:,}, or a text with "
        f"one of the units {', '.join(BYTES)}, such as '4 GB'"
    )


LABEL_KEY = r"^([A-Za-z0-9][A-Za-z0-9.-]{0,251}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$"
LABEL_VALUE = r"^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$"
LabelKey = Annotated[str, Field(pattern=LABEL_KEY)]
LabelValue = Annotated[str, Field(pattern=LABEL_VALUE)]


class ResourcesConfig(Strict):
    """What one trial occupies, or with `lanes` all trials that train side by side."""

    cpus: float = Field(
        1.0,
        gt=0,
        le=1024,
        description="CPU cores of one trial, whose replicates train at once, a core each (three or "
        "more small ones share one, which is mostly faster); with `lanes`, of all that train side "
        "by side",
    )
    gpus: float = Field(
        0.0,
        ge=0,
        le=1,
        description="GPU of one trial, 0 or 1; with a fraction, trials share a GPU as processes of "
        "their own. With `lanes`: 1, which all that train side by side share, or 0",
    )
    memory: Annotated[
        int | None,
        BeforeValidator(
            _read_memory,
            json_schema_input_type=Annotated[int, Field(ge=LEAST_MEMORY, le=MOST_MEMORY)]
            | Annotated[str, Field(pattern=rf"^{MEMORY_TEXT.pattern}$")]
            | None,
        ),
    ] = Field(
        None,
        description="Main memory of one trial, in bytes or as `4 GB`; with `lanes`, of all that "
        "train side by side. The node has so much free for it, and a trial that takes more is "
        "ended alone. Default: a guess from sizes, and a trial is ended that takes more than twice "
        "that and 1 GB",
    )
    accelerator_type: LabelValue | None = Field(
        None,
        description="Kind of GPU, as Ray names it: `H100`, `A100`, `L4`; trials go to nodes with "
        "this kind only",
    )
    labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=16)] = Field(
        {},
        description="Labels and values that a node must have, as given to `ray start --labels`",
    )
    lanes: Annotated[
        Annotated[int, Field(ge=1, le=MOST_LANES)] | Literal["auto"] | None,
        BeforeValidator(_check_lanes),
    ] = Field(
        None,
        description="How many trainings of equal shape one process trains side by side, of this "
        "and of other experiments; `auto` measures which number is best. Default: each trial has a "
        "process to itself",
    )

    @field_validator("gpus", mode="before")
    @classmethod
    def _is_at_most_one(cls, gpus: Any) -> Any:
        if isinstance(gpus, int | float) and gpus > 1:
            raise ValueError(
                "should be at most 1: a trial trains on one GPU, and a second one would be "
                "reserved and left idle. Give 1, or a share such as 0.5; on a node with several "
                "GPUs, trials run side by side, at least one on each"
            )
        return gpus

    @model_validator(mode="after")
    def _asks_for_the_gpu_that_it_names(self) -> Self:
        if self.accelerator_type is not None and not self.gpus:
            raise ValueError(
                f"'accelerator_type' is a kind of GPU, and 'gpus' is 0; give 'gpus': 1 to train on "
                f"{self.accelerator_type}, or leave 'accelerator_type' out"
            )
        return self

    @model_validator(mode="after")
    def _has_one_device_with_lanes(self) -> Self:
        if self.lanes is not None and self.gpus not in (0, 1):
            raise ValueError(
                f"with 'lanes' all that train side by side share one device: give 'gpus': 1, or 0 "
                f"for the CPU; got {self.gpus:g}. Each further GPU gets lanes of its own"
            )
        return self


class LimitsConfig(Strict):
    """Upper limits of an experiment; it ends there even if its search is not over."""

    trials: int | None = Field(None, ge=1, le=1_000_000, description="Largest number of trials")
    wall_seconds: float | None = Field(
        None,
        gt=0,
        description="Seconds of work, without waits for a place, after which the experiment ends "
        "and trials that have not ended are cancelled",
    )
    goal: float | None = Field(
        None,
        allow_inf_nan=False,
        description="Value of the objective at which the experiment ends: as soon as a completed "
        "trial is as good, those that have not ended are cancelled",
    )
    concurrency: int | None = Field(
        None, ge=1, le=10_000, description="Largest number of trials that run at the same time"
    )
    room_seconds: float | None = Field(
        None,
        ge=0,
        le=604_800,
        description="Seconds that the experiment waits for a node that fits a trial, before it "
        "fails; default: 5 minutes on a joined cluster, else 0",
    )
    stall_seconds: float | None = Field(
        None,
        ge=1,
        le=604_800,
        description="Seconds without a step after which a trial is ended as `stalled` and its "
        "place is free; default: 1800, or ten times the longest pause that the same trial has "
        "made before, if that is more",
    )
    grid: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description="Largest number of points of a grid; a larger grid is refused when it is "
        "posted",
    )


class PublishedNumber(Strict):
    """One number that a paper prints or draws, to compare with a measured one."""

    id: Line | None = Field(
        None, description="Number of the row in the project's list of published numbers"
    )
    arm: ArmName | None = Field(
        None, description="Arm of this experiment that measures the same; default: none does"
    )
    model: Line | None = Field(None, description="Model, as the paper names it")
    hidden: Line | None = Field(None, description="Hidden size, as printed")
    parameters: Line | None = Field(None, description="Number of parameters, as printed")
    metric: Line = Field(
        description="What the number measures: `valid/`, `test/`, `best_test/` or `last_test/` and "
        "a metric of the task; `parameters`, `baseline` or `seconds_per_step`. A point of a curve "
        "has a `step`, may be of `test_now/` or `train/`, too, and is shown, not compared"
    )
    value: float = Field(description="The number")
    spread: float | None = Field(
        None, ge=0, description="What the paper prints after a ±, over its repetitions"
    )
    step: int | None = Field(
        None, ge=0, description="Optimizer step of the value, where it is a point of a curve"
    )
    read_off: bool = Field(
        False, description="Whether it was read off a figure by eye, so that it is approximate"
    )
    place: Line | None = Field(
        None, description="Table, figure or section where it stands, such as `table 3`"
    )
    page: int | None = Field(None, ge=1, description="Page where it stands")
    note: Line | None = Field(None, description="Remark on the number")

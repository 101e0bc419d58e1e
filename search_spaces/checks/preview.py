"""What a spec would do, before anything runs: trials, sizes, first configurations, cost."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import chain, islice
from math import ceil
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from eigensweep.search_spaces.checks.memory import MemoryEstimate, estimate_arms, limit_of
from eigensweep.search_spaces.checks.race_words import (
    count_extra_trainings,
    count_racers,
    plan_seeds,
)
from eigensweep.search_spaces.checks.search_words import HALVING, explain_search, find_brackets
from eigensweep.search_spaces.checks.spec_warnings import list_warnings
from eigensweep.search_spaces.errors import InvalidPointError
from eigensweep.search_spaces.parameters import Parameter
from eigensweep.search_spaces.sequences import quasi_random
from eigensweep.search_spaces.space import Point, Space
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.tasks.base import TaskConfig

SHOWN = 5
"""Configurations that a preview lists."""

MOST_LOOKED_AT = 40
"""Points that are examined to find these, of those that keep `search.constraints`."""
MOST_TRIED = 400
"""Points that are tried to find those."""

SECONDS_A_STEP = 4.0e-3
"""What an optimizer step costs whatever its size.

This and the next three follow `python -m bench.estimates`: of 57 sizes from the papers, 80 % take
0.85 to 1.5 times the guess, and all 0.6 to 3.5 times.
"""
SECONDS_A_TIME_STEP = 2.0e-5
"""Forward and backward through one time step, whatever its size, in compiled steps."""
OPERATIONS_A_SECOND = 6.0e10
"""Speed of one CPU core in products of states and weights, in floating-point operations."""
OPERATIONS_A_SECOND_ON_MATRICES = 2.0e10
"""Its speed where a matrix of weights is made: exponentials, inverses, solutions."""
FORWARD_SHARE = 1 / 3
"""Share of a training step that a batch of an evaluation costs."""
CORPUS_SEQUENCES = {"pixel_mnist": 10_000, "speech_frames": 400}
"""Sequences of an evaluation, about, where a task's config does not name them."""
CORPUS_STEPS = {"ptb_chars": 450_000}
"""Time steps of an evaluation where their number is given, and not that of sequences."""
SMALL = 200
"""Largest number of points of an arm for which all of them are examined."""
MARGIN = 4.0
"""An estimate is a range: from the guess divided by this factor to the guess times it."""


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True)


class AxisPreview(_Answer):
    """One parameter of an arm."""

    path: str
    values: str
    size: int | None = Field(description="Number of values; null if there are infinitely many")
    conditional: bool


class ArmPreview(_Answer):
    """The size of one arm's space and of its models."""

    name: str
    model: str
    points: int | None = Field(description="Points of its space; null if there are infinitely many")
    smallest_parameters: int | None = Field(description="Trainable parameters, degrees of freedom")
    largest_parameters: int | None
    axes: list[AxisPreview]


IN_ORDER: Final = frozenset({"grid", "qmc"})
"""Methods whose first points follow from the spec."""


class TrialPreview(_Answer):
    """One configuration, resolved; or why its point is invalid."""

    number: int | None = Field(
        description="null where the spec does not decide which trials come next, but chance or "
        "results do: then this is one end of its arm's space, and no trial"
    )
    arm: str
    params: dict[str, Any]
    config: dict[str, Any] | None
    hash: str | None
    parameters: int | None
    error: str | None = None


class Estimate(_Answer):
    """A rough guess, computed from sizes and not measured on this machine."""

    seconds_a_trial_low: float = Field(description="Of a trial that trains to its end")
    seconds_a_trial_high: float
    core_hours_low: float = Field(
        description="All trials one after another on one CPU core, halved as often as they may be"
    )
    core_hours_high: float = Field(
        description="The same of trials that are not stopped, with all that a race may add"
    )
    words: str


class ArmMemory(_Answer):
    """What the largest trial of an arm takes; a guess computed from sizes."""

    host_bytes: int = Field(
        description="Main memory, or `resources.memory` where the spec gives it. With `lanes`, of "
        "all trials that share an engine"
    )
    device_bytes: int = Field(description="Memory of the GPU; 0 on CPUs")
    limit_bytes: int | None = Field(
        description="Main memory with more of which a trial is ended alone; null with `lanes`"
    )


class SidePreview(_Answer):
    """How trials run side by side on the nodes of now."""

    at_once: int | None = Field(
        None, description="Trials that there is room for at once; null if that is not known"
    )
    lanes: int | Literal["auto"] | None = Field(
        None, description="Trainings that one process trains side by side, as in the spec"
    )
    alone: dict[str, str] = Field(
        {},
        description="Arms whose trials cannot share the lanes of an engine, each with the "
        "reason; they take turns",
    )
    warnings: list[str] = Field([], description="What may keep the experiment from running")


class PlannedSeeds(_Answer):
    """What it takes a race to decide a difference of a given size."""

    effect: float = Field(description="The difference by its spread between seeds")
    seeds: int | None = Field(description="Of each that races, about; null beyond 1,000")
    core_hours: float | None = Field(
        description="Of all their seeds on one CPU core, as rough a guess as `estimate`"
    )


class SearchPreview(_Answer):
    """How the points are drawn."""

    method: str
    words: list[str] = Field(
        [], description="What the method can and cannot do with this space, for a person to read"
    )
    warm_start: dict[str, int] | None = Field(
        None,
        description="Experiment to how many of its trials tell this search something; null where "
        "no service counts them",
    )


class Preview(_Answer):
    """What a spec would do."""

    name: str
    task: str
    metric: str
    baseline: float | None
    points: int | None
    trials: int | None
    replicates: int
    race: int = Field(description="Trainings that a race adds to those at most; 0 without one")
    race_plan: list[PlannedSeeds] = Field(
        description="Seeds and hours until a race decides; empty without one"
    )
    search: SearchPreview
    arms: list[ArmPreview]
    first: list[TrialPreview] = Field(
        description="The first trials of grid and qmc; with other methods those of "
        "`search.first`, and then one end of each arm"
    )
    estimate: Estimate | None
    memory: dict[str, ArmMemory] = Field(description="By arm, what its largest trial takes")
    side_by_side: SidePreview
    warnings: list[str] = Field([], description="Settings that will have no effect, and why")


def preview(
    spec: ExperimentSpec,
    side_by_side: SidePreview | None = None,
    warm_start: dict[str, int] | None = None,
    guesses: Mapping[str, MemoryEstimate] | None = None,
) -> Preview:
    """Return what a spec that passed `check_spec` would do. Nothing is built and no data is read.

    `side_by_side` is what the caller knows of the nodes, and `warm_start` how many trials of each
    earlier experiment come along. `guesses` is what `estimate_arms` says, if the caller knows it.
    All points of a small space are examined; of a large one, its extreme points.
    """
    guesses = estimate_arms(spec) if guesses is None else guesses
    space = spec.space()
    configs = {arm: _sample_configs(spec, space, arm) for arm in space.arms}
    trials = spec.trial_count()
    return Preview(
        name=spec.name,
        task=spec.task.name,
        metric=spec.objective_metric.name,
        baseline=spec.baseline,
        points=space.count(),
        trials=trials,
        replicates=spec.replicates,
        race=count_extra_trainings(spec),
        race_plan=list(_plan_race(spec, configs)),
        search=SearchPreview(
            method=spec.search.method, words=explain_search(spec), warm_start=warm_start
        ),
        arms=[_arm(spec, space, arm.label, arm.model.name, configs) for arm in spec.arms_],
        first=[_trial(spec, number, point) for number, point in _first(spec, space)],
        estimate=_estimate(spec, configs, trials),
        memory=describe_memory(spec, guesses),
        side_by_side=side_by_side or SidePreview(lanes=spec.resources.lanes),
        warnings=list_warnings(spec),
    )


def _sample_configs(spec: ExperimentSpec, space: Space, arm: str) -> list[TrialConfig]:
    axes, count = space.axes(arm), space.count(arm)
    small = count is not None and count <= SMALL
    points = Space({arm: axes}) if small else spec.corners(space, arm)
    found = []
    for point in points:
        try:
            found.append(spec.trial(point))
        except InvalidPointError:
            continue
    return found


def _first(spec: ExperimentSpec, space: Space) -> list[tuple[int | None, Point]]:
    """Return the first points, numbered, as far as they follow from the spec.

    Where chance or results decide, one end of each arm comes after them, without a number.
    """
    if spec.search.method in IN_ORDER:
        most = min(SHOWN, spec.trial_count() or SHOWN)
        return [*enumerate(islice(_drop_known(spec, space), most))]
    ends = ((None, _find_end(spec, space, arm)) for arm in space.arms)
    return [*islice(chain(enumerate(spec.read_first(space)), ends), SHOWN)]


def _find_end(spec: ExperimentSpec, space: Space, arm: str) -> Point:
    """Return one end of an arm; with constraints, the first point that keeps them."""
    return next(filter(spec.keeps, spec.corners(space, arm)))


def _drop_known(spec: ExperimentSpec, space: Space) -> Iterator[Point]:
    """Yield points as a driver tries them: no point twice, and no configuration."""
    is_spread = spec.search.method == "qmc" or spec.is_sampled
    walks: list[Iterable[Point]] = [spec.read_first(space)]
    if is_spread:
        walks.append(quasi_random(space, spec.search.seed))
    if space.count() is not None:
        walks.append(space)
    points = chain.from_iterable(islice(_keep(spec, walk), MOST_LOOKED_AT) for walk in walks)
    seen: set[Hashable] = set()
    for point in points:
        known: list[Hashable] = [(point.arm, *sorted(point.params.items()))]
        try:
            config = spec.trial(point)
            known.append((point.arm, config.content_hash(), config.training.steps))
        except InvalidPointError:
            pass
        if seen.isdisjoint(known):
            yield point
        seen.update(known)


def _keep(spec: ExperimentSpec, walk: Iterable[Point]) -> Iterator[Point]:
    """Return the points of a walk that keep `search.constraints`."""
    if not spec.search.constraints:
        return iter(walk)
    return filter(spec.keeps, islice(walk, MOST_TRIED))


def _say_values(axis: Parameter) -> str:
    """Return which values a parameter takes, and where it exists."""
    when = (f"{path} = {' or '.join(map(str, values))}" for path, values in axis.when.items())
    return f"{axis.describe()}{', if ' if axis.when else ''}{' and '.join(when)}"


def _arm(
    spec: ExperimentSpec, space: Space, name: str, model: str, configs: dict[str, list[TrialConfig]]
) -> ArmPreview:
    counts = [_parameters(config) for config in configs[name]]
    return ArmPreview(
        name=name,
        model=model,
        points=space.count(name),
        smallest_parameters=min(counts, default=None),
        largest_parameters=max(counts, default=None),
        axes=[
            AxisPreview(
                path=path, values=_say_values(axis), size=axis.size(), conditional=bool(axis.when)
            )
            for path, axis in space.axes(name).items()
        ],
    )


def _trial(spec: ExperimentSpec, number: int | None, point: Point) -> TrialPreview:
    try:
        config = spec.trial(point)
    except InvalidPointError as error:
        return TrialPreview(
            number=number,
            arm=point.arm,
            params=point.params,
            config=None,
            hash=None,
            parameters=None,
            error=error.message,
        )
    return TrialPreview(
        number=number,
        arm=point.arm,
        params=point.params,
        config=config.model_dump(mode="json"),
        hash=config.content_hash(),
        parameters=_parameters(config),
    )


def _parameters(config: TrialConfig) -> int:
    return config.model.free_parameters(config.task.shapes)


def seconds_of(config: TrialConfig) -> float:
    """Return a rough guess of one replicate's time on one CPU core, with its evaluations.

    Evaluations of a task of somebody's own that does not name its sizes are left out.
    """
    training = config.training
    assert training.steps is not None
    assert training.evaluate_every is not None
    valid, test = (_count_sequences(config.task, part) for part in ("valid_size", "test_size"))
    evaluations = ceil(training.steps / training.evaluate_every)  # and one before the first step
    sequences = (1 + evaluations) * valid
    sequences += (1 + evaluations * training.test_every_evaluation) * test
    batches = FORWARD_SHARE * sequences / config.task.batch_size
    return training_seconds(config) * (1 + batches / training.steps)


def _count_sequences(task: TaskConfig, size: str) -> float:
    """Return how many sequences an evaluation has, about; 0 where nobody knows."""
    named = getattr(task, size, None) or CORPUS_SEQUENCES.get(task.name)
    return float(named or CORPUS_STEPS.get(task.name, 0) / task.sequence_length)


def training_seconds(config: TrialConfig) -> float:
    """Return the same without its evaluations."""
    assert config.training.steps is not None
    shapes, steps = config.task.shapes, config.training.steps
    n = config.model.hidden_size or 1
    products = max(_parameters(config), n * (n + shapes.input_size + shapes.output_size))
    length, batch = config.task.sequence_length, config.task.batch_size
    forward_and_backward = 6 * products * length * batch / OPERATIONS_A_SECOND
    constraint = 8 * n**3 / OPERATIONS_A_SECOND_ON_MATRICES
    return steps * (
        SECONDS_A_STEP + length * SECONDS_A_TIME_STEP + forward_and_backward + constraint
    )


def _estimate(
    spec: ExperimentSpec, configs: dict[str, list[TrialConfig]], trials: int | None
) -> Estimate | None:
    every = [config for found in configs.values() for config in found]
    if not every:
        return None
    seconds = [spec.replicates * seconds_of(config) for config in every]
    mean = sum(seconds) / len(seconds)
    hours = (trials or 1) * mean / 3600
    racing_hours = count_extra_trainings(spec) * mean / spec.replicates / 3600
    brackets, range_words = find_brackets(spec), ""
    share = brackets.share if brackets is not None and spec.scheduler.name in HALVING else 1.0
    left_out = "Early stopping, schedulers"
    if share < 1:
        low = f"Low: {spec.scheduler.name} stops as many trials as it can."
        range_words, left_out = f"{low} High: it stops none. ", "`training.patience`"
    if not all(_count_sequences(config.task, "valid_size") for config in every):
        left_out += ", evaluations (their sizes are not known)"
    return Estimate(
        seconds_a_trial_low=_two_digits(min(seconds) / MARGIN),
        seconds_a_trial_high=_two_digits(max(seconds) * MARGIN),
        core_hours_low=_two_digits(share * hours / MARGIN),
        core_hours_high=_two_digits((hours + racing_hours) * MARGIN),
        words="An order of magnitude for one CPU core, computed from sizes at an assumed speed. "
        f"{range_words}{left_out} and GPUs are left out. The speed of the first trial is a better "
        "guide.",
    )


def _plan_race(
    spec: ExperimentSpec, configs: dict[str, list[TrialConfig]]
) -> Iterator[PlannedSeeds]:
    """Yield what it takes to decide differences of some sizes."""
    every = [seconds_of(config) for found in configs.values() for config in found]
    if spec.racing is None or not every:
        return
    hours = count_racers(spec, spec.racing) * sum(every) / len(every) / 3600
    for effect, seeds in plan_seeds(spec, spec.racing).items():
        cost = None if seeds is None else _two_digits(hours * seeds)
        yield PlannedSeeds(effect=effect, seeds=seeds, core_hours=cost)


def describe_memory(
    spec: ExperimentSpec, guesses: Mapping[str, MemoryEstimate]
) -> dict[str, ArmMemory]:
    """Return for each arm what its largest trial takes; of `lanes: auto`, one lane.

    `guesses` is what `estimate_arms` says of the spec.
    """
    given = spec.resources.memory
    return {
        arm: ArmMemory(
            host_bytes=given or guess.host,
            device_bytes=guess.device,
            limit_bytes=None if spec.resources.lanes else given or limit_of(guess),
        )
        for arm, guess in guesses.items()
    }


def _two_digits(number: float) -> float:
    return float(f"{number:.2g}")

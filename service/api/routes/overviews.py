"""What an experiment's page shows: arms, curves, points of the space, paper against measured.

Runs in the service's process. Curves and checkpoints are read from the store, all else from the
record.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import IO, Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import PlainTextResponse, StreamingResponse
from pydantic import Field

from eigensweep.protocol.states import TrialState
from eigensweep.results.published import Measured, set_beside
from eigensweep.results.ranking import OBJECTIVE
from eigensweep.results.statistics import Summary, find_domain, summarize
from eigensweep.results.trial_result import summarize_stored
from eigensweep.search_spaces.dotted import name_arms
from eigensweep.search_spaces.errors import SpecError, did_you_mean, shorten
from eigensweep.search_spaces.parameters import Scalar
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.api.answers.errors import describe_errors
from eigensweep.service.api.answers.schemas import AnswerModel, Items
from eigensweep.service.api.answers.written import DescribedRoute
from eigensweep.service.api.parts import Service, TheService
from eigensweep.service.api.routes.experiments import ExperimentId
from eigensweep.service.record.errors import NotFoundError
from eigensweep.service.record.requests.analysis_requests import find_place
from eigensweep.service.record.sql.tables import ExperimentRow, ReportRow, TrialRow
from eigensweep.service.record.views.overviews import (
    ArmRecord,
    list_arms,
    list_leaders,
    list_points,
    list_reports,
)
from eigensweep.store.checkpoints import Store
from eigensweep.store.commits.curves import CurvePoint, cut, thin
from eigensweep.store.commits.kept_files import BEST, PRINTED
from eigensweep.store.commits.stored_commits import PIECE

router = APIRouter(tags=["overviews"], route_class=DescribedRoute)

PT = "application/octet-stream"
"""Media type of a file of weights."""


TrialNumber = Annotated[int, Path(ge=0, le=2**31 - 1)]


class ArmNow(AnswerModel):
    """An arm: how its trials ended, and its best trial, summed up over the trial's seeds."""

    name: str
    model: str | None = Field(description="The model of its best trial")
    trials: int
    states: dict[TrialState, int]
    best: int | None = Field(description="Number of its best trial; null while none is ranked")
    params: dict[str, Scalar] = Field(description="What the search chose for the best trial")
    parameters: int | None = Field(description="Free parameters of the best trial's model")
    seconds: float | None = Field(description="Training time of the best trial, all seeds together")
    value: Summary | None = Field(
        description="Best validation value of the experiment's metric, over the best trial's seeds"
    )
    ratio: float | None = Field(description="Mean of `value` over the baseline; null if unknown")
    valid: dict[str, Summary] = Field(description="Validation metrics at the best step")
    test: dict[str, Summary] = Field(description="Test metrics at the best step")


class Arms(AnswerModel):
    """The arms that have trials, and the names of the others."""

    items: list[ArmNow]
    untried: list[str] = Field(
        description="Arms without a trial. `tpe` and `random` choose the arm of each trial, so "
        "that a short search may leave one out"
    )


class PublishedNow(AnswerModel):
    """A number of the paper beside the measured one."""

    metric: str
    paper: float
    spread: float | None
    step: int | None
    model: str | None
    hidden: str | None
    parameters: str | None
    place: str | None = Field(description="Where it stands in the paper")
    read_off: bool = Field(description="Whether it was read off a figure by eye")
    note: str | None
    arm: str | None = Field(description="The arm that measures the same")
    measured: Summary | None = Field(description="From the arm's best trial")
    gap: float | None = Field(description="Measured minus published")
    reason: str | None = Field(description="Why nothing stands beside it; null if something does")


class CurveNow(AnswerModel):
    """The curve of one trial: at each step the mean over its seeds, and the 95% interval.

    Seeds that a race has added are left out, so that all curves are means over the same seeds.
    """

    number: int
    arm: str
    state: TrialState
    params: dict[str, Scalar]
    value: float | None
    n: int = Field(description="Seeds of which a point is the mean")
    steps: list[int]
    mean: list[float]
    low: list[float | None]
    high: list[float | None]


class Curves(AnswerModel):
    """Learning curves of the best trials of each arm, and of trials that train now."""

    metric: str
    unit: str
    baseline: float | None = Field(description="Of the experiment's metric; null for another one")
    items: list[CurveNow]


class SeedCurve(AnswerModel):
    """The curve of one metric in one replicate."""

    seed: int
    metric: str
    points: int = Field(description="Points that the whole curve has")
    steps: list[int]
    values: list[float]


class CheckpointNow(AnswerModel):
    """A checkpoint in the store."""

    seed: int
    step: int
    bytes: int
    place: str = Field(description="Its path below the folder of checkpoints and curves")


class PointNow(AnswerModel):
    """A trial as a point of its arm's space."""

    number: int
    arm: str
    state: TrialState
    value: float
    params: dict[str, Scalar]


class Points(AnswerModel):
    """Trials that ended with a value."""

    count: int = Field(description="How many there are; `items` may hold fewer")
    items: list[PointNow] = Field(
        description="Where there are more than asked for: the best ones, and an even sample of "
        "the others"
    )


@router.get("/experiments/{id}/arms", summary="Sum up each arm")
def get_arms(service: TheService, id: ExperimentId) -> Arms:
    """Return each arm's counts and best trial, with mean, spread and interval over its seeds.

    The best trial is chosen by its validation value. Test values were not looked at for that.
    """
    return make_arms(*list_arms(service.record, id))


@router.get(
    "/experiments/{id}/published", summary="Paper against measured", responses=describe_errors(409)
)
def get_published(service: TheService, id: ExperimentId) -> Items[PublishedNow]:
    """Return the numbers in the spec's `published`, each beside what the best trial measured."""
    return make_published(*list_arms(service.record, id))


@router.get("/experiments/{id}/curves", summary="Learning curves of all arms")
def get_curves(
    service: TheService,
    id: ExperimentId,
    metric: Annotated[
        str | None,
        Query(
            max_length=120,
            description="As in the curve, such as `valid/cross_entropy`; "
            "default: the experiment's metric on validation data",
        ),
    ] = None,
    trials: Annotated[
        int, Query(ge=1, le=20, description="How many of the best trials of each arm")
    ] = 3,
    points: Annotated[int, Query(ge=2, le=1000, description="Most points of a curve")] = 200,
) -> Curves:
    """Return the curves of each arm's best trials, and of as many that train now.

    Seeds that a race has added are left out. Where the store has no curve of a trial, the rungs
    that it reported are its curve.
    """
    experiment = service.record.row(id)
    name = f"valid/{experiment.metric}" if metric is None else metric
    leaders = list_leaders(service.record, id, trials)
    reports = list_reports(service.record, id, [trial.number for trial in leaders])
    is_own = name == f"valid/{experiment.metric}"
    races = bool(experiment.spec.get("racing"))
    most = (experiment.spec.get("replicates") or 1) if races else None

    def read(store: Store) -> list[CurveNow]:
        items = [_make_curve(store, t, reports[t.number], name, points, most) for t in leaders]
        if metric is not None and not any(item.steps for item in items):
            _refuse_unknown_metric(store, leaders, reports, metric)
        return items

    items = service.store.ask(read)
    return Curves(
        metric=name,
        unit=experiment.unit if is_own else "",
        baseline=experiment.baseline if is_own else None,
        items=items,
    )


@router.get("/experiments/{id}/points", summary="Trials as points of the space")
def get_points(
    service: TheService,
    id: ExperimentId,
    most: Annotated[int, Query(ge=10, le=5000, description="About how many points")] = 1000,
) -> Points:
    """Return settings and values of the trials that ended with a value."""
    count, found = list_points(service.record, id, most)
    return Points(count=count, items=found)


@router.get("/experiments/{id}/trials/{number}/curves", summary="Curves of a trial")
def get_trial_curves(
    service: TheService,
    id: ExperimentId,
    number: TrialNumber,
    points: Annotated[int, Query(ge=2, le=5000, description="Most points of a curve")] = 400,
) -> Items[SeedCurve]:
    """Return every metric of the trial's committed curve, one curve for each of its seeds.

    Of a long curve these are evenly spread points, the first and the last among them.
    """
    trial = service.record.trial(id, number).trial
    keys, curves = _find_keys(trial), []
    found = service.store.ask(lambda store: [store.whole_points(key) for _, key in keys])
    for (seed, _), own in zip(keys, found, strict=True):
        columns: dict[str, list[tuple[int, float]]] = {}
        for point in cut(own, trial.steps):
            for name, value in point.metrics.items():
                columns.setdefault(name, []).append((point.step, value))
        for name, whole in sorted(columns.items()):
            steps, values = map(list, zip(*thin(whole, points), strict=True))
            about = {"seed": seed, "metric": name, "points": len(whole)}
            curves.append(SeedCurve(**about, steps=steps, values=values))
    return Items(items=curves)


@router.get("/experiments/{id}/trials/{number}/checkpoints", summary="Checkpoints of a trial")
def get_checkpoints(
    service: TheService, id: ExperimentId, number: TrialNumber
) -> Items[CheckpointNow]:
    """Return the checkpoints that the store has of a trial, the newest of each seed first."""
    trial = service.record.trial(id, number).trial
    items = service.store.ask(
        lambda store: [
            CheckpointNow(seed=seed, step=each.step, bytes=each.bytes, place=f"{key}/{each.file}")
            for seed, key in _find_keys(trial)
            for each in store.list_checkpoints(key)
        ]
    )
    return Items(items=items)


@router.get(
    "/experiments/{id}/trials/{number}/weights",
    summary="Download a trial's weights",
    response_class=Response,
    responses={
        200: {"content": {PT: {}}, "description": "For `torch.load(..., weights_only=True)`"}
    },
)
def get_weights(
    service: TheService,
    id: ExperimentId,
    number: TrialNumber,
    which: Annotated[
        Literal["best", "last"],
        Query(description="`best`: those that validation chose; `last`: the newest ones"),
    ] = "best",
    seed: Annotated[
        int | None, Query(ge=0, description="Of which training; default: the first seed")
    ] = None,
) -> Response:
    """Return a file with a trial's weights: a dict of `weights`, `seed`, `step` and `config`.

    For the last ones, and before the end for the best ones too, it is the newest checkpoint: its
    `model` are the last weights, and those chosen so far stand below `selection`. A reused trial
    has the weights of its source. `eigensweep weights` and the client's `load()` read either.
    """
    trial = service.record.trial(id, number).trial
    keys = dict(_find_keys(trial))
    chosen = next(iter(keys)) if seed is None else seed
    if chosen not in keys:
        raise NotFoundError(
            f"trial {number} has no seed {seed}; it has {', '.join(map(str, keys))}"
        )

    def open_file(store: Store) -> IO[bytes] | None:
        if which == "best":
            with suppress(FileNotFoundError):
                return store.kept.open(keys[chosen], BEST)
        return store.open_newest(keys[chosen])

    file = service.store.ask(open_file)
    if file is None:
        raise NotFoundError(
            f"the store has no {which} weights of trial {number} with seed {chosen}: they were "
            "removed (`eigensweep prune`; a reused result has those of the trial that trained "
            "it), or it has committed none"
        )
    # Once an answer has begun, it cannot become an error.
    size, first = service.store.ask(partial(_begin, file, keys[chosen]))
    name = f"{id}-{number}-seed-{chosen}-{which}.pt"
    headers = {
        "Content-Disposition": f'attachment; filename="{name}"',
        "X-Content-Type-Options": "nosniff",
        "Content-Length": str(size),
    }
    return StreamingResponse(_read(service, file, first), headers=headers, media_type=PT)


@router.get(
    "/experiments/{id}/trials/{number}/logs",
    summary="What a trial has printed",
    response_class=PlainTextResponse,
)
def get_logs(service: TheService, id: ExperimentId, number: TrialNumber) -> Response:
    """Return what a trial's process wrote to standard output and standard error, as text.

    These are prints, warnings and logs, some seconds old: the newest 65,536 characters of the last
    attempt that wrote anything. Empty if none did. What trials write that an engine trains
    together is in the logs of their node's Ray. A reused trial has the text of its source.
    """
    _, key = _find_keys(service.record.trial(id, number).trial)[0]

    def read(store: Store) -> bytes:
        with suppress(FileNotFoundError):
            return store.kept.read(key, PRINTED)
        return b""

    text = service.store.ask(read)
    return PlainTextResponse(text, headers={"X-Content-Type-Options": "nosniff"})


def _begin(file: IO[bytes], key: str, store: Store) -> tuple[int, bytes]:
    """Return the size of a file of a replicate, and its first piece.

    Raises:
        StorageError: if it cannot be read; it is closed then.
    """
    try:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        return size, file.read(PIECE)
    except Exception as error:
        file.close()
        store.files.fail("read", key, error)


def _read(service: Service, file: IO[bytes], piece: bytes) -> Iterator[bytes]:
    with file:
        while piece:
            yield piece
            piece = service.store.ask(lambda _: file.read(PIECE))


def make_arms(experiment: ExperimentRow, arms: Sequence[ArmRecord]) -> Arms:
    """Return the answer on an experiment's arms."""
    tried = {arm.name for arm in arms}
    return Arms(
        items=[_make_arm(experiment, arm) for arm in arms],
        untried=[name for name in name_arms(experiment.spec) if name not in tried],
    )


def make_published(experiment: ExperimentRow, arms: Sequence[ArmRecord]) -> Items[PublishedNow]:
    """Return the answer on the paper's numbers that an experiment's spec gives."""
    best = {each.name: None if each.best is None else _measure(each.best) for each in arms}
    spec = ExperimentSpec.from_stored(experiment.spec)
    items = [
        PublishedNow.made_of(
            each.published,
            paper=each.published.value,
            place=each.place,
            measured=each.measured,
            gap=each.gap,
            reason=each.reason,
        )
        for each in set_beside(spec, experiment.baseline, best)
    ]
    return Items(items=items)


def _measure(trial: TrialRow) -> Measured:
    found = _summarize(trial)
    seeds: Any = trial.scores.get("by_replicate") or [trial.scores]
    if times := [each["step_seconds"] for each in seeds if each.get("step_seconds") is not None]:
        found["seconds_per_step"] = summarize(times, "positive")
    return Measured(found, _count_parameters(trial))


def _count_parameters(trial: TrialRow) -> int | None:
    return (trial.scores.get("parameters") or {}).get("free")


def _make_arm(experiment: ExperimentRow, arm: ArmRecord) -> ArmNow:
    best = arm.best
    found = {} if best is None else _summarize(best)
    value = found.get("value")
    baseline = experiment.baseline or (None if best is None else best.scores.get("baseline"))
    return ArmNow(
        name=arm.name,
        model=((best and best.config) or {}).get("model", {}).get("name"),
        trials=sum(arm.states.values()),
        states=arm.states,
        best=None if best is None else best.number,
        params={} if best is None else best.params,
        parameters=None if best is None else _count_parameters(best),
        seconds=None if best is None else best.scores.get("seconds"),
        value=value,
        ratio=value.mean / baseline if value and baseline and isinstance(baseline, float) else None,
        valid=_choose(found, "valid/"),
        test=_choose(found, "test/"),
    )


def _summarize(trial: TrialRow) -> dict[str, Summary]:
    """Return a trial's numbers over its seeds; those of the whole trial, where none is known."""
    result = trial.scores
    seeds = result.get("by_replicate") or [result]
    return summarize_stored({"by_replicate": seeds}, ("valid", "test", "best_test", "last_test"))


def _choose(found: Mapping[str, Summary], part: str) -> dict[str, Summary]:
    return {name.removeprefix(part): found[name] for name in found if name.startswith(part)}


def _find_keys(trial: TrialRow) -> list[tuple[int, str]]:
    """Return each seed of a trial, with the key under which the store keeps its training."""
    place, first = find_place(trial), trial.seed or 0
    return [(seed, f"{place}/{seed}") for seed in range(first, first + (trial.replicates or 1))]


def _refuse_unknown_metric(
    store: Store,
    leaders: Sequence[TrialRow],
    reports: Mapping[int, Sequence[ReportRow]],
    metric: str,
) -> None:
    """Refuse a metric that no curve holds; while there is no curve at all, none is unknown."""
    names = {name for trial in leaders for r in reports[trial.number] for name in r.metrics}
    for trial in leaders:
        for _, key in _find_keys(trial):
            names |= {name for point in store.points(key) for name in point.metrics}
    if names:
        known = sorted(names - {OBJECTIVE})
        raise SpecError(
            "metric",
            f"no curve holds '{shorten(metric)}'{did_you_mean(metric, known)}; "
            f"the curves hold {', '.join(known)}",
            expected="the name of a curve",
            got=shorten(metric),
            available=known,
        )


def _make_curve(
    store: Store,
    trial: TrialRow,
    reports: Sequence[ReportRow],
    metric: str,
    points: int,
    most: int | None,
) -> CurveNow:
    """Return the curve of a trial over its first seeds, `most` of them at most; None: over all."""
    keys = _find_keys(trial)
    seeds = [store.sample(key, metric, points, trial.steps) for _, key in keys[:most]]
    if trial.earlier is not None and len(seeds) == len(keys):
        # More seeds begin: until they are as far, those before count.
        furthest = max((curve[-1].step for curve in seeds if curve), default=0)
        seeds = [curve for curve in seeds if curve and curve[-1].step == furthest] or seeds
    if not any(seeds):
        seeds = [[CurvePoint(r.step, r.metrics, 0) for r in reports if metric in r.metrics]]
    values: dict[int, list[float]] = {}
    for curve in seeds:
        for point in curve:
            values.setdefault(point.step, []).append(point.metrics[metric])
    domain = find_domain(metric)
    whole = {
        step: summarize(found, domain)
        for step, found in sorted(values.items())
        if len(found) == len(seeds)
    }
    return CurveNow.made_of(
        trial,
        n=len(seeds),
        steps=list(whole),
        mean=[summary.mean for summary in whole.values()],
        low=[summary.low for summary in whole.values()],
        high=[summary.high for summary in whole.values()],
    )

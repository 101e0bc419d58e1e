"""Puts a report together: the paper's claims and numbers beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from math import floor, isfinite
from statistics import fmean
from typing import Literal

from pydantic import Field

from eigensweep.analyses.base import six_digits
from eigensweep.reports.measurements import (
    AnalysisNumbers,
    ArmsMeasured,
    ArmTrial,
    CurveReader,
    mean_curve,
    score,
)
from eigensweep.reports.messages import (
    MOST_SEEDS,
    AnalysisMade,
    MeasuredExperiment,
    Results,
)
from eigensweep.reports.results import KeptCurves, resources_of
from eigensweep.reports.verdicts import (
    PARAMETERS_TOLERANCE,
    ArmNumbers,
    ArmsCompared,
    ClaimVerdict,
    Judgement,
    Verdict,
    judge_alike,
    judge_all,
    judge_bounds,
    judge_number,
    judge_order,
)
from eigensweep.results.published import find_gap
from eigensweep.results.statistics import Summary, summarize
from eigensweep.results.trial_result import Result
from eigensweep.search_spaces.sections import PublishedNumber
from eigensweep.search_spaces.shipped.presets import load_preset
from eigensweep.search_spaces.shipped.reproductions import (
    Budget,
    Claim,
    Measure,
    Suite,
    count_first,
    estimate_core_seconds,
    find_deciding,
    load_suite,
    make_specs,
    published_rows,
    side_names,
    split_arm,
)
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.search_spaces.trial import Strict
from eigensweep.store.commits.curves import cut, thin

MOST_POINTS = 400
"""Most points of a line in a report; of a longer curve, evenly spread ones are kept."""


class ClaimFound(Strict):
    """A claim of the paper, and what the numbers say of it."""

    says: str
    verdict: Verdict
    because: str
    by: str
    """The number that decides, in words."""
    counts: bool
    """Whether the budget is meant to decide it. The first claim is the primary one."""
    setting: Literal["as plotted", "matched"] | None = None
    """Whether the sides differ in all that the paper's runs differ in, or in one thing alone."""
    stuck: bool = False
    """Whether no further seeds decide it: some diverged of a side that is shown to do well."""
    comparisons: tuple[ArmsCompared, ...] = ()


class NumberFound(Strict):
    """A number of the paper beside the measured one."""

    experiment: str
    arm: str
    metric: str
    step: int | None
    place: str | None
    page: int | None
    paper: float
    spread: float | None
    """What the paper prints after a ±."""
    read_off: bool
    note: str | None
    measured: Summary | None
    gap: float | None
    """Measured minus the paper's."""
    verdict: Literal["agrees", "differs", "not distinguishable", "not comparable"]
    because: str


class ArmCurve(Strict):
    """The curve of one arm: mean, smallest and largest value over the seeds."""

    arm: str
    trial: int
    seeds: int
    step: list[int]
    mean: list[float]
    low: list[float]
    high: list[float]


class ReadOff(Strict):
    """A point of the paper's curve."""

    arm: str
    step: int
    value: float


class ExperimentCurves(Strict):
    """The curves of one experiment, with the baseline and the paper's points."""

    experiment: str
    title: str
    metric: str
    unit: str
    baseline: float | None
    lines: list[ArmCurve]
    paper: list[ReadOff]
    left_out: str | None = None
    """What is not drawn of the paper's points and of seeds that diverged; None if all is."""


class ArmFound(Strict):
    """What was measured of one arm."""

    experiment: str
    arm: str
    state: str
    settings: dict[str, str | int | float | bool]
    """What the search chose, where the arm has several trials."""
    trial: int | None
    trials: int
    """Trials of the arm that were opened, from which the best one was chosen."""
    parameters: int | None
    steps: int | None
    seeds: int
    diverged_seeds: list[int]
    """Seeds whose training diverged, of the chosen trial."""
    diverged_trials: int
    """Trials of the arm that diverged, whether chosen or not."""
    failed_trials: int
    value: Summary | None
    """The best validation value of the objective."""
    of_baseline: float | None
    test: dict[str, Summary]
    drift: dict[str, float]
    """How far the model's constraint was from holding: the worst of any evaluation and seed."""
    seconds: float
    """Time that all trials of the arm trained; other work on the machine counts."""


class Cost(Strict):
    """What it took."""

    trial_seconds: float
    """Time that all trials trained, one after another; reused results count with theirs."""
    estimated_core_seconds: float
    started_at: datetime | None
    finished_at: datetime | None


class ExperimentRun(Strict):
    """An experiment behind the report."""

    label: str
    id: str | None
    name: str
    state: str
    problem: str | None


class LooksFound(Strict):
    """What adding seeds until the primary claim is decided has come to."""

    seeds: list[int]
    """Seeds at each look."""
    core_hours: float
    """Time that added seeds took, by the cores of each."""
    allowed: float | None
    """The most that they may take; None: any time."""
    most: int
    ended: Literal["decided", "core-hours", "seeds", "not by seeds"] | None
    """Why no more seeds are added; None if some are."""
    wanted: int | None
    """How many added seeds the next look needs."""


class ReportContent(Strict):
    """A report, as `report.json` holds it."""

    id: str
    name: str
    title: str
    paper: str
    place: str
    page: int | None = None
    """Page of the table or figure."""
    quote: str | None = None
    """A sentence of the paper on it, in its words."""
    quoted_from: str | None = None
    says: str
    same_as: str | None = None
    """The suite whose experiments these are, too: they ran once."""
    budget: Budget
    cut: str | None = Field(description="What the budget cuts")
    departures: str | None
    needs: str | None
    verdict: Verdict
    words: str
    looks: LooksFound | None = None
    """None: the number of seeds was fixed before, and verdicts are those of one look."""
    claims: list[ClaimFound]
    picture: Literal["curves", "values", "sizes"] = "curves"
    numbers: list[NumberFound]
    arms: list[ArmFound]
    curves: list[ExperimentCurves]
    cost: Cost
    experiments: list[ExperimentRun]
    analyses: list[AnalysisMade]
    versions: str
    revision: str
    processor: str
    note: str | None = None
    """What else ran on the machine, in words; None: nobody has said so."""
    origins: dict[str, int] = Field(
        default_factory=dict,
        description="Where seeds were trained that were taken up from a file of results, each with"
        " their number",
    )
    command: str
    made_at: datetime


def make_report(results: Results, id: str = "") -> ReportContent:
    """Return the report of results, judged by the suite and the rules of now."""
    suite = load_suite(results.name)
    specs = make_specs(results.name, results.budget)
    curves = KeptCurves(results)
    measured = {each.label: ArmsMeasured(each, curves) for each in results.experiments}
    for label, spec in specs.items():
        measured.setdefault(label, ArmsMeasured(_describe_missing(label, spec), curves))
    analyses = AnalysisNumbers(results.analyses)
    any_look = results.until is not None
    claims = [_judge(claim, results.budget, measured, analyses, any_look) for claim in suite.claims]
    whole = judge_all([ClaimVerdict(each.verdict, each.counts, each.setting) for each in claims])
    cut = suite.cut if results.budget == "short" else None
    numbers = [
        number
        for label, spec in specs.items()
        for number in _compare_numbers(suite, label, spec, measured[label], cut)
    ]
    return ReportContent.made_of(
        suite,
        id=id,
        name=results.name,
        budget=results.budget,
        cut=cut,
        verdict=whole.verdict,
        words=whole.because,
        looks=find_looks(results, whole.verdict, stuck=any(claim.stuck for claim in claims[:1])),
        claims=claims,
        numbers=numbers,
        arms=[
            arm
            for label, spec in specs.items()
            for arm in _describe_arms(side_names(suite.experiments[label], spec), measured[label])
        ],
        curves=[_draw(suite, label, spec, measured[label]) for label, spec in specs.items()],
        cost=_cost(results, specs, measured),
        experiments=[
            ExperimentRun.made_of(each, name=str(each.spec.get("name", "")))
            for each in results.experiments
        ],
        analyses=[AnalysisMade.made_of(each) for each in results.analyses],
        versions=results.versions,
        revision=results.revision,
        processor=results.processor,
        note=results.note,
        origins=_list_origins(results),
        command=_name_command(results),
        made_at=results.made_at,
    )


def find_looks(results: Results, verdict: Verdict, *, stuck: bool) -> LooksFound | None:
    """Return what adding seeds has come to, and how many more the next look needs.

    `stuck`: no further seeds decide the primary claim.

    It is a function of the results alone, so whoever starts anew finds the same. At each look there
    are a quarter more seeds, or as many as the time that is left is enough for.
    """
    until, first = results.until, count_first(results.name, results.budget)
    if until is None:
        return None
    spent, each = _count_core_hours(results)
    found = LooksFound(
        seeds=[(first or 0) + added for added in until.looks],
        core_hours=six_digits(spent),
        allowed=until.core_hours,
        most=until.most,
        ended=None,
        wanted=None,
    )
    if verdict != "not distinguishable" or first is None or stuck:
        decided = verdict in ("holds", "does not hold", "equivalent")
        return found.model_copy(update={"ended": "decided" if decided else "not by seeds"})
    more = min(max(1, found.seeds[-1] // 4), until.most - found.seeds[-1])
    if more < 1:
        return found.model_copy(update={"ended": "seeds"})
    if until.core_hours is not None and each > 0:
        more = min(more, floor((until.core_hours - spent) / each))
    if more < 1:
        return found.model_copy(update={"ended": "core-hours"})
    return found.model_copy(update={"wanted": until.added + more})


def _count_core_hours(results: Results) -> tuple[float, float]:
    """Return the core-hours of added seeds, and those of one seed of all that is compared."""
    deciding, spent, each = find_deciding(load_suite(results.name)), 0.0, 0.0
    first, wider = (make_specs(results.name, results.budget, added) for added in (0, 1))
    for experiment in results.experiments:
        if experiment.label in deciding.keys() & first.keys():
            spec = ExperimentSpec.from_stored(experiment.spec)
            begun = range(spec.seed, spec.seed + first[experiment.label].replicates)
            compared = [(point.arm, point.params) for point in wider[experiment.label].space()]
            for trial in experiment.trials:
                seeds = Result.from_dict(trial.result or {}).by_replicate
                hours = [seed.seconds * spec.resources.cpus / 3600 for seed in seeds]
                if (trial.arm, trial.params) in compared:
                    each += fmean(hours or [0.0])
                spent += sum(
                    took for seed, took in zip(seeds, hours, strict=True) if seed.seed not in begun
                )
    return spent, each


def _name_command(results: Results) -> str:
    words = f"eigensweep reproduce {results.name} --budget {results.budget}"
    asked = {(r.cpus, r.gpus, r.lanes) for r in map(resources_of, results.experiments)}
    for cpus, gpus, lanes in asked:
        words += f" --cpus {cpus:g}" if cpus != 1 else ""
        words += f" --gpus {gpus:g}" if gpus else ""
        words += f" --lanes {lanes}" if lanes else ""
    if results.until is None:
        return words
    most, hours = results.until.most, results.until.core_hours
    words += " --until-decided"
    words += "" if most == MOST_SEEDS else f" --most {most}"
    return words + ("" if hours is None else f" --core-hours {hours:g}")


def _judge(
    claim: Claim,
    budget: Budget,
    measured: dict[str, ArmsMeasured],
    analyses: AnalysisNumbers,
    any_look: bool,
) -> ClaimFound:
    found = _decide(claim, budget, measured, analyses, any_look)
    if budget == "short" and claim.short_confirms and found.verdict == "does not hold":
        words = f"not so far, and the short budget ends earlier: {found.because}"
        found = Judgement("not comparable", words, found.pairs)
    return ClaimFound(
        says=claim.says,
        verdict=found.verdict,
        because=found.because,
        by=name_measure(claim.by),
        counts=not (budget == "short" and claim.not_short is not None),
        setting=claim.setting,
        stuck=found.stuck,
        comparisons=found.pairs,
    )


def _decide(
    claim: Claim,
    budget: Budget,
    measured: dict[str, ArmsMeasured],
    analyses: AnalysisNumbers,
    any_look: bool,
) -> Judgement:
    if budget == "short" and claim.not_short is not None:
        return Judgement("not comparable", claim.not_short)
    if claim.by.analysis is not None:
        side, ratios = analyses.side(claim.by), claim.by.over is not None
        return judge_bounds(
            side,
            claim.at_least,
            claim.at_most,
            exact=claim.exact,
            ratios=ratios,
            any_look=any_look,
        )
    name = claim.better or claim.alike or claim.arm
    assert name is not None
    side = _side(name, claim, measured)
    others = {arm: _side(arm, claim, measured) for arm in claim.than}
    label, arm = split_arm(name, claim)
    better = measured[label].better(arm, claim.by) if label in measured else "lower"
    if claim.better is not None:
        return judge_order(
            name,
            side,
            others,
            better,
            logarithms=claim.logarithms,
            alike_within=claim.alike_within,
            any_look=any_look,
        )
    if claim.alike_within is not None:
        return judge_alike(name, side, others, claim.alike_within, any_look=any_look)
    return judge_bounds(
        side, claim.at_least, claim.at_most, better, exact=claim.exact, any_look=any_look
    )


def _side(arm: str, claim: Claim, measured: dict[str, ArmsMeasured]) -> ArmNumbers:
    label, name = split_arm(arm, claim)
    if label not in measured:
        return ArmNumbers(missing="this budget leaves it out")
    return measured[label].side(name, claim.by)


def name_measure(by: Measure) -> str:
    """Return a measure in words.

    >>> name_measure(Measure(curve="test_now/mse", steps_to=0.01))
    'first step with test_now/mse at 0.01'
    """
    if by.analysis is not None:
        return f"{by.analysis}: {by.number}" + (
            f" / {by.over_analysis or ''} {by.over}" if by.over else ""
        )
    unit = " of the baseline" if by.of_baseline else ""
    if by.curve is None:
        words = "best validation value" if by.metric == "value" else str(by.metric)
        return words + (", as a share of the baseline" if by.of_baseline else "")
    if by.steps_to is not None:
        return f"first step with {by.curve} at {by.steps_to:g}{unit}"
    where = "at the end" if by.at is None else f"at step {by.at:,}"
    return f"{by.curve} {where}" + (", as a share of the baseline" if by.of_baseline else "")


def _compare_numbers(
    suite: Suite, label: str, spec: ExperimentSpec, measured: ArmsMeasured, cut: str | None
) -> Iterator[NumberFound]:
    for row in published_rows(suite, label, spec):
        assert row.arm is not None
        side, reason, tolerance = _measure_row(row, measured, cut)
        if side.missing is not None:
            reason = side.missing
        elif not side.values:
            reason = "training diverged in all seeds"
        reason = reason or side.doubt
        found = judge_number(side.summary, row.value, reason, tolerance, row.spread)
        words: dict[Verdict, Literal["agrees", "differs"]] = {
            "holds": "agrees",
            "does not hold": "differs",
        }
        verdict: Literal["not distinguishable", "not comparable"] = (
            "not comparable" if found.verdict == "not comparable" else "not distinguishable"
        )
        gap = find_gap(side.summary, row)
        yield NumberFound.made_of(
            row,
            experiment=label,
            paper=row.value,
            measured=side.summary,
            gap=None if gap is None else six_digits(gap),
            verdict=words.get(found.verdict, verdict),
            because=found.because,
        )


def _measure_row(
    row: PublishedNumber, measured: ArmsMeasured, cut: str | None
) -> tuple[ArmNumbers, str | None, float]:
    """Return what was measured of a paper's row, why that cannot be compared, and a tolerance."""
    assert row.arm is not None
    if row.metric == "parameters":
        chosen = measured.arms.get(row.arm)
        counted = None if chosen is None else chosen.result.parameters
        if counted is None:
            return ArmNumbers(missing="it was not trained"), None, 0.0
        return ArmNumbers({0: float(counted.free)}), None, PARAMETERS_TOLERANCE
    reason = None if cut is None else "the short budget is cut"
    if row.metric == "seconds_per_step":
        reason = "the paper's hardware is another"
    elif row.read_off and reason is None:
        reason = "it was read off the figure by eye"
    split = row.metric.partition("/")[0]
    if row.step is not None or split in ("train", "test_now"):
        measure = Measure(curve=row.metric, at=row.step)
    else:
        measure = Measure(metric=row.metric)
    return measured.side(row.arm, measure), reason, 0.0


def _describe_arms(sides: list[str], measured: ArmsMeasured) -> Iterator[ArmFound]:
    for side in sides:
        trials = [each for each in measured.experiment.trials if measured.side_of(each) == side]
        chosen = measured.arms.get(side)
        result = None if chosen is None else chosen.result
        value = None if chosen is None else _summary_of(chosen, "value", measured)
        yield ArmFound(
            experiment=measured.experiment.label,
            arm=side,
            state=chosen.trial.state if chosen else measured.experiment.problem or "missing",
            settings=dict(chosen.trial.params) if chosen else {},
            trial=None if chosen is None else chosen.trial.number,
            trials=len(trials),
            parameters=result.parameters.free if result and result.parameters else None,
            steps=None if chosen is None else chosen.config.training.steps,
            seeds=0 if chosen is None else len(chosen.replicates),
            diverged_seeds=[] if chosen is None else sorted(chosen.diverged),
            diverged_trials=sum(each.state == "diverged" for each in trials),
            failed_trials=sum(each.state == "failed" for each in trials),
            value=value,
            of_baseline=six_digits(value.mean / measured.baseline)
            if value and measured.baseline
            else None,
            test=_tests(chosen, measured),
            drift={} if chosen is None else _drift(chosen, measured.store),
            seconds=round(sum(_seconds(each.result) for each in trials), 1),
        )


def _seconds(result: object) -> float:
    seconds = result.get("seconds") if isinstance(result, dict) else None
    return float(seconds or 0.0)


def _tests(chosen: ArmTrial | None, measured: ArmsMeasured) -> dict[str, Summary]:
    if chosen is None:
        return {}
    found = {name: _summary_of(chosen, f"test/{name}", measured) for name in chosen.result.test}
    return {name: summary for name, summary in found.items() if summary is not None}


def _summary_of(chosen: ArmTrial, metric: str, measured: ArmsMeasured) -> Summary | None:
    values = [score(each, metric) for each in chosen.replicates if each.seed not in chosen.diverged]
    known = [value for value in values if value is not None]
    return summarize(known, measured.domain(metric)) if known else None


def _drift(chosen: ArmTrial, store: CurveReader) -> dict[str, float]:
    """Return the extreme of each constraint over all evaluations and seeds."""
    worst: dict[str, float] = {}
    for seed in chosen.config.seeds:
        points = store.points(f"{chosen.trial.place}/{seed}")
        for point in cut(points, chosen.config.training.steps):
            for name, value in point.metrics.items():
                if name.startswith("constraint/"):
                    short = name.removeprefix("constraint/")
                    pick = min if short.endswith("_min") else max
                    worst[short] = pick(worst.get(short, value), value)
    return {name: six_digits(value) for name, value in worst.items()}


def _draw(
    suite: Suite, label: str, spec: ExperimentSpec, measured: ArmsMeasured
) -> ExperimentCurves:
    experiment = suite.experiments[label]
    name = experiment.curve or f"valid/{spec.objective_metric.name}"
    metric = spec.task.find_metric(name.partition("/")[2])
    lines, unseen = [], []
    for arm in (each for each in side_names(experiment, spec) if each in measured.arms):
        chosen = measured.arms[arm]
        curves = measured.curves(arm, name)
        kept = {seed: each for seed, each in curves.items() if seed not in chosen.diverged}
        finite = [point for point in mean_curve(kept) if all(map(isfinite, point))]
        points = thin(finite, MOST_POINTS)
        if chosen.diverged:
            seeds = ", ".join(map(str, sorted(chosen.diverged)))
            unseen.append(f"{arm}'s seeds that diverged are not drawn: {seeds}.")
        if points:
            step, mean, low, high = (list(column) for column in zip(*points, strict=True))
            lines.append(
                ArmCurve(
                    arm=arm,
                    trial=chosen.trial.number,
                    seeds=len(kept),
                    step=[int(each) for each in step],
                    mean=[six_digits(each) for each in mean],
                    low=[six_digits(each) for each in low],
                    high=[six_digits(each) for each in high],
                )
            )
    paper, left_out = _paper_points(suite, label, spec, measured, metric.name)
    return ExperimentCurves(
        experiment=label,
        title=spec.name,
        metric=name,
        unit=metric.unit,
        baseline=None if name.startswith("train/") else measured.baseline_of(spec.task, name),
        lines=lines,
        paper=paper,
        left_out=" ".join(filter(None, [left_out, *unseen])) or None,
    )


def _paper_points(
    suite: Suite, label: str, spec: ExperimentSpec, measured: ArmsMeasured, metric: str
) -> tuple[list[ReadOff], str | None]:
    """Return the paper's points of these curves, and why some of them stand for something else."""
    points = [
        ReadOff(arm=row.arm, step=row.step, value=row.value)
        for row in published_rows(suite, label, spec)
        if row.step is not None and row.arm is not None
        if row.metric.partition("/")[2] == metric
    ]
    here, there = (
        each.task.model_dump(exclude={"valid_size", "test_size"})
        for each in (spec, load_preset(suite.experiments[label].preset))
    )
    changed = [
        f"{name} is {value} here and {there.get(name)} in the paper"
        for name, value in here.items()
        if value != there.get(name)
    ]
    if points and changed:
        return [], f"The paper's points are not drawn: {', '.join(changed)}."
    steps = [chosen.config.training.steps or 0 for chosen in measured.arms.values()]
    reached = [point for point in points if point.step <= max(steps, default=0)]
    words = "Points of the paper after the last step are not drawn."
    return reached, None if len(reached) == len(points) else words


def _describe_missing(label: str, spec: ExperimentSpec) -> MeasuredExperiment:
    """Return an experiment that the suite has got since the results were kept."""
    metric = spec.objective_metric
    return MeasuredExperiment(
        label=label,
        id=None,
        state="missing",
        problem="these results are from before the suite had it",
        spec=spec.model_dump(mode="json"),
        metric=metric.name,
        unit=metric.unit,
        better=metric.better,
        baseline=spec.baseline,
    )


def _list_origins(results: Results) -> dict[str, int]:
    """Return where seeds were trained, if that was elsewhere, and how many of them there."""
    found: dict[str, int] = {}
    for trial in (trial for each in results.experiments for trial in each.trials):
        for seed in Result.from_dict(trial.result or {}).by_replicate:
            if seed.origin is not None:
                found[seed.origin] = found.get(seed.origin, 0) + 1
    return found


def _cost(
    results: Results, specs: dict[str, ExperimentSpec], measured: dict[str, ArmsMeasured]
) -> Cost:
    begun = [each.started_at for each in results.experiments if each.started_at is not None]
    ended = [each.finished_at for each in results.experiments if each.finished_at is not None]
    return Cost(
        trial_seconds=round(
            sum(_seconds(t.result) for m in measured.values() for t in m.experiment.trials), 1
        ),
        estimated_core_seconds=round(sum(map(estimate_core_seconds, specs.values()))),
        started_at=datetime.fromtimestamp(min(begun), UTC) if begun else None,
        finished_at=datetime.fromtimestamp(max(ended), UTC) if ended else None,
    )

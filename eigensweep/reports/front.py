"""The first part of the page of all results: claims, methods, machines, costs, references."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from eigensweep.reports.markdown import make_anchor, says_words, table, title_of
from eigensweep.reports.messages import Results
from eigensweep.reports.report import ClaimFound, ReportContent
from eigensweep.reports.verdicts import show
from eigensweep.results.statistics import SIGNIFICANCE
from eigensweep.results.trial_result import Result
from eigensweep.search_spaces.labels import format_value, say_count
from eigensweep.search_spaces.sections import PublishedNumber, ResourcesConfig
from eigensweep.search_spaces.shipped.presets import load_preset
from eigensweep.search_spaces.shipped.reproductions import (
    Claim,
    Suite,
    estimate_core_seconds,
    load_suite,
    make_specs,
    published_rows,
    split_arm,
    suite_names,
)
from eigensweep.search_spaces.spec import ExperimentSpec

REFERENCES: Final = {
    "Helfrich & Ye 2020": "Kyle Helfrich and Qiang Ye. Eigenvalue Normalized Recurrent Neural "
    "Networks for Short Term Memory. AAAI 2020, 34(04):4115-4122. "
    "<https://doi.org/10.1609/aaai.v34i04.5831>",
    "Henaff, Szlam & LeCun 2016": "Mikael Henaff, Arthur Szlam and Yann LeCun. Recurrent "
    "Orthogonal Networks and Long-Memory Tasks. ICML 2016, PMLR 48:2034-2042. "
    "<https://proceedings.mlr.press/v48/henaff16.html>",
    "Jahagirdar et al., nnRNN reproduction": "Abhilash Jahagirdar, Madhusudhan Aithal "
    "Mahabhaleshwara, Karthik Siddarmanna and others. Non-normal Recurrent Neural Networks, a "
    "reproduction and ablation study of Kerg et al. (NeurIPS 2019), with its run logs at commit "
    "e888508 of <https://github.com/nnRNN/nnRNN_release>",
    "Nguyen-Duy et al., asRNN": "Khoi Minh Nguyen-Duy, Quang Pham and Thanh Binh Nguyen. "
    "Adaptive-Saturated RNN: Remember more with less instability. ICLR 2023 Tiny Papers. "
    "<https://arxiv.org/abs/2304.11790>; the authors' program: "
    "<https://github.com/ndminhkhoi46/asRNN>",
}
"""The papers in full, by what suites call them."""

SIZES: Final = ("valid_size", "test_size", "batch_size", "train_size")
"""Fields of a task that do not make it another one."""

CLAIM_HEADS: Final = (
    "table or figure",
    "claim",
    "the paper's number",
    "ours",
    "verdict",
    "share of the paper's budget",
    "seeds",
)

LOG_HEADS: Final = ("table or figure", "claim", "the authors' program or logs", "ours", "verdict")

METHODS: Final = (
    "Each table and figure of the papers has a suite, which names its experiments and the paper's "
    "claims; both were written before it ran, and no setting was tuned until it fitted. The first "
    "claim of a suite is the primary one, and its verdict is that on the table or figure. Losses "
    "and accuracies of arms are compared over shared seeds by a paired t-test, first steps to a "
    "threshold by a log-rank test with its exact distribution (of eight seeds a side and more, by "
    "9,999 random divisions), in which a training that never gets there counts as longer than the "
    "budget; that arms are alike by two one-sided tests. p-values are corrected "
    "after Holm within a claim. Intervals are 95 % intervals by Student's t, on the scale of "
    "logarithms for losses and of logits for accuracies. The step of a number is selected on "
    "validation data, and losses and accuracies at the end are those on test data there. A "
    "baseline is what always answering the same scores on the data that is scored. Seeds that "
    "diverged are named, and the numbers are those of the others. *Not comparable* means that a "
    "number is missing, or that the budget does not reach what the claim is about; *not "
    "distinguishable*, that so many seeds do not decide; *equivalent*, that the paper claims a "
    "difference, and it is shown to be too small to matter. Where seeds were added until the "
    "primary claim was decided, verdicts are by e-values and intervals that hold at every look "
    "together. The share of the paper's budget counts training sequences: optimizer steps times "
    "the batch."
)


@dataclass(frozen=True)
class Shown:
    """Results with their report."""

    results: Results
    content: ReportContent
    outdated: bool
    """Whether the suite has trials or seeds now that these results do not have."""


def write_claims(shown: Mapping[str, Shown]) -> list[str]:
    """Return the table of claims, one line for each."""
    rows = [row for name in suite_names() if name in shown for row in _claim_rows(shown[name])]
    return table(CLAIM_HEADS, rows)


def _claim_rows(each: Shown) -> Iterator[tuple[str, ...]]:
    content, suite = each.content, load_suite(each.content.name)
    link = f"[{content.name}](#{make_anchor(title_of(content))})"
    for number, (claim, found) in enumerate(zip(suite.claims, content.claims, strict=True)):
        verdict = found.verdict if found.counts else "needs the full budget"
        yield (
            link,
            f"**{says_words(found)}**" if number == 0 else says_words(found),
            _paper_words(content.name, claim),
            _own_words(found),
            f"{verdict}, for what is there" if each.outdated else verdict,
            _share_words(suite, claim, each),
            _seeds_words(claim, content),
        )


def write_logs(shown: Mapping[str, Shown]) -> list[str]:
    """Return the table of claims of which the authors' program or logs show something."""
    rows: list[tuple[str, ...]] = []
    for name in suite_names():
        for number, claim in enumerate(load_suite(name).claims):
            if claim.logs is not None and name in shown:
                found = shown[name].content.claims[number]
                verdict = found.verdict if found.counts else "needs the full budget"
                rows.append((name, says_words(found), claim.logs, _own_words(found), verdict))
    return table(LOG_HEADS, rows) if rows else []


def _paper_words(suite_name: str, claim: Claim) -> str:
    """Return the paper's numbers of a claim's arms, as far as it has any."""
    suite, found = load_suite(suite_name), []
    for arm in dict.fromkeys(filter(None, (claim.better, claim.alike, claim.arm, *claim.than))):
        label, name = split_arm(arm, claim)
        if label in suite.experiments:
            spec = make_specs(suite_name, "full")[label]
            rows = [row for row in published_rows(suite, label, spec) if row.arm == name]
            if (words := _row_words(claim, rows, spec.objective_metric.name)) is not None:
                found.append(f"{arm} {words}")
    return "; ".join(found) or "none printed"


def _row_words(claim: Claim, rows: Sequence[PublishedNumber], objective: str) -> str | None:
    """Return the number of a paper's arm that a claim is about; None if it has none.

    `objective` is the metric whose best value on validation data is the `value` of a trial.
    """
    by = claim.by
    metric = f"valid/{objective}" if by.metric == "value" else by.metric
    name = (metric or by.curve or "").partition("/")[2]
    if by.steps_to is not None:
        points = [row for row in rows if row.step and row.metric.endswith(f"/{name}")]
        falls = [row.step for row in points if "falls below" in (row.note or "")]
        if falls:
            return f"falls below the baseline at about step {falls[0]:,}"
        last = max(points, key=lambda row: row.step or 0, default=None)
        return None if last is None else f"about {format_value(last.value)} at step {last.step:,}"
    wanted = {metric, by.curve, f"best_test/{name}", f"test/{name}"} - {None}
    same = [row for row in rows if row.metric in wanted and row.step is None]
    if not same:
        same = [row for row in rows if row.metric.endswith(f"/{name}") and row.step is not None]
        same = sorted(same, key=lambda row: row.step or 0)[-1:] if name else []
    if not same:
        return None
    row = same[0]
    spread = "" if row.spread is None else f" ± {show(row.spread)}"
    page = "" if row.page is None else f", page {row.page}"
    about = "about " if row.read_off else ""
    return f"{about}{format_value(row.value)}{spread} ({row.place}{page})"


def _own_words(found: ClaimFound) -> str:
    """Return what was measured for a claim: of several comparisons the first side once."""
    if not found.comparisons:
        return found.because
    parts: list[str] = []
    for pair in found.comparisons:
        parts += [part for part in pair.because.split("; ") if part not in parts]
    return "; ".join(filter(None, [*parts, _p_words(found)]))


def _p_words(found: ClaimFound) -> str:
    """Return the p-value that decides: all comparisons must hold, and one that does not decides."""
    deciding = [
        (pair.p, pair.than)
        for pair in found.comparisons
        if pair.p is not None and pair.verdict == found.verdict and not pair.stuck
    ]
    if not deciding or found.verdict in ("equivalent", "not comparable"):
        return ""
    if found.verdict != "does not hold":
        return f"p = {show(max(deciding)[0])}"
    p, than = min(deciding)
    beside = f" against {than}" if len(found.comparisons) > 1 else ""
    return "" if p > SIGNIFICANCE else f"p = {show(p)}{beside}"  # else an interval decided


def _share_words(suite: Suite, claim: Claim, each: Shown) -> str:
    """Return the share of the paper's training sequences, and what else is smaller.

    Of a step's time there is no share: as many steps are timed as it takes.
    """
    label = claim.experiment
    for arm in (claim.better, claim.alike, claim.arm):
        if arm is not None:
            label = split_arm(arm, claim)[0]
    if claim.by.analysis is not None:
        label = suite.analyses[claim.by.analysis].experiment or ""
    specs = make_specs(each.results.name, each.results.budget)
    if label not in specs:
        return "all" if claim.by.analysis is not None and not suite.experiments else ""
    here, there = specs[label], load_preset(suite.experiments[label].preset)
    share = _sequences(here) / _sequences(there)
    words = "all" if abs(share - 1) < 1e-9 else f"{100 * share:.3g} %"
    if claim.by.metric == "seconds_per_step":
        words = f"{here.training.resolve(here.task).steps:,} steps timed"
    changed = [
        f"{field} {_short(value)} of {_short(there_value)}"
        for field, value, there_value in _changes(here, there)
    ]
    return ", ".join([words, *changed])


def _sequences(spec: ExperimentSpec) -> float:
    steps = spec.training.resolve(spec.task).steps
    return float((steps or 1) * spec.task.batch_size)


def _changes(here: ExperimentSpec, there: ExperimentSpec) -> Iterator[tuple[str, object, object]]:
    ours, theirs = (spec.task.model_dump(exclude=set(SIZES)) for spec in (here, there))
    for field, value in ours.items():
        if value != theirs.get(field):
            yield field, value, theirs.get(field)
    sizes = {arm.label: getattr(arm.model, "hidden_size", None) for arm in there.arms_}
    units = {
        (size, sizes[arm.label])
        for arm in here.arms_
        if arm.label in sizes
        and (size := getattr(arm.model, "hidden_size", None)) != sizes[arm.label]
    }
    for size, wanted in sorted(units, key=str):
        yield "units", size, wanted


def _short(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _seeds_words(claim: Claim, content: ReportContent) -> str:
    if claim.by.analysis is not None:
        return str(sum(made.label == claim.by.analysis for made in content.analyses))
    names = filter(None, (claim.better, claim.alike, claim.arm, *claim.than))
    wanted = {split_arm(name, claim) for name in names}
    seeds = {arm.seeds for arm in content.arms if (arm.experiment, arm.arm) in wanted}
    words = " to ".join(str(count) for count in sorted({min(seeds), max(seeds)})) if seeds else ""
    if content.looks is not None:
        words += f", in {say_count(len(content.looks.seeds), 'look')}"
    return words


def count_words(shown: Mapping[str, Shown]) -> str:
    """Return how many tables and figures have which verdict."""
    verdicts = [each.content.verdict for each in shown.values()]
    counted = [f"*{v}* {verdicts.count(v)}" for v in dict.fromkeys(sorted(verdicts))]
    if left := len(suite_names()) - len(shown):
        counted.append(f"not run {left}")
    return f"Verdicts on {len(suite_names())} tables and figures: {', '.join(counted)}."


def chance_words(shown: Iterable[Shown]) -> str:
    """Return how much the page compares, and what of that chance alone would decide."""
    claims = [claim for each in shown for claim in each.content.claims if claim.counts]
    tested = [each for each in claims if any(pair.p is not None for pair in each.comparisons)]
    pairs = sum(pair.p is not None for claim in tested for pair in claim.comparisons)
    by_chance = SIGNIFICANCE * len(tested)
    return (
        f"The page decides {len(claims)} claims, {len(tested)} of them by {pairs} comparisons of "
        f"arms. Were there no difference between any arms, about {by_chance:.1f} of these claims "
        "would be called decided by chance: nothing is corrected over the whole page."
    )


def machine_words(shown: Iterable[Shown]) -> list[str]:
    """Return on which machines trials were trained, and what that took, shared runs once."""
    seconds: defaultdict[tuple[str, str | None], float] = defaultdict(float)
    threads: defaultdict[tuple[str, str | None], set[str]] = defaultdict(set)
    seen: set[str] = set()
    for each in shown:
        own = each.results.processor, each.results.note
        seconds[own] += 0.0
        for experiment in each.results.experiments:
            spec = ExperimentSpec.from_stored(experiment.spec)
            if spec.name in seen:
                continue
            seen.add(spec.name)
            for trial in experiment.trials:
                result = Result.from_dict(trial.result or {})
                for seed in result.by_replicate or (result,):
                    origin = getattr(seed, "origin", None)  # of a seed that another machine trained
                    processor = own[0] if origin is None else origin.partition("; ")[0]
                    machine = own if processor == own[0] else (processor, None)
                    if machine == own:  # of another one nobody knows
                        threads[machine].add(name_share(spec.resources))
                    seconds[machine] += seed.seconds
    lines = []
    for (processor, note), spent in seconds.items():
        known = " or ".join(sorted(threads[processor, note]))
        used = f", {known}" if known else ""
        beside = (note or "nobody has said so").rstrip(".")
        lines.append(
            f"- {processor}{used}, {spent / 3600:.1f} hours of training, evaluations included. "
            f"What else ran there: {beside}."
        )
    return lines


def name_share(resources: ResourcesConfig) -> str:
    """Return what a trial had of its machine, in words.

    >>> name_share(ResourcesConfig(gpus=1, lanes=8)), name_share(ResourcesConfig(cpus=2))
    ('a GPU for up to 8 seeds side by side', '2 threads for each trial')
    """
    lanes = "several" if resources.lanes == "auto" else f"up to {resources.lanes}"
    beside = "each trial" if resources.lanes is None else f"{lanes} seeds side by side"
    cores = f"{resources.cpus:g} {'thread' if resources.cpus == 1 else 'threads'}"
    return f"{'a GPU' if resources.gpus else cores} for {beside}"


def explain_missing(name: str) -> str:
    """Return why a suite was not run: what it needs, or what it would cost and decide."""
    suite = load_suite(name)
    hours = _core_hours(name, "full")
    if suite.same_as is not None:
        hours += f" shared with {suite.same_as}"
    if suite.needs is not None:
        return f"needs {suite.needs}; {hours} in full"
    open_ones = [claim for claim in suite.claims if claim.not_short is None]
    if not open_ones:
        return f"decides nothing in the short budget; {hours} in full"
    of = f"{len(open_ones)} of {say_count(len(suite.claims), 'claim')}"
    return f"the short budget decides {of} in {_core_hours(name, 'short')}; {hours} in full"


@cache
def _core_hours(name: str, budget: str) -> str:
    specs = make_specs(name, "full" if budget == "full" else "short").values()
    hours = sum(map(estimate_core_seconds, specs)) / 3600
    return f"{hours:,.0f} core hours" if hours >= 10 else f"{hours:.1f} core hours"

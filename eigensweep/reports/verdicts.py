"""Decides what measured numbers say of a paper's claim. Arithmetic alone: nothing is read here.

A side of a comparison is a number for each seed. Both sides share seeds, so that differences are
paired. A seed that diverged has no number: a side's numbers are those of the others, with the count
beside, and a side that diverged in all seeds has lost to one that never did. First steps to a
threshold are censored: a seed that never got there, or diverged before, is known to take longer
than the budget, and ranks decide.

Where seeds are added until a claim is decided, one looks again and again: then e-values and
intervals decide that hold at every look together (`results.sequential`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import comb, exp, hypot, inf, isinf, log
from statistics import fmean, median
from typing import Literal, get_args

from eigensweep.common.direction import Better
from eigensweep.results.sequential import (
    count_first,
    find_interval,
    look,
)
from eigensweep.results.statistics import (
    LARGEST_EXPONENT,
    ORDERS,
    SIGNIFICANCE,
    Difference,
    Domain,
    Summary,
    compare_first_steps,
    compare_paired,
    correct,
    find_alike_margin,
    find_alike_p,
    find_detectable,
    summarize,
    t_quantile,
)
from eigensweep.results.statistics import Verdict as DifferenceVerdict
from eigensweep.search_spaces.labels import say_count
from eigensweep.search_spaces.planning import find_seeds, find_sign_e_value

Verdict = Literal["holds", "does not hold", "equivalent", "not distinguishable", "not comparable"]
"""`equivalent`: the paper claims a difference, and it is shown to be smaller than what matters."""

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

LARGE = 10**6
"""Degrees of freedom with which Student's t is the normal distribution."""

PARAMETERS_TOLERANCE = 0.05
"""Relative difference up to which a count that a paper rounds is the same."""


@dataclass(frozen=True)
class ArmNumbers:
    """What one arm (or one analysis) gave: a number for each seed."""

    values: Mapping[int, float] = field(default_factory=dict)
    diverged: frozenset[int] = frozenset()
    """Seeds whose training diverged; they have no value."""
    last: float | None = None
    """The budget's last step, where the values are first steps to a threshold: infinite in seeds
    that never got there."""
    missing: str | None = None
    """Why there is no number at all; None if there is one."""
    doubt: str | None = None
    """Why the numbers are shown, but decide nothing; None if they do."""
    domain: Domain = "real"
    """Where a number can lie."""

    @property
    def never(self) -> int:
        """Number of seeds that never got to a threshold."""
        return sum(map(isinf, self.values.values()))

    @property
    def summary(self) -> Summary | None:
        """Mean and interval over the seeds that have a number; None for first steps."""
        if not self.values or self.last is not None:
            return None
        return summarize(list(self.values.values()), self.domain)

    def mean_over(self, seeds: Iterable[int]) -> float | None:
        """Return the mean over some seeds, None for first steps and where none has a number."""
        given = [self.values[seed] for seed in seeds if seed in self.values]
        return fmean(given) if given and self.last is None else None


@dataclass(frozen=True)
class ArmsCompared:
    """The comparison of two arms within a claim."""

    better: str
    than: str
    verdict: Verdict
    because: str
    n: int = 0
    """Seeds that both have."""
    difference: float | None = None
    """Mean over the seeds of the first minus the second."""
    low: float | None = None
    high: float | None = None
    ratio: float | None = None
    """First over second: of the means, or the mean ratio where logarithms are compared."""
    p: float | None = None
    """Two-sided, corrected after Holm over the pairs of the claim."""
    detectable: float | None = None
    """The smallest difference that so many seeds of this spread show in four of five cases."""
    detectable_ratio: float | None = None
    """The same where logarithms are compared: the smallest ratio above 1."""
    least_p: float | None = None
    """The smallest p-value that first steps of so many seeds can give, corrected likewise."""
    seeds: int | None = None
    """Seeds at which an open difference of this size and spread is decided, about."""
    stuck: bool = False
    """Whether no further seeds decide it: the first side is better and some of it diverged, both
    are alike and some diverged, both diverged in all seeds, or neither got there within the budget.
    """


@dataclass(frozen=True)
class Judgement:
    """A verdict and its reason."""

    verdict: Verdict
    because: str
    pairs: tuple[ArmsCompared, ...] = ()
    stuck: bool = False
    """Whether no further seeds decide it, as `ArmsCompared.stuck` has it for each comparison."""


def judge_order(
    name: str,
    side: ArmNumbers,
    others: Mapping[str, ArmNumbers],
    better: Better = "lower",
    *,
    logarithms: bool = False,
    alike_within: float | None = None,
    any_look: bool = False,
) -> Judgement:
    """Return whether `side`, called `name`, is better than each of the others.

    With `logarithms` ratios are compared in place of differences; all values must be positive.
    First steps to a threshold are compared by ranks. `alike_within` is the difference, as a share,
    up to which sides are the same: where two one-sided tests show that, they are equivalent.
    With `any_look` all holds however often seeds are added and looked at; first steps are then
    compared by signs.
    """
    differences: dict[str, Difference] = {}
    decided: dict[str, ArmsCompared] = {}
    for other, against in others.items():
        early = _decide_early(name, side, other, against, logarithms)
        if early is not None:
            decided[other] = early
            continue
        a, b = side.values, against.values
        if side.last is not None:
            differences[other] = compare_first_steps(a, b, side.last)
            continue
        if logarithms:
            a, b = ({seed: log(v) for seed, v in each.items()} for each in (a, b))
        differences[other] = compare_paired(a, b, better=better)
    corrected = dict(zip(differences, correct(list(differences.values())), strict=True))
    error = SIGNIFICANCE / max(1, len(differences))
    if any_look:
        corrected = {
            other: _judge_any_look(found, side, others[other], error)
            for other, found in differences.items()
        }
    pairs = tuple(
        decided[other]
        if other in decided
        else _describe(
            name,
            side,
            other,
            others[other],
            corrected[other],
            error,
            logarithms,
            alike_within,
            any_look,
        )
        for other in others
    )
    return _judge_pairs(pairs)


def judge_alike(
    name: str,
    side: ArmNumbers,
    others: Mapping[str, ArmNumbers],
    within: float,
    *,
    any_look: bool = False,
) -> Judgement:
    """Return whether `side` is as good as each of the others, up to a share of `within`.

    By two one-sided tests on the paired logarithms, each at 5%: all of them must show it, so that
    several comparisons need no correction. It does not hold where the 95% interval of a ratio lies
    outside. With `any_look` both are by the interval that holds at every look together.
    """
    pairs, margin = [], log(1 + within)
    for other, against in others.items():
        early = _decide_early(name, side, other, against, logarithms=True)
        if early is not None:
            if (
                early.verdict != "not comparable"
            ):  # where one side diverged, likeness is never shown
                early = replace(early, verdict="not distinguishable", stuck=True)
            pairs.append(early)
            continue
        a, b = ({seed: log(v) for seed, v in each.values.items()} for each in (side, against))
        found = compare_paired(a, b)
        p = find_alike_p(found, margin)
        if any_look:
            found, p = _judge_any_look(found, side, against, SIGNIFICANCE), None
        verdict: Verdict = "not distinguishable"
        widest = _find_widest(found) if any_look else None
        if (p is not None and p <= SIGNIFICANCE) or (widest is not None and widest <= margin):
            verdict = "holds"
        elif found.low is not None and found.high is not None:
            outside = found.low > margin or found.high < -margin
            outside &= any_look or (found.p or 0.0) <= SIGNIFICANCE  # not of a few equal ones
            verdict = "does not hold" if outside else verdict
        words = f"{show_side(name, side)}; {show_side(other, against)}; wanted within {within:.0%}"
        stuck = verdict == "holds" and bool(side.diverged | against.diverged)
        pairs.append(
            ArmsCompared(
                name,
                other,
                "not distinguishable" if stuck else verdict,
                words,
                n=found.n,
                difference=found.mean,
                low=found.low,
                high=found.high,
                ratio=None if found.mean is None else exp(found.mean),
                p=p,
                stuck=stuck,
            )
        )
    return _judge_pairs(tuple(pairs))


def judge_bounds(
    side: ArmNumbers,
    at_least: float | None = None,
    at_most: float | None = None,
    better: Better = "lower",
    *,
    exact: bool = False,
    ratios: bool = False,
    any_look: bool = False,
) -> Judgement:
    """Return whether a number lies within bounds, by its interval; an exact one by itself.

    With `ratios` the interval is that of the logarithms, whose mean is the geometric one, unless a
    ratio is zero: the interval of a positive number has no negative end. A first step is within a
    bound where the sign test says that it is in more than half of all trainings.

    Where seeds diverged, the others decide. But that a training succeeds, by a bound on its worse
    side, is then not shown.
    """
    if side.missing is not None or side.doubt is not None:
        return Judgement("not comparable", side.missing or side.doubt or "")
    if side.last is not None:
        return _judge_first_steps(side, at_least, at_most, any_look)
    succeeds = (at_most if better == "lower" else at_least) is not None
    summary = side.summary
    if summary is None:
        words = f"training diverged in all {say_count(len(side.diverged), 'seed')}"
        return Judgement("does not hold" if succeeds else "not comparable", words)
    mean, ends = summary.mean, summary.interval if summary.decides else None
    if exact:
        ends = mean, mean
    elif ratios and min(side.values.values()) > 0:
        logs = [log(value) for value in side.values.values()]
        inner = summarize(logs)
        mean = exp(inner.mean)
        ends = inner.interval if inner.decides else None
        if any_look:
            ends = find_interval(logs, "real")
        ends = ends and (exp(ends[0]), exp(ends[1]))
    elif any_look:
        ends = find_interval(list(side.values.values()), side.domain)
    if ends is None:
        return Judgement(
            "not distinguishable", f"{_say_too_few(summary)}; the mean is {show(mean)}"
        )
    low, high = ends
    words = show(mean) if exact else f"{show(mean)} [{show(low)}, {show(high)}]"
    words += f", wanted {_bounds(at_least, at_most)}" + _about(side)
    above = at_least is None or low >= at_least
    below = at_most is None or high <= at_most
    if above and below:
        if side.diverged and succeeds:
            return Judgement("not distinguishable", words, stuck=True)
        return Judgement("holds", words)
    outside = (at_least is not None and high < at_least) or (at_most is not None and low > at_most)
    return Judgement("does not hold" if outside else "not distinguishable", words)


def judge_number(
    summary: Summary | None,
    paper: float,
    not_comparable: str | None,
    tolerance: float = 0.0,
    spread: float | None = None,
) -> Judgement:
    """Return whether a measured number agrees with a paper's: `holds` means that it does.

    Both errors count: that of our mean, and the paper's `spread`, which is taken as the standard
    error of its number. With a tolerance, a relative one, the number has no randomness and no
    interval is needed.
    """
    if summary is None:
        return Judgement("not comparable", not_comparable or "it was not measured")
    if not_comparable is not None:
        return Judgement("not comparable", not_comparable)
    if tolerance:
        is_near = abs(summary.mean - paper) <= tolerance * abs(paper)
        return Judgement(
            "holds" if is_near else "does not hold",
            f"{'within' if is_near else 'more than'} {100 * tolerance:g} %",
        )
    if summary.low is None or summary.high is None or not summary.decides:
        return Judgement("not distinguishable", _say_too_few(summary))
    if spread and summary.standard_error is not None:
        ours = t_quantile(summary.n - 1) * summary.standard_error
        both = hypot(ours, t_quantile(LARGE) * spread)
        inside = abs(summary.mean - paper) <= both
        words = f"the gap is {'within' if inside else 'beyond'} both errors, {show(both)}"
        return Judgement("holds" if inside else "does not hold", words)
    inside = summary.low <= paper <= summary.high
    return Judgement(
        "holds" if inside else "does not hold",
        f"the paper's number is {'inside' if inside else 'outside'} the interval",
    )


def _say_too_few(summary: Summary) -> str:
    if summary.n == 1:
        return "one seed gives no interval"
    equal = "" if summary.decides else "equal "
    return f"{summary.n} {equal}seeds give no interval"


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim's verdict, and what it counts for."""

    verdict: Verdict
    counts: bool = True
    """Whether the budget is meant to decide it."""
    setting: str | None = None
    """`as plotted` or `matched`, where a figure compares more than one thing at once."""


def judge_all(claims: Sequence[ClaimVerdict]) -> Judgement:
    """Return the verdict on a table or figure: that of its first claim, the primary one.

    The words count the verdicts of the others, too.

    >>> judge_all([ClaimVerdict("holds"), ClaimVerdict("does not hold")]).because
    'primary claim: holds; others: 1 does not hold'
    """
    if not claims:
        return Judgement("not comparable", "there is no claim")
    first, others = claims[0], [each for each in claims[1:] if each.counts]
    decided = first.verdict if first.counts else "needs the full budget"
    words = [f"{first.setting or 'primary claim'}: {decided}"]
    for setting in dict.fromkeys(each.setting for each in others):
        given = [each.verdict for each in others if each.setting == setting]
        present = [verdict for verdict in VERDICTS if verdict in given]
        counted = ", ".join(f"{given.count(verdict)} {verdict}" for verdict in present)
        words.append(f"{setting or 'others'}: {counted}")
    verdict: Verdict = first.verdict if first.counts else "not comparable"
    return Judgement(verdict, "; ".join(words))


def show(value: float) -> str:
    """Return a number as reports print it: three digits that count."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 10**15 else f"{value:.3g}"


def _decide_early(
    name: str, side: ArmNumbers, other: str, against: ArmNumbers, logarithms: bool
) -> ArmsCompared | None:
    """Return the verdict where no test is needed: something is missing or diverged."""
    for label, each in ((name, side), (other, against)):
        if (reason := each.missing or each.doubt) is not None:
            return ArmsCompared(name, other, "not comparable", f"{label}: {reason}")
    if not side.values and not against.values:
        words = "both diverged in all seeds"
        return ArmsCompared(name, other, "not distinguishable", words, stuck=True)
    if not side.values:
        return ArmsCompared(name, other, "does not hold", f"{name} diverged in all seeds")
    if not against.values and side.diverged:
        words = f"{other} diverged in all seeds, {name} in {len(side.diverged)}"
        return ArmsCompared(name, other, "not distinguishable", words, stuck=True)
    if not against.values:
        return ArmsCompared(name, other, "holds", f"{other} diverged in all seeds")
    if side.never + against.never == len(side.values) + len(against.values):
        words = "neither got there within the budget"
        return ArmsCompared(name, other, "not distinguishable", words, stuck=True)
    if logarithms and min((*side.values.values(), *against.values.values())) <= 0:
        return ArmsCompared(name, other, "not comparable", "a ratio needs positive numbers")
    return None


def _judge_pairs(pairs: tuple[ArmsCompared, ...]) -> Judgement:
    open_ones = [pair for pair in pairs if pair.verdict == "not distinguishable"]
    stuck = bool(open_ones) and all(pair.stuck for pair in open_ones)
    return Judgement(*_combine(pair.verdict for pair in pairs), pairs, stuck)


def _judge_first_steps(
    side: ArmNumbers, at_least: float | None, at_most: float | None, any_look: bool
) -> Judgement:
    """Return whether a first step is within bounds in more than half of all trainings."""
    from scipy.stats import binomtest  # type: ignore[import-untyped]

    low = -inf if at_least is None else at_least
    high = inf if at_most is None else at_most
    n, inside = len(side.values), sum(low <= each <= high for each in side.values.values())
    p = float(binomtest(inside, n).pvalue)
    if any_look:
        p = min(1.0, 1 / find_sign_e_value(inside, n - inside))
    words = f"{_show_steps(side)}, wanted {_bounds(at_least, at_most)}"
    words += f"; so in {inside} of {say_count(n, 'seed')}, p = {show(p)}"
    verdict: Verdict = "holds" if inside > n / 2 else "does not hold"
    return Judgement(verdict if p <= SIGNIFICANCE else "not distinguishable", words)


def _describe(
    name: str,
    side: ArmNumbers,
    other: str,
    against: ArmNumbers,
    found: Difference,
    error: float,
    logarithms: bool,
    alike_within: float | None,
    any_look: bool,
) -> ArmsCompared:
    verdicts: dict[str, Verdict] = {"better": "holds", "worse": "does not hold"}
    because = found.reason or f"{show_side(name, side)}; {show_side(other, against)}"
    verdict: Verdict = verdicts.get(found.verdict, "not distinguishable")
    if found.verdict == "not comparable" and found.n == 0:
        verdict = "not comparable"
    stuck = verdict == "holds" and bool(side.diverged)
    if stuck:
        verdict = "not distinguishable"
        because += f"; {name} diverged in {say_count(len(side.diverged), 'seed')}"
    ratio = detectable = detectable_ratio = least_p = None
    mine, theirs = side.mean_over(found.seeds), against.mean_over(found.seeds)
    if side.values.keys() != against.values.keys() and side.last is None and found.reason is None:
        because += f"; compared over the {say_count(found.n, 'seed')} of both"
    if found.mean is not None and logarithms:
        ratio = exp(found.mean)
    elif mine is not None and theirs:
        ratio = mine / theirs
    if any_look or found.lacks_spread:
        pass  # what a fixed number of seeds could show is another test's, or nobody knows it
    elif found.sd is not None and logarithms:
        shown = find_detectable(found.sd, found.n, error)
        detectable_ratio = exp(min(shown, LARGEST_EXPONENT))
    elif found.sd is not None:
        detectable = find_detectable(found.sd, found.n, error)
    if side.last is not None and not any_look:
        orders = comb(len(side.values) + len(against.values), len(side.values))
        least_p = min(1.0, SIGNIFICANCE / error * 2 / min(orders, ORDERS + 1))
    if side.diverged or against.diverged:
        alike_within = None  # those that did not diverge are no proof that all are alike
    if alike_within is not None and theirs is not None and verdict == "not distinguishable":
        margin = log(1 + alike_within) if logarithms else alike_within * abs(theirs)
        alike = find_alike_p(found, margin)
        widest = _find_widest(found)
        if any_look and widest is not None and widest <= margin:
            verdict = "equivalent"
            because += f"; alike within {alike_within:.0%}"
        elif not any_look and alike is not None and alike <= SIGNIFICANCE:
            verdict = "equivalent"
            because += f"; alike within {alike_within:.0%}, p = {show(alike)}"
    if verdict == "not distinguishable":
        widest = _find_widest(found) if any_look else find_alike_margin(found)
        if widest is not None and logarithms:
            share = show(100 * (exp(min(widest, LARGEST_EXPONENT)) - 1))
            because += f"; they differ by no more than {share} %"
        elif widest is not None:
            because += f"; they differ by no more than {show(widest)}"
    return ArmsCompared(
        name,
        other,
        verdict,
        because,
        found.n,
        found.mean,
        found.low,
        found.high,
        ratio,
        found.corrected_p,
        detectable,
        detectable_ratio,
        least_p,
        find_seeds(abs(found.mean) / found.sd, error)
        if found.mean is not None and found.sd and verdict == "not distinguishable" and not stuck
        else None,
        stuck and verdict == "not distinguishable",
    )


def _judge_any_look(
    found: Difference, side: ArmNumbers, against: ArmNumbers, error: float
) -> Difference:
    """Return a difference whose interval, p-value and verdict hold at every look together.

    `error` is the share of cases in which it alone may be wrong.
    """
    if side.last is not None:
        first, second = count_first(side.values, against.values)
        e, low, high = find_sign_e_value(first, second), None, None
        verdict: DifferenceVerdict = "better" if first > second else "worse"
        if e < 1 / error:
            verdict = "not distinguishable"
    else:
        seen = look(found, error=error)
        if seen is None:
            return found
        e, low, high, verdict = seen.e_value, seen.low, seen.high, seen.verdict
    p = min(1.0, SIGNIFICANCE / error / e)  # as if it were alone
    return replace(found, low=low, high=high, p=p, corrected_p=p, verdict=verdict, reason=None)


def _find_widest(found: Difference) -> float | None:
    """Return the largest difference within the interval, None where there is none."""
    if found.low is None or found.high is None:
        return None
    return max(abs(found.low), abs(found.high))


def show_side(name: str, side: ArmNumbers) -> str:
    """Return a side in words: its mean, its interval, and what is remarkable."""
    if side.last is not None and side.values:
        return f"{name} {_show_steps(side)}"
    summary = side.summary
    if summary is None:
        return f"{name} {side.missing or 'diverged'}"
    interval = "" if summary.interval is None else f" [{', '.join(map(show, summary.interval))}]"
    return f"{name} {show(summary.mean)}{interval}{_about(side)}"


def _about(side: ArmNumbers) -> str:
    return f" ({say_count(len(side.diverged), 'seed')} diverged)" if side.diverged else ""


def _show_steps(side: ArmNumbers) -> str:
    """Return first steps in words: the median, and the range.

    >>> _show_steps(ArmNumbers({0: 40.0, 1: 60.0, 2: float("inf")}, last=800.0))
    '60 (40 to > 800)'
    """

    def one(step: float) -> str:
        return f"> {side.last:,.0f}" if isinf(step) else f"{step:,.0f}"

    steps = sorted(side.values.values())
    least, most = steps[0], steps[-1]
    return one(median(steps)) + ("" if least == most else f" ({one(least)} to {one(most)})")


def _combine(verdicts: Iterable[Verdict]) -> tuple[Verdict, str]:
    given = list(verdicts)
    reasons: dict[Verdict, str] = {
        "does not hold": "at least one comparison goes the other way",
        "not comparable": "at least one comparison cannot be made",
        "equivalent": "at least one difference is too small to matter",
        "not distinguishable": "at least one difference may be chance",
        "holds": "all comparisons hold",
    }
    for verdict, words in reasons.items():
        if verdict in given:
            return verdict, words
    return "not comparable", "nothing was measured"


def _bounds(at_least: float | None, at_most: float | None) -> str:
    parts = []
    if at_least is not None:
        parts.append(f"at least {show(at_least)}")
    if at_most is not None:
        parts.append(f"at most {show(at_most)}")
    return " and ".join(parts)

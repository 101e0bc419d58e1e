"""Decides what measured numbers say of a paper's claim. Arithmetic alone: nothing is read here.

A side of a comparison is a number for each seed. Both sides share seeds, so that differences are
paired. A seed that diverged has no number: a side that diverged in all seeds has lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import exp, log
from typing import Literal

from eigensweep.direction import Better
from eigensweep.workers.shared.statistics import (
    Difference,
    Summary,
    compare_paired,
    correct,
    summarize,
)

Verdict = Literal["holds", "does not hold", "not distinguishable", "not comparable"]

VERDICTS: tuple[Verdict, ...] = (
    "holds",
    "does not hold",
    "not distinguishable",
    "not comparable",
)

PARAMETERS_TOLERANCE = 0.05
"""Relative difference up to which a count that a paper rounds is the same."""


@dataclass(frozen=True)
class Side:
    """What one arm (or one analysis) gave: a number for each seed."""

    values: Mapping[int, float] = field(default_factory=dict)
    diverged: frozenset[int] = frozenset()
    """Seeds whose training diverged; they have no value."""
    never: frozenset[int] = frozenset()
    """Seeds that never got there; their value is the first step after the budget."""
    missing: str | None = None
    """Why there is no number at all; None if there is one."""

    @property
    def summary(self) -> Summary | None:
        """Mean and interval over the seeds that have a number."""
        return summarize(list(self.values.values())) if self.values else None


@dataclass(frozen=True)
class Pair:
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


@dataclass(frozen=True)
class Judgement:
    """A verdict and its reason."""

    verdict: Verdict
    because: str
    pairs: tuple[Pair, ...] = ()


def judge_order(
    name: str,
    side: Side,
    others: Mapping[str, Side],
    better: Better = "lower",
    *,
    logarithms: bool = False,
) -> Judgement:
    """Return whether `side`, called `name`, is better than each of the others.

    With `logarithms` ratios are compared in place of differences; all values must be positive.
    """
    differences: dict[str, Difference] = {}
    decided: dict[str, Pair] = {}
    for other, against in others.items():
        early = _decide_early(name, side, other, against, logarithms)
        if early is not None:
            decided[other] = early
            continue
        a, b = side.values, against.values
        if logarithms:
            a, b = ({seed: log(v) for seed, v in each.items()} for each in (a, b))
        differences[other] = compare_paired(a, b, better=better)
    corrected = dict(zip(differences, correct(list(differences.values())), strict=True))
    pairs = tuple(
        decided[other]
        if other in decided
        else _describe(name, side, other, others[other], corrected[other], logarithms)
        for other in others
    )
    return Judgement(*_combine(pair.verdict for pair in pairs), pairs)


def judge_bounds(
    side: Side,
    at_least: float | None = None,
    at_most: float | None = None,
    *,
    exact: bool = False,
    ratios: bool = False,
) -> Judgement:
    """Return whether a number lies within bounds, by its interval; an exact one by itself.

    With `ratios` the interval is that of the logarithms, whose mean is the geometric one, unless a
    ratio is zero: the interval of a positive number has no negative end.
    """
    if side.missing is not None:
        return Judgement("not comparable", side.missing)
    summary = side.summary
    if summary is None:
        seeds = _count(len(side.diverged), "seed")
        return Judgement("does not hold", f"training diverged in all {seeds}")
    mean, low, high = summary.mean, summary.low, summary.high
    if exact:
        low = high = mean
    elif ratios and min(side.values.values()) > 0:
        inner = summarize([log(value) for value in side.values.values()])
        mean = exp(inner.mean)
        low, high = (None if end is None else exp(end) for end in (inner.low, inner.high))
    if low is None or high is None:
        return Judgement(
            "not distinguishable",
            f"one seed gives no interval; its value is {show(mean)}",
        )
    words = show(mean) if exact else f"{show(mean)} [{show(low)}, {show(high)}]"
    words += f", wanted {_bounds(at_least, at_most)}" + _about(side)
    above = at_least is None or low >= at_least
    below = at_most is None or high <= at_most
    if above and below:
        return Judgement("does not hold" if side.diverged else "holds", words)
    outside = (at_least is not None and high < at_least) or (at_most is not None and low > at_most)
    return Judgement("does not hold" if outside else "not distinguishable", words)


def judge_number(
    summary: Summary | None, paper: float, not_comparable: str | None, tolerance: float = 0.0
) -> Judgement:
    """Return whether a measured number agrees with a paper's: `holds` means that it does.

    With a tolerance, a relative one, the number has no randomness and no interval is needed.
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
    if summary.low is None or summary.high is None:
        return Judgement("not distinguishable", "one seed gives no interval")
    inside = summary.low <= paper <= summary.high
    return Judgement(
        "holds" if inside else "does not hold",
        f"the paper's number is {'inside' if inside else 'outside'} the interval",
    )


def judge_all(verdicts: Iterable[Verdict]) -> Judgement:
    """Return the verdict on several claims together: it holds only where all of them do.

    >>> judge_all(["holds", "not distinguishable", "holds"]).because
    '2 of 3 hold, 1 not distinguishable'
    """
    given = list(verdicts)
    if not given:
        return Judgement("not comparable", "there is no claim that this budget decides")
    phrases: dict[Verdict, str] = {"holds": "hold", "does not hold": "do not hold"}
    present = [verdict for verdict in VERDICTS if verdict in given]
    words = [f"{given.count(verdict)} {phrases.get(verdict, verdict)}" for verdict in present]
    words[0] = words[0].replace(" ", f" of {len(given)} ", 1)
    return Judgement(_combine(given)[0], ", ".join(words))


def show(value: float) -> str:
    """Return a number as reports print it: three digits that count."""
    return f"{value:.3g}"


def _decide_early(
    name: str, side: Side, other: str, against: Side, logarithms: bool
) -> Pair | None:
    """Return the verdict where no test is needed: something is missing or diverged."""
    for label, each in ((name, side), (other, against)):
        if each.missing is not None:
            return Pair(name, other, "not comparable", f"{label}: {each.missing}")
    if not side.values and not against.values:
        return Pair(name, other, "not distinguishable", "both diverged in all seeds")
    if not side.values:
        return Pair(name, other, "does not hold", f"{name} diverged in all seeds")
    if not against.values:
        return Pair(name, other, "holds", f"{other} diverged in all seeds")
    if side.never == side.values.keys() and against.never == against.values.keys():
        return Pair(name, other, "not distinguishable", "neither got there within the budget")
    if logarithms and min((*side.values.values(), *against.values.values())) <= 0:
        return Pair(name, other, "not comparable", "a ratio needs positive numbers")
    return None


def _describe(
    name: str, side: Side, other: str, against: Side, found: Difference, logarithms: bool
) -> Pair:
    verdicts: dict[str, Verdict] = {"better": "holds", "worse": "does not hold"}
    because = found.reason or f"{show_side(name, side)}; {show_side(other, against)}"
    verdict: Verdict = verdicts.get(found.verdict, "not distinguishable")
    if found.verdict == "not comparable" and found.n == 0:
        verdict = "not comparable"
    if verdict == "holds" and side.diverged:
        verdict = "not distinguishable"
        because += f"; {name} diverged in {_count(len(side.diverged), 'seed')}"
    ratio = None
    if found.mean is not None:
        mine, theirs = side.summary, against.summary
        if logarithms:
            ratio = exp(found.mean)
        elif mine is not None and theirs is not None and theirs.mean:
            ratio = mine.mean / theirs.mean
    p = found.corrected_p
    return Pair(name, other, verdict, because, found.n, found.mean, found.low, found.high, ratio, p)


def show_side(name: str, side: Side) -> str:
    """Return a side in words: its mean, its interval, and what is remarkable."""
    summary = side.summary
    if summary is None:
        return f"{name} {side.missing or 'diverged'}"
    interval = "" if summary.interval is None else f" [{', '.join(map(show, summary.interval))}]"
    return f"{name} {show(summary.mean)}{interval}{_about(side)}"


def _about(side: Side) -> str:
    words = ""
    if side.never:
        words += f" ({_count(len(side.never), 'seed')} never got there)"
    if side.diverged:
        words += f" ({_count(len(side.diverged), 'seed')} diverged)"
    return words


def _combine(verdicts: Iterable[Verdict]) -> tuple[Verdict, str]:
    given = list(verdicts)
    reasons: dict[Verdict, str] = {
        "does not hold": "at least one comparison goes the other way",
        "not comparable": "at least one comparison cannot be made",
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


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

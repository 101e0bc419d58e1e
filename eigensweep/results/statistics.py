"""What repeated trainings tell: a mean with its interval, and differences over shared seeds.

All intervals cover 95% and are Student's. The interval of a loss is made on the scale of
logarithms, and that of an accuracy on the scale of logits, by the delta method: so neither leaves
what the metric can be. A difference is paired: the same seed gives both sides the same data and the
same start, so what the seed alone does cancels. The p-value is that of the paired t-test, or of a
sign test where all differences are equal. Among several comparisons p-values are corrected after
Holm (1979), "A simple sequentially rejective multiple test procedure".

Importing this does not load scipy: one training needs none. Classes that an answer of the API shows
as they are have `__pydantic_config__`, by which the docstrings of their fields describe it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import exp, fsum, hypot, isfinite, sqrt
from statistics import fmean
from typing import ClassVar, Literal

from eigensweep.common.direction import Better, sign

CONFIDENCE = 0.95
"""How often an interval covers the true value."""

ROUNDING = 1e-9
"""Part of a mean below which a spread is that of rounding."""
SIGNIFICANCE = 0.05
"""A difference whose corrected p-value is above this is not distinguishable from none."""
ORDERS = 9_999
"""Most divisions of trainings among two sides that are looked at; of more, so many random ones."""

POWER = 0.8
"""How often a difference is found that `find_detectable` calls detectable."""

LARGEST_EXPONENT = 500.0
"""Above it an interval says nothing, and its ends would leave the numbers of a computer."""

TEST = (
    "two-sided paired t-test over shared seeds, or sign test where all differences are equal; "
    "p-values corrected after Holm"
)
"""The test behind each `Difference`, in words."""

Verdict = Literal["better", "worse", "equivalent", "not distinguishable", "not comparable"]
"""What a difference says of its first side against the second. `equivalent` needs a smallest
difference of interest, which the sides are then shown not to exceed."""


Domain = Literal["real", "positive", "fraction"]
"""Where a mean can lie: anywhere, from 0 on, or from 0 to 1."""

DOMAINS: Mapping[str, Domain] = {
    **dict.fromkeys(("accuracy", "precision", "recall", "f1", "auc", "iou"), "fraction"),
    **dict.fromkeys(("snr_missing", "stoi_missing", "pesq_missing"), "fraction"),
    **dict.fromkeys(("mse", "rmse", "mae", "perplexity"), "positive"),
    **dict.fromkeys(("cross_entropy", "bits_per_char", "seconds_per_step"), "positive"),
}
"""Names of metrics that cannot take every value, of our tasks and of the field. `snr_missing`
and the like are shares of recordings without a score."""
NO_DOMAIN = frozenset({"log", "neg", "negative", "delta", "relative"})
"""Words by which a metric is made of another one, so that it can take every value."""


def find_domain(metric: str) -> Domain:
    """Return where the mean of a metric can lie, by the words that its name ends with.

    `valid/NAME` and `test/NAME` are as `NAME`. A metric of another name can take every value.

    >>> find_domain("test/recall_accuracy"), find_domain("masked_mse"), find_domain("seg_snr")
    ('fraction', 'positive', 'real')
    """
    words = metric.rpartition("/")[2].split("_")
    if not NO_DOMAIN.isdisjoint(words):
        return "real"
    endings = ("_".join(words[first:]) for first in range(len(words)))
    return next((DOMAINS[each] for each in endings if each in DOMAINS), "real")


@dataclass(frozen=True)
class Summary:
    """What several trainings of one configuration gave."""

    __pydantic_config__: ClassVar = {"use_attribute_docstrings": True}
    mean: float
    n: int
    """Trainings, each with its own seed"""
    sd: float | None
    """Standard deviation, with n - 1 below; null for one training"""
    low: float | None
    """Lower end of the mean's 95% interval (Student's t), within what the metric can be"""
    high: float | None
    """Upper end of the same"""

    @property
    def standard_error(self) -> float | None:
        """The standard error of the mean, None for one value."""
        return None if self.sd is None else self.sd / sqrt(self.n)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends of the mean's 95% interval, None for one value."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def decides(self) -> bool:
        """Whether its interval shows where the mean is: not where a few values are all equal.

        Their spread is not known then, and a sign test needs six of them.
        """
        error = self.standard_error
        return error is not None and not (
            _lack_spread(self.mean, error) and 0.5 ** (self.n - 1) > SIGNIFICANCE
        )

    def to_dict(self) -> dict[str, object]:
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What a first side has more than a second, over the seeds that both have."""

    seeds: tuple[int, ...]
    """The shared seeds, in order."""
    mean: float | None = None
    """Mean over the shared seeds of first minus second; None where no seed is shared."""
    sd: float | None = None
    """Standard deviation of the differences; None for fewer than two."""
    low: float | None = None
    """Lower end of the mean difference's 95% interval, of this comparison alone."""
    high: float | None = None
    """Upper end of the same."""
    p: float | None = None
    """p-value of this comparison alone."""
    corrected_p: float | None = None
    """p-value corrected for all comparisons that were made together; equal to `p` for one."""
    alike_p: float | None = None
    """p-value of two one-sided tests that the sides differ by no more than what is of interest;
    None where nobody said what that is."""
    effect: float | None = None
    """`mean` as a ratio to the task's baseline; None where that is unknown."""
    verdict: Verdict
    """What it says of the first side, by the corrected p-value."""
    better: Better = "lower"
    """Which values are better."""
    reason: str | None = None
    """Why the sides are not comparable; None where they are."""

    @property
    def n(self) -> int:
        return len(self.seeds)

    @property
    def lacks_spread(self) -> bool:
        """Whether the differences are known, and equal but for rounding."""
        if self.mean is None or self.sd is None:
            return False
        return _lack_spread(self.mean, self.sd)

    @property
    def words(self) -> str:
        """The verdict, with its reason where there is one."""
        return self.verdict if self.reason is None else f"{self.verdict} because {self.reason}"


def summarize(values: Sequence[float], domain: Domain = "real") -> Summary:
    """Return mean, spread and 95% interval of some values; one value has no interval.

    The interval contains the mean and stays in the domain. Values outside of the domain that was
    named make it the whole line, as a metric of the same name may mean something else.

    >>> summarize([1.0, 2.0, 3.0]).sd
    1.0
    >>> low, high = summarize([0.9, 0.95, 1.0], "fraction").interval
    >>> round(low, 3), round(high, 3)
    (0.582, 0.996)

    Raises:
        ValueError: if there is no value, or one is not finite.
    """
    if not values or not all(map(isfinite, values)):
        raise ValueError(f"a summary needs at least one value, all of them finite; got {values}")
    mean, n = fmean(values), len(values)
    if n == 1:
        return Summary(mean, n, None, None, None)
    sd = find_spread(values, mean)
    return Summary(
        mean, n, sd, *make_interval(values, mean, t_quantile(n - 1) * sd / sqrt(n), domain)
    )


def find_spread(values: Sequence[float], mean: float) -> float:
    """Return the standard deviation of two or more values with this mean.

    `statistics.stdev`, which computes with fractions, takes twenty times as long.
    """
    try:
        return sqrt(fsum([(value - mean) ** 2 for value in values]) / (len(values) - 1))
    except OverflowError:  # of squares; `hypot` has other last digits
        return hypot(*[value - mean for value in values]) / sqrt(len(values) - 1)


def make_interval(
    values: Sequence[float], mean: float, margin: float, domain: Domain
) -> tuple[float, float]:
    """Return both ends of a mean's interval, from half its width on the scale of the values.

    With g the logarithm or the logit, g(mean) has a margin of g'(mean) times that of the mean.
    """
    least, most = min(values), max(values)
    if margin == 0 or (domain == "fraction" and least >= 0 and most <= 1 and mean in (0.0, 1.0)):
        return mean, mean
    if domain == "positive" and least >= 0:
        factor = exp(min(margin / mean, LARGEST_EXPONENT))
        return mean / factor, mean * factor
    if domain == "fraction" and least >= 0 and most <= 1:
        factor = exp(min(margin / (mean * (1 - mean)), LARGEST_EXPONENT))
        odds = mean / (1 - mean)
        low, high = odds / (factor + odds), odds * factor / (1 + odds * factor)
        return min(low, mean), max(high, mean)  # rounding may put it outside
    return mean - margin, mean + margin


def compare_paired(
    a: Mapping[int, float],
    b: Mapping[int, float],
    *,
    better: Better = "lower",
    baseline: float | None = None,
) -> Difference:
    """Return what `a` has more than `b`, over the seeds that both have.

    `a` and `b` map a seed to the value that it gave. `better` says which values are better, and
    `baseline` what the difference is measured by in `effect`.

    >>> compare_paired({0: 0.3, 1: 0.4, 2: 0.2}, {0: 0.9, 1: 1.1, 2: 0.8}).verdict
    'better'

    Raises:
        ValueError: if a value is not finite.
    """
    seeds = tuple(sorted(a.keys() & b.keys()))
    if not seeds:
        return Difference(seeds=(), verdict="not comparable", reason="no seed is shared")
    summary = summarize([a[seed] - b[seed] for seed in seeds])
    found = Difference(
        seeds=seeds,
        mean=summary.mean,
        effect=summary.mean / baseline if baseline else None,
        better=better,
        verdict="not comparable",
        reason="one shared seed gives no interval",
    )
    if summary.standard_error is None:
        return found
    p = _two_sided_p(summary.mean, summary.standard_error, summary.n - 1)
    return replace(
        found,
        sd=summary.sd,
        low=summary.low,
        high=summary.high,
        p=p,
        corrected_p=p,
        verdict=_judge(summary.mean, p, better),
        reason=None,
    )


def compare_first_steps(a: Mapping[int, float], b: Mapping[int, float], last: float) -> Difference:
    """Return whether `a` gets to a threshold before `b`; earlier is better.

    `a` and `b` map a seed to the first step at which it was there, infinite where it was not within
    the `last` step. The test is the log-rank test with the exact distribution of its score over all
    divisions of the trainings among the sides (`ORDERS` random ones, where there are more), so it
    holds for few seeds and with ties. Its score also says who is earlier: `mean`, the difference of
    the means up to `last`, may say otherwise where a few trainings never get there.

    >>> from math import inf
    >>> one, other = dict(enumerate([10, 20, 20, 30])), dict(enumerate([40, 60, inf, inf]))
    >>> round(compare_first_steps(one, other, 100).p, 3)
    0.029
    """
    import numpy as np
    from scipy.stats import permutation_test  # type: ignore[import-untyped]

    seeds = tuple(sorted(a.keys() & b.keys()))
    if min(len(a), len(b)) < 2:
        return Difference(seeds=seeds, verdict="not comparable", reason="one seed has no spread")
    times = np.array([*a.values(), *b.values()], dtype=float)
    hazard = np.zeros_like(times)  # of Nelson and Aalen, summed up to each training's own time
    for step in np.unique(times[np.isfinite(times)]):
        hazard += (times >= step) * (times == step).sum() / (times >= step).sum()
    scores = np.isfinite(times) - hazard
    found = permutation_test(
        (scores[: len(a)], scores[len(a) :]),
        lambda x, y, axis: x.mean(axis) - y.mean(axis),
        vectorized=True,
        n_resamples=ORDERS,
        rng=np.random.default_rng(0),
    )
    p = float(found.pvalue)
    up_to_last = np.minimum(times, last)
    mean = float(up_to_last[: len(a)].mean() - up_to_last[len(a) :].mean())
    verdict = _judge(-float(found.statistic), p, "lower")  # a larger score is an earlier training
    return Difference(seeds=seeds, mean=mean, p=p, corrected_p=p, verdict=verdict)


def find_alike_p(difference: Difference, margin: float) -> float | None:
    """Return the p-value of two one-sided tests that a mean difference lies within ± `margin`.

    Source: Schuirmann (1987). Where all differences are equal, they are two sign tests. None where
    one seed is all.
    """
    from scipy.special import stdtr  # type: ignore[import-untyped]

    if difference.mean is None or difference.sd is None:
        return None
    error, freedom = difference.sd / sqrt(difference.n), difference.n - 1
    nearest = margin - abs(difference.mean)
    if _lack_spread(difference.mean, error):
        return 0.5**difference.n if nearest > 0 else 1.0
    return float(stdtr(freedom, -nearest / error))


def find_alike_margin(difference: Difference) -> float | None:
    """Return the margin up to which two one-sided tests show likeness, each at 5%.

    None where one seed is all, or so few differences are all equal.
    """
    from scipy.special import stdtrit

    if difference.mean is None or difference.sd is None:
        return None
    if difference.lacks_spread and 0.5**difference.n > SIGNIFICANCE:
        return None
    quantile = float(stdtrit(difference.n - 1, 1 - SIGNIFICANCE))
    return abs(difference.mean) + quantile * difference.sd / sqrt(difference.n)


def judge_alike(differences: Sequence[Difference], margin: float) -> list[Difference]:
    """Return comparisons made together, `equivalent` where likeness within ± `margin` is shown.

    The p-values of the two one-sided tests are corrected after Holm.
    """
    p_values = [find_alike_p(each, margin) for each in differences]
    corrected = iter(holm([p for p in p_values if p is not None]))
    judged = []
    for each, p in zip(differences, p_values, strict=True):
        if p is not None:
            p = next(corrected)
            verdict: Verdict = "equivalent" if p <= SIGNIFICANCE else each.verdict
            each = replace(each, alike_p=p, verdict=verdict)
        judged.append(each)
    return judged


def find_detectable(sd: float, n: int, error: float = SIGNIFICANCE) -> float:
    """Return the smallest mean difference that n seeds of this spread show in four of five cases.

    It is where the power of the two-sided paired t-test at 5% is 80%, by the noncentral t. `error`
    is the test's level where it is one of several.

    >>> round(find_detectable(1.0, 10), 2), round(find_detectable(1.0, 3), 2)
    (1.0, 3.26)
    """
    from scipy.special import nctdtrinc, stdtrit

    quantile = float(stdtrit(n - 1, 1 - error / 2))
    return float(nctdtrinc(n - 1, 1 - POWER, quantile)) * sd / sqrt(n)


def correct(differences: Sequence[Difference]) -> list[Difference]:
    """Return comparisons that were made together, each with its corrected p-value and verdict."""
    tested = [each.p for each in differences if each.p is not None]
    corrected = iter(holm(tested))
    judged = []
    for each in differences:
        if each.p is not None and each.mean is not None:
            p = next(corrected)  # no less than its own p
            verdict: Verdict = each.verdict if p <= SIGNIFICANCE else "not distinguishable"
            each = replace(each, corrected_p=p, verdict=verdict)
        judged.append(each)
    return judged


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values of several tests, corrected after Holm, in the same order.

    The smallest of m is multiplied by m, the next by m - 1, and so on. None becomes smaller than
    one before it, and none larger than 1.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    m = len(p_values)
    corrected, least = [0.0] * m, 0.0
    for rank, index in enumerate(sorted(range(m), key=lambda index: p_values[index])):
        least = max(least, min(1.0, (m - rank) * p_values[index]))
        corrected[index] = least
    return corrected


@cache
def t_quantile(freedom: int) -> float:
    """Return t with P(|T| < t) = 0.95 for Student's T with so many degrees of freedom.

    >>> [round(t_quantile(n), 3) for n in (1, 2, 9, 29)]
    [12.706, 4.303, 2.262, 2.045]
    """
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def _two_sided_p(mean: float, error: float, freedom: int) -> float:
    """Return P(|T| >= |mean / error|); where all differences are equal, that of the sign test."""
    from scipy.special import stdtr

    if _lack_spread(mean, error):
        return 0.5**freedom if mean else 1.0
    return float(2 * stdtr(freedom, -abs(mean) / error))


def _lack_spread(mean: float, error: float) -> bool:
    """Tell whether values with this mean have no spread but that of rounding."""
    return error <= ROUNDING * abs(mean)


def _judge(mean: float, p: float, better: Better) -> Verdict:
    if p > SIGNIFICANCE:
        return "not distinguishable"
    return "better" if sign(better) * mean < 0 else "worse"

"""A report as Markdown, and many reports as one page."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from eigensweep.search_spaces.labels import (
    describe_settings,
    format_share,
    format_value,
    say_count,
)
from eigensweep.workers.reports.report import (
    ArmFound,
    ClaimFound,
    Comparison,
    Interval,
    NumberFound,
    ReportContent,
)
from eigensweep.workers.reports.verdicts import show
from eigensweep.workers.shared.statistics import SIGNIFICANCE


def write_report(
    content: ReportContent, figure: str | None, heading: int = 1, *, outdated: bool = False
) -> str:
    """Return a report; `figure` is the address of its picture, `heading` the level of its title.

    An `outdated` one was made by rules or for a suite that have changed since, and says so.
    """
    return "\n".join(_lines(content, figure, "#" * heading, outdated)).rstrip() + "\n"


def write_page(
    reports: Sequence[tuple[ReportContent, str]],
    missing: Mapping[str, str],
    outdated: Collection[str] = (),
) -> str:
    """Return all reports as one page: a table, then each report.

    Args:
        reports: each with the address of its picture.
        missing: suites without a report, each with the reason.
        outdated: suites whose report was made by rules, or for a suite, that have changed since.
    """
    lines = [
        "# The papers, measured again",
        "",
        "`eigensweep reproduce --all` wrote this page. Each table and figure of the papers has a "
        "suite, which names its experiments and the paper's claims. The first claim is the primary "
        "one, and its verdict is that on the table or figure. No setting was tuned until it "
        "fitted.",
        "",
        "A claim is decided by numbers. Losses and accuracies of arms are compared over shared "
        "seeds by a paired t-test, first steps to a threshold by an exact log-rank test, in which "
        "a training that never gets there counts as longer than the budget; that arms are alike by "
        "two one-sided tests. p-values are corrected after Holm within a claim. Intervals are 95 % "
        "intervals by Student's t, on the scale of logarithms for losses and of logits for "
        "accuracies. Seeds that diverged are named, and the numbers are those of the others.",
        "",
        "Minutes are those of the machine that each report names at its end, with all that ran "
        "there at the same time: an idle or newer one needs a fraction of them.",
        "",
        _chance_words([content for content, _ in reports]),
        "",
        *_table(
            ("reproduction", "budget", "verdict", "claims", "minutes of training"),
            (
                (
                    f"[{each.name}](#{_anchor(each)})",
                    each.budget,
                    f"to be judged again (was: {each.verdict})"
                    if each.name in outdated
                    else each.verdict,
                    each.words,
                    f"{each.cost.trial_seconds / 60:.1f}",
                )
                for each, _ in reports
            ),
        ),
    ]
    if missing:
        lines += ["", "Not run here:", ""]
        lines += _table(("reproduction", "why"), missing.items())
    for content, figure in reports:
        is_outdated = content.name in outdated
        lines += ["", write_report(content, figure, 2, outdated=is_outdated).rstrip()]
    return "\n".join(lines) + "\n"


def _chance_words(reports: Sequence[ReportContent]) -> str:
    """Return how much the page compares, and what of that chance alone would decide."""
    claims = [claim for content in reports for claim in content.claims if claim.counts]
    tested = [each for each in claims if any(pair.p is not None for pair in each.comparisons)]
    pairs = sum(pair.p is not None for claim in tested for pair in claim.comparisons)
    by_chance = SIGNIFICANCE * len(tested)
    return (
        f"The page decides {len(claims)} claims, {len(tested)} of them by {pairs} comparisons of "
        f"arms. Were there no difference between any arms, about {by_chance:.1f} of these claims "
        "would be called decided by chance: nothing is corrected over the whole page."
    )


def title_of(content: ReportContent) -> str:
    """Return the heading of a report."""
    return f"{content.name}: {content.title}"


def remarks_of(content: ReportContent) -> list[tuple[str, str]]:
    """Return what a reader must know beside the numbers, each with its heading."""
    remarks = (
        (f"The {content.budget} budget", content.cut),
        ("Departures", content.departures),
        ("Needs", content.needs),
    )
    return [(head, words) for head, words in remarks if words]


def _anchor(content: ReportContent) -> str:
    """Return what GitHub makes of the report's heading."""
    kept = (c for c in title_of(content).lower() if c.isalnum() or c in " -_")
    return "".join(kept).replace(" ", "-")


def _lines(content: ReportContent, figure: str | None, sign: str, outdated: bool) -> Iterator[str]:
    yield from (f"{sign} {title_of(content)}", "")
    yield from (f"{content.paper}, {content.place}. {content.says}", "")
    yield from (f"**Verdict: {content.verdict}** ({content.words}).", "")
    if outdated:
        yield from (
            f"This is the verdict of revision {content.revision[:12]}. Its rules or the suite have "
            "changed since; the same command judges it again.",
            "",
        )
    for head, words in remarks_of(content):
        yield from (f"{head}: {words}", "")
    if figure is not None:
        yield from (f"![{content.title}]({figure})", "")
    if content.claims:
        yield from _table(
            ("claim of the paper", "decided by", "verdict", "because"),
            (
                (says_words(claim), claim.by, claim.verdict, ". ".join(claim_words(claim)))
                for claim in content.claims
            ),
        )
        yield ""
    if content.numbers:
        yield from _table(
            ("arm", "number", "paper", "measured", "gap", "verdict"),
            (number_cells(content, number) for number in content.numbers),
        )
        yield ""
    if content.arms:
        yield from _table(ARM_HEADS, (arm_cells(content, arm) for arm in content.arms))
        yield ""
    yield from (cost_words(content), "")
    yield from ("```", content.command, "```")


def says_words(claim: ClaimFound) -> str:
    """Return a claim in words, with the setting in which it is decided."""
    return claim.says if claim.setting is None else f"{claim.says} ({claim.setting})"


def claim_words(claim: ClaimFound) -> list[str]:
    """Return why a claim has its verdict: its comparisons, or its own reason without any."""
    return [comparison_words(each) for each in claim.comparisons] or [claim.because]


def comparison_words(pair: Comparison) -> str:
    """Return one comparison in words."""
    p = "" if pair.p is None else f", p = {show(pair.p)}"
    n = f", {pair.n} seeds" if pair.n else ""
    could = ""
    if pair.least_p is not None:
        could = f", at best p = {show(pair.least_p)}"
    elif pair.detectable_ratio is not None:
        could = f", could show a ratio of {show(pair.detectable_ratio)}"
    elif pair.detectable is not None:
        could = f", could show a difference of {show(pair.detectable)}"
    if pair.seeds is not None:
        could += f"; about {pair.seeds} seeds would decide a difference of this size"
    return f"{pair.better} against {pair.than} {pair.verdict}: {pair.because}{p}{n}{could}"


def arm_words(content: ReportContent, found: NumberFound | ArmFound) -> str:
    """Return an arm's name; with that of its experiment, if the report has several."""
    several = len(content.experiments) > 1
    return f"{found.experiment}/{found.arm}" if several else found.arm


def number_cells(content: ReportContent, number: NumberFound) -> tuple[str, ...]:
    """Return a number of the paper as the cells of a row."""
    where = f" ({number.place}{f', page {number.page}' if number.page else ''})"
    step = "" if number.step is None else f" at step {number.step:,}"
    spread = "" if number.spread is None else f" ± {show(number.spread)}"
    about = "about " if number.read_off else ""
    verdict = number.verdict
    return (
        arm_words(content, number),
        f"{number.metric}{step}{where if number.place else ''}",
        f"{about}{format_value(number.paper)}{spread}",
        interval_words(number.measured),
        "" if number.gap is None else f"{number.gap:+.3g}",
        f"{verdict}: {number.because}" if verdict == "not comparable" else verdict,
    )


ARM_HEADS = (
    "arm",
    "settings",
    "parameters",
    "seeds",
    "best validation value",
    "of the baseline",
    "test",
    "constraint",
    "diverged",
    "minutes",
)


def arm_cells(content: ReportContent, arm: ArmFound) -> tuple[str, ...]:
    """Return an arm as the cells of a row; see `ARM_HEADS`."""
    diverged = [f"seed {seed}" for seed in arm.diverged_seeds]
    if arm.diverged_trials:
        diverged.append(f"{arm.diverged_trials} of {arm.trials} trials")
    if arm.failed_trials:
        diverged.append(f"{arm.failed_trials} failed")
    return (
        arm_words(content, arm),
        describe_settings(arm.settings),
        "" if arm.parameters is None else f"{arm.parameters:,}",
        str(arm.seeds),
        interval_words(arm.value) if arm.value is not None else arm.state,
        "" if arm.of_baseline is None else format_share(arm.of_baseline),
        ", ".join(f"{name} {interval_words(found)}" for name, found in arm.test.items()),
        ", ".join(f"{name} {show(value)}" for name, value in arm.drift.items()),
        ", ".join(diverged) or "none",
        f"{arm.seconds / 60:.1f}",
    )


def interval_words(found: Interval | None) -> str:
    """Return a mean with its interval."""
    if found is None:
        return "not measured"
    mean = format_value(found.mean)
    if found.low is None or found.high is None:
        return f"{mean} (one value)" if found.n == 1 else mean
    return f"{mean} [{format_value(found.low)}, {format_value(found.high)}]"


def cost_words(content: ReportContent) -> str:
    """Return what the report cost, and with what it was made."""
    cost = content.cost
    parts = [f"Training took {_say_time(cost.trial_seconds)}, one trial after another"]
    if cost.started_at is not None and cost.finished_at is not None:
        lasted = (cost.finished_at - cost.started_at).total_seconds()
        parts.append(f"{_say_time(lasted)} from the first start to the last end")
    words = f"{'; '.join(parts)}. {content.processor}. {content.versions}."
    return f"{words} Revision {content.revision[:12]}, {content.made_at:%Y-%m-%d}."


def _say_time(seconds: float) -> str:
    """Return a time in seconds, if it is short, or else in minutes.

    >>> _say_time(2.2), _say_time(234.0)
    ('2 seconds', '3.9 minutes')
    """
    if seconds < 100:
        return say_count(round(seconds), "second")
    return f"{seconds / 60:.1f} minutes"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [heads, ["---"] * len(heads), *rows]
    return [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in cells]


def _cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")

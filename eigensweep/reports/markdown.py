"""A report as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from eigensweep.reports.report import (
    ArmFound,
    ClaimFound,
    LooksFound,
    NumberFound,
    ReportContent,
)
from eigensweep.reports.verdicts import ArmsCompared, show
from eigensweep.results.statistics import Summary
from eigensweep.search_spaces.labels import (
    describe_settings,
    format_share,
    format_value,
    say_count,
)


def write_report(
    content: ReportContent,
    figure: str | None,
    heading: int = 1,
    *,
    results: str | None = None,
    outdated: bool = False,
) -> str:
    """Return a report; `heading` is the level of its title.

    `figure` and `results` are the addresses of its picture and of the file with every seed's
    numbers. Of an `outdated` one the suite has other trials now, and it says so.
    """
    lines = _lines(content, figure, "#" * heading, results, outdated)
    return "\n".join(lines).rstrip() + "\n"


def title_of(content: ReportContent) -> str:
    """Return the heading of a report."""
    return f"{content.name}: {content.title}"


def remarks_of(content: ReportContent) -> list[tuple[str, str]]:
    """Return what a reader must know beside the numbers, each with its heading."""
    remarks = (
        ("Looks", None if content.looks is None else look_words(content.looks)),
        (f"The {content.budget} budget", content.cut),
        ("Departures", content.departures),
        ("Needs", content.needs),
    )
    return [(head, words) for head, words in remarks if words]


def look_words(looks: LooksFound) -> str:
    """Return how many looks and seeds it took, and what that means for the verdicts."""
    ended = {
        "decided": "The primary claim was decided then",
        "core-hours": "The core-hours for added seeds were spent then",
        "seeds": f"{say_count(looks.most, 'seed')} are the most that were asked for",
        "not by seeds": "More seeds would not decide it",
        None: "More seeds are trained",
    }[looks.ended]
    counts = ", ".join(map(str, looks.seeds))
    hours = f"{looks.core_hours:.2g} core hours"
    if looks.allowed is not None:
        hours += f" of {looks.allowed:g}"
    return (
        f"Seeds were added until the primary claim was decided: "
        f"{say_count(len(looks.seeds), 'look')}, with {counts} seeds. {ended}; added seeds took "
        f"{hours}. Verdicts and their p-values are anytime-valid: they err in at most 5 % of "
        "cases however often one looks. Other intervals are those of one look."
    )


def make_anchor(heading: str) -> str:
    """Return what GitHub makes of a heading.

    >>> make_anchor("nnrnn/figure-2: Copying over 200 steps")
    'nnrnnfigure-2-copying-over-200-steps'
    """
    kept = (c for c in heading.lower() if c.isalnum() or c in " -_")
    return "".join(kept).replace(" ", "-")


def _lines(
    content: ReportContent, figure: str | None, sign: str, results: str | None, outdated: bool
) -> Iterator[str]:
    yield from (f"{sign} {title_of(content)}", "")
    page = "" if content.page is None else f", page {content.page}"
    yield from (f"{content.paper}, {content.place}{page}. {content.says}", "")
    if content.quote is not None:
        yield from (f"> {content.quote} ({content.quoted_from})", "")
    yield from (f"**Verdict: {content.verdict}** ({content.words}).", "")
    if outdated:
        yield from (
            f"These are the trials of revision {content.revision[:12]}, judged by the rules of "
            "now. The suite has further trials or seeds since; the same command trains them.",
            "",
        )
    for head, words in remarks_of(content):
        yield from (f"{head}: {words}", "")
    if figure is not None:
        yield from (f"![{content.title}]({figure})", "")
        if not content.analyses:
            yield from (f"*{caption_of(content)}*", "")
    if results is not None:
        yield from (f"[Every seed's values, curve and settings]({results})", "")
    for each in make_tables(content, ". "):
        if each.rows:
            yield from (*table(each.heads, each.rows), "")
    yield from (cost_words(content), "")
    yield from ("```", content.command, "```")


CAPTIONS = {
    "curves": "Lines are means over the seeds that did not diverge. Bands reach from the lowest to "
    "the highest of them; they are no intervals. Dashed: remembering nothing.",
    "values": "The measured numbers with their 95 % intervals, and the paper's.",
    "sizes": "The measured numbers with their 95 % intervals, and the paper's, over parameters.",
}
"""What is below a picture, by its kind."""


def caption_of(content: ReportContent) -> str:
    """Return what the picture of a report shows: that of its first analysis, or its curves."""
    made = [each for each in content.analyses if each.problem is None]
    return f"{made[0].label.replace('_', ' ').capitalize()}." if made else CAPTIONS[content.picture]


def says_words(claim: ClaimFound) -> str:
    """Return a claim in words, with the setting in which it is decided."""
    return claim.says if claim.setting is None else f"{claim.says} ({claim.setting})"


def claim_words(claim: ClaimFound) -> list[str]:
    """Return why a claim has its verdict: its comparisons, or its own reason without any."""
    return [comparison_words(each) for each in claim.comparisons] or [claim.because]


def comparison_words(pair: ArmsCompared) -> str:
    """Return one comparison in words."""
    p = "" if pair.p is None else f", p = {show(pair.p)}"
    n = f", {say_count(pair.n, 'seed')}" if pair.n else ""
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


def interval_words(found: Summary | None) -> str:
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
    if content.same_as is not None:
        parts[0] += f", shared with {content.same_as}"
    words = f"{'; '.join(parts)}. {content.processor}. {content.versions}."
    for origin, seeds in content.origins.items():
        words += f" Taken up from a file of results: {say_count(seeds, 'seed')} of {origin}."
    return f"{words} Revision {content.revision[:12]}, {content.made_at:%Y-%m-%d}."


def _say_time(seconds: float) -> str:
    """Return a time in seconds, if it is short, or else in minutes.

    >>> _say_time(2.2), _say_time(234.0)
    ('2 seconds', '3.9 minutes')
    """
    if seconds < 100:
        return say_count(round(seconds), "second")
    return f"{seconds / 60:.1f} minutes"


@dataclass(frozen=True)
class ReportTable:
    """A table of a report."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


def make_tables(content: ReportContent, between: str) -> list[ReportTable]:
    """Return claims, the paper's numbers, and arms; `between` parts the reasons for a verdict."""
    return [
        ReportTable(
            "Claims",
            ("claim of the paper", "decided by", "verdict", "because"),
            [
                (says_words(c), c.by, c.verdict, between.join(claim_words(c)))
                for c in content.claims
            ],
        ),
        ReportTable(
            "Numbers of the paper",
            ("arm", "number", "paper", "measured", "gap", "verdict"),
            [number_cells(content, number) for number in content.numbers],
        ),
        ReportTable("Arms", ARM_HEADS, [arm_cells(content, arm) for arm in content.arms]),
    ]


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    cells = [heads, ["---"] * len(heads), *rows]
    return [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in cells]


def _cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")

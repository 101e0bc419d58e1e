"""Count how often the constructed solution of copying recalls a whole string."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from eigensweep.analyses.base import (
    AnalysisMethod,
    Content,
    Findings,
    Folders,
    OneOrMore,
    Options,
)
from eigensweep.models.analysis.solutions import successes
from eigensweep.results import figures
from eigensweep.search_spaces.trial import Strict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_WORK = 2e11
"""Most multiplications of a request: about a quarter of an hour on one core."""


class CopyingSolutionOptions(Options):
    """The options. The paper's own settings are lost; the defaults are ours."""

    planes: Annotated[
        tuple[Annotated[int, Field(ge=1, le=4096)], ...],
        OneOrMore,
        Field(min_length=1, max_length=8),
    ] = Field((32, 128, 512), description="Rotating planes d; the network has 2 d + 1 hidden units")
    alphabet: Annotated[
        tuple[Annotated[int, Field(ge=2, le=10_000)], ...],
        OneOrMore,
        Field(min_length=1, max_length=16),
    ] = Field((8, 64, 512), description="Number of different symbols K")
    symbols: Annotated[
        tuple[Annotated[int, Field(ge=1, le=1000)], ...],
        OneOrMore,
        Field(min_length=1, max_length=32),
    ] = Field((5, 10, 20, 40, 80), description="Number of symbols to recall S")
    delay: int = Field(500, ge=1, le=1_000_000, description="Steps to wait T")
    runs: int = Field(100, ge=1, le=10_000, description="Random solutions for each setting")
    seed: int = Field(0, ge=0, lt=2**31, description="Seed of the random solutions")


class Count(Strict):
    """The successes of one setting."""

    planes: int
    alphabet: int
    symbols: int
    successes: int
    """Random solutions that recalled the whole string."""


class CopyingSolutionContent(Content):
    """The successes of every setting."""

    delay: int
    runs: int
    counts: list[Count]


class CopyingSolution(AnalysisMethod[CopyingSolutionOptions, None, CopyingSolutionContent]):
    """In how many random draws the constructed solution of copying recalls the whole string.

    Source: Henaff, Szlam & LeCun, ICML 2016, figure 1.
    """

    of = "matrices"
    Options = CopyingSolutionOptions

    def check(self, options: CopyingSolutionOptions, subject: None) -> None:
        work = 8.0 * options.runs * sum(options.planes)
        work *= sum(S * (K + 1) for K in options.alphabet for S in options.symbols)
        if work > MOST_WORK:
            raise ValueError(
                f"this needs about {work:.0e} multiplications, more than {MOST_WORK:.0e}: take "
                "fewer runs, planes or symbols"
            )

    def run(
        self, options: CopyingSolutionOptions, subject: None, folders: Folders
    ) -> Findings[CopyingSolutionContent]:
        counts = [
            Count(
                planes=d,
                alphabet=K,
                symbols=S,
                successes=successes(d, K, S, options.delay, options.runs, options.seed),
            )
            for d in options.planes
            for K in options.alphabet
            for S in options.symbols
        ]
        content = CopyingSolutionContent(delay=options.delay, runs=options.runs, counts=counts)
        columns = ("planes", "alphabet", "symbols", "successes")
        rows = ((count.planes, count.alphabet, count.symbols, count.successes) for count in counts)
        return Findings(content, columns, rows)

    def plot(self, content: CopyingSolutionContent) -> Figure:
        counts, runs = content.counts, content.runs
        planes = list(dict.fromkeys(count.planes for count in counts))
        alphabets = list(dict.fromkeys(count.alphabet for count in counts))
        figure, (axes,) = figures.panels(1, len(planes), 3.8, 3.4, sharey=True)
        for panel, d in zip(axes, planes, strict=True):
            for K, colour in zip(alphabets, figures.shades(len(alphabets)), strict=True):
                shown = [count for count in counts if (count.planes, count.alphabet) == (d, K)]
                S = [count.symbols for count in shown]
                successful = [count.successes for count in shown]
                panel.plot(S, successful, marker="o", markersize=4, color=colour, label=f"K = {K}")
            panel.set(title=f"d = {d}, T = {content.delay}", xlabel="symbols to recall S")
            panel.set(xscale="log", ylim=(-0.03 * runs, 1.05 * runs))
            panel.set_xticks(S, [str(s) for s in S], minor=False)
            panel.minorticks_off()
        axes[0].set_ylabel(f"successes in {runs} runs")
        axes[0].legend()
        return figure

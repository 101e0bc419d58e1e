"""States and memory under a triangular matrix: transient norms and Fisher memory curves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field

from eigensweep.analyses.base import (
    AnalysisMethod,
    Content,
    Findings,
    Folders,
    OneOrMore,
    Options,
    six_digits,
)
from eigensweep.models.analysis.fisher_memory import memory_curve
from eigensweep.models.analysis.transient import ensemble, feed_forward, transient
from eigensweep.results import figures
from eigensweep.search_spaces.trial import Strict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_WORK = 2e13
"""Most multiplications of a request: about a quarter of an hour on one core."""

DASHES = ("-", "--", ":", "-.", *((0, (1, 1, 5, k)) for k in range(1, 5)))
"""A line style for each β of a Fisher memory curve; there are at most eight."""

Strengths = Annotated[
    tuple[Annotated[float, Field(ge=-2, le=2)], ...], OneOrMore, Field(min_length=1, max_length=8)
]
Diagonals = Annotated[
    tuple[Annotated[float, Field(gt=-1, lt=1)], ...], OneOrMore, Field(min_length=1, max_length=4)
]


class TransientNormsOptions(Options):
    """The options; the defaults are the paper's."""

    alpha: Strengths = Field((0.95, 1.0, 1.05), description="Entries on the first subdiagonal")
    beta: Strengths = Field((0.0, 0.005), description="Entries on all lower subdiagonals")
    d: Diagonals = Field((0.0,), description="Entries on the diagonal")
    size: int = Field(100, ge=2, le=1000, description="Number of units N")
    steps: int = Field(125, ge=1, le=10_000, description="Time steps without input")
    vectors: int = Field(1000, ge=2, le=10_000, description="Random initial states of length 1")
    seed: int = Field(4, ge=0, lt=2**32, description="Seed of the initial states; 4: the authors'")


class Peak(Strict):
    """The largest mean norm."""

    t: int
    norm: float


class TransientCurve(Strict):
    """Statistics of one matrix over the random initial states, each at t = 0, 1, ..., steps."""

    alpha: float
    beta: float
    d: float
    largest: Peak
    norm: list[float]
    """Mean of ‖h_t‖₂ over the initial states."""
    norm_sd: list[float]
    """Standard deviation of ‖h_t‖₂ over the initial states."""
    unit_sd: list[float]
    """Standard deviation of a unit over the initial states: the mean over the units."""
    unit_sd_sd: list[float]
    """The same: its standard deviation over the units."""


class TransientNormsContent(Content):
    """A curve for each matrix."""

    size: int
    curves: list[TransientCurve]


class TransientNorms(AnalysisMethod[TransientNormsOptions, None, TransientNormsContent]):
    """How a state grows and dies under a triangular matrix: ‖h_t‖ and each unit's spread.

    Source: Kerg et al., NeurIPS 2019, figure 1b.
    """

    of = "matrices"
    Options = TransientNormsOptions

    def check(self, options: TransientNormsOptions, subject: None) -> None:
        curves = len(options.alpha) * len(options.beta) * len(options.d)
        work = float(options.size) ** 2 * options.vectors * options.steps * curves
        if work > MOST_WORK:
            raise ValueError(
                f"this needs about {work:.0e} multiplications, more than {MOST_WORK:.0e}: take "
                "fewer vectors, steps or units"
            )

    def run(
        self, options: TransientNormsOptions, subject: None, folders: Folders
    ) -> Findings[TransientNormsContent]:
        H0 = ensemble(options.size, options.vectors, options.seed)
        curves = []
        for d, alpha, beta in _settings(options):
            Theta = feed_forward(alpha, beta, d, options.size)
            found = transient(Theta, H0, options.steps)
            if not all(bool(torch.isfinite(values).all()) for values in vars(found).values()):
                raise ValueError(
                    f"with alpha={alpha}, beta={beta}, d={d} the state overflows before step "
                    f"{options.steps}; take fewer steps or smaller values"
                )
            peak = int(found.norm.argmax())
            curves.append(
                TransientCurve(
                    alpha=alpha,
                    beta=beta,
                    d=d,
                    largest=Peak(t=peak, norm=found.norm[peak].item()),
                    norm=found.norm.tolist(),
                    norm_sd=found.norm_sd.tolist(),
                    unit_sd=found.unit_sd.tolist(),
                    unit_sd_sd=found.unit_sd_sd.tolist(),
                )
            )
        columns = ("alpha", "beta", "d", "t", "norm", "norm_sd", "unit_sd", "unit_sd_sd")
        rows = (
            (curve.alpha, curve.beta, curve.d, t, *map(six_digits, values))
            for curve in curves
            for t, values in enumerate(
                zip(curve.norm, curve.norm_sd, curve.unit_sd, curve.unit_sd_sd, strict=True)
            )
        )
        return Findings(TransientNormsContent(size=options.size, curves=curves), columns, rows)

    def plot(self, content: TransientNormsContent) -> Figure:
        betas = sorted({curve.beta for curve in content.curves})
        figure, axes = figures.panels(2, len(betas), 4.4, 3.0, sharex=True, sharey="row")
        above, below = axes
        for column, beta in enumerate(betas):
            shown = [curve for curve in content.curves if curve.beta == beta]
            for curve, colour in zip(shown, figures.colours(len(shown)), strict=True):
                label = _label(curve)
                _draw_band(above[column], curve.norm, curve.norm_sd, colour, label)
                _draw_band(below[column], curve.unit_sd, curve.unit_sd_sd, colour, label)
            above[column].set(title=f"‖h_t‖, β = {beta:g}", yscale="log")
            below[column].set(title=f"spread σ of a unit, β = {beta:g}", yscale="log", xlabel="t")
        for row, low, high in ((above, 2.3e-5, 2.3e2), (below, 2.3e-6, 2.3e1)):  # the paper's
            row[0].set_ylim(low, max(high, *(2 * panel.dataLim.y1 for panel in row)))
        for panel in (*above, *below):
            panel.axvline(content.size, color="0.6", linewidth=0.8)
            panel.set_xlim(0, len(content.curves[0].norm) - 1)
        above[0].legend(loc="lower left")
        return figure


class FisherMemoryOptions(Options):
    """The options; the defaults are the paper's."""

    alpha: Strengths = Field((0.95, 1.0, 1.05), description="Entries on the first subdiagonal")
    beta: Strengths = Field((0.0, 0.005), description="Entries on all lower subdiagonals")
    d: Diagonals = Field((0.0, 0.2), description="Entries on the diagonal")
    size: int = Field(100, ge=2, le=400, description="Number of units N; unit 0 has the input")
    steps: int = Field(150, ge=1, le=2000, description="Time steps t of the curve")


class FisherCurve(Strict):
    """The Fisher memory curve of one matrix."""

    alpha: float
    beta: float
    d: float
    total: float
    """The sum of J over all time steps."""
    J: list[float]
    """J(t) at t = 0, 1, ..., steps - 1."""


class FisherMemoryContent(Content):
    """A curve for each matrix."""

    size: int
    curves: list[FisherCurve]


class FisherMemory(AnalysisMethod[FisherMemoryOptions, None, FisherMemoryContent]):
    """Fisher memory curves J(t) of a noisy linear network with a triangular matrix.

    Source: Kerg et al., NeurIPS 2019, figure 1c.
    """

    of = "matrices"
    Options = FisherMemoryOptions

    def run(
        self, options: FisherMemoryOptions, subject: None, folders: Folders
    ) -> Findings[FisherMemoryContent]:
        u = torch.zeros(options.size, dtype=torch.float64)
        u[0] = 1
        curves = []
        for d, alpha, beta in _settings(options):
            Theta = feed_forward(alpha, beta, d, options.size)
            J = memory_curve(Theta, u, options.steps)
            if not bool(torch.isfinite(J).all()):
                raise ValueError(f"with alpha={alpha}, beta={beta}, d={d} the curve overflows")
            total = J.sum().item()
            curves.append(FisherCurve(alpha=alpha, beta=beta, d=d, total=total, J=J.tolist()))
        rows = (
            (curve.alpha, curve.beta, curve.d, t, six_digits(value))
            for curve in curves
            for t, value in enumerate(curve.J)
        )
        content = FisherMemoryContent(size=options.size, curves=curves)
        return Findings(content, ("alpha", "beta", "d", "t", "J"), rows)

    def plot(self, content: FisherMemoryContent) -> Figure:
        diagonals = sorted({curve.d for curve in content.curves})
        betas = sorted({curve.beta for curve in content.curves})
        alphas = list(dict.fromkeys(curve.alpha for curve in content.curves))
        colours = dict(zip(alphas, figures.colours(len(alphas)), strict=True))
        figure, (axes,) = figures.panels(1, len(diagonals), 4.6, 3.6, sharey=True)
        for panel, d in zip(axes, diagonals, strict=True):
            shown = [curve for curve in content.curves if curve.d == d]
            for curve in shown:
                t = [t for t, value in enumerate(curve.J) if value > 0]
                panel.semilogy(
                    t,
                    [curve.J[k] for k in t],
                    color=colours[curve.alpha],
                    linestyle=DASHES[betas.index(curve.beta)],
                    label=f"α = {curve.alpha:g}, β = {curve.beta:g}",
                )
            panel.axvline(content.size, color="0.6", linewidth=0.8)
            panel.set(title=f"Fisher memory, d = {d:g}", xlabel="t", ylim=(5e-3, 1.1))
            panel.set_xlim(0, len(shown[0].J) - 1)
        axes[0].set_ylabel("J(t)")
        axes[-1].legend(fontsize=7)
        return figure


def _settings(
    options: TransientNormsOptions | FisherMemoryOptions,
) -> Iterator[tuple[float, float, float]]:
    for d in options.d:
        for beta in options.beta:
            for alpha in options.alpha:
                yield d, alpha, beta


def _label(curve: TransientCurve) -> str:
    return f"α = {curve.alpha:g}" + (f", d = {curve.d:g}" if curve.d else "")


def _draw_band(
    panel: Axes, mean: Sequence[float], sd: Sequence[float], colour: Any, label: str
) -> None:
    """Draw a line with a band of one standard deviation, as far as the line is above zero."""
    t = [t for t, value in enumerate(mean) if value > 0]
    panel.plot(t, [mean[k] for k in t], color=colour, label=label)
    low = [max(mean[k] - sd[k], mean[k] / 1000) for k in t]
    panel.fill_between(t, low, [mean[k] + sd[k] for k in t], color=colour, alpha=0.18, linewidth=0)

"""What a triangular matrix does to states and to memory: transient norms, Fisher memory curves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field

from eigensweep.models.analysis.fisher_memory import memory_curve
from eigensweep.models.analysis.transient import ensemble, feed_forward, transient
from eigensweep.workers.analyses import figures
from eigensweep.workers.analyses.base import Analysis, Findings, OneOrMore, Options, Place, rounded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_WORK = 2e13
"""Multiplications: about a quarter of an hour on one core."""

Strengths = Annotated[
    tuple[Annotated[float, Field(ge=-2, le=2)], ...], OneOrMore, Field(min_length=1, max_length=8)
]
Diagonals = Annotated[
    tuple[Annotated[float, Field(gt=-1, lt=1)], ...], OneOrMore, Field(min_length=1, max_length=4)
]


class TransientNormsOptions(Options):
    """What may be set; the defaults are the paper's."""

    alpha: Strengths = Field((0.95, 1.0, 1.05), description="On the first subdiagonal")
    beta: Strengths = Field((0.0, 0.005), description="On all lower ones")
    d: Diagonals = Field((0.0,), description="On the diagonal")
    size: int = Field(100, ge=2, le=1000, description="Units N")
    steps: int = Field(125, ge=1, le=10_000, description="Steps without input")
    vectors: int = Field(1000, ge=2, le=10_000, description="Random initial states of length 1")
    seed: int = Field(4, ge=0, lt=2**32, description="Of the initial states; 4: the authors'")


class TransientNorms(Analysis):
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

    def run(self, options: TransientNormsOptions, subject: None, place: Place) -> Findings:
        H0 = ensemble(options.size, options.vectors, options.seed)
        curves: list[dict[str, Any]] = []
        for d, alpha, beta in _settings(options):
            Theta = feed_forward(alpha, beta, d, options.size)
            found = transient(Theta, H0, options.steps)
            numbers = {name: values.tolist() for name, values in vars(found).items()}
            if not all(map(_is_finite, numbers.values())):
                raise ValueError(
                    f"with alpha={alpha}, beta={beta}, d={d} the state overflows before step "
                    f"{options.steps}; take fewer steps or smaller values"
                )
            peak = int(found.norm.argmax())
            largest = {"t": peak, "norm": found.norm[peak].item()}
            curves.append({"alpha": alpha, "beta": beta, "d": d, "largest": largest, **numbers})
        columns = ("alpha", "beta", "d", "t", "norm", "norm_sd", "unit_sd", "unit_sd_sd")
        rows = (
            (c["alpha"], c["beta"], c["d"], t, *(rounded(c[name][t]) for name in columns[4:]))
            for c in curves
            for t in range(options.steps + 1)
        )
        return Findings({"size": options.size, "curves": curves}, columns, rows)

    def plot(self, content: dict[str, Any]) -> Figure:
        betas = sorted({c["beta"] for c in content["curves"]})
        figure, axes = figures.panels(2, len(betas), 4.4, 3.0, sharex=True, sharey="row")
        parts = (("norm", "‖h_t‖"), ("unit_sd", "spread σ of a unit"))
        for row, (name, words) in zip(axes, parts, strict=True):
            for panel, beta in zip(row, betas, strict=True):
                shown = [c for c in content["curves"] if c["beta"] == beta]
                for c, colour in zip(shown, figures.COLOURS * 8, strict=False):
                    _band(panel, c[name], c[f"{name}_sd"], colour, _label(c))
                panel.set(title=f"{words}, β = {beta:g}", yscale="log")
        axes[0][0].set_ylim(2.3e-5, 2.3e2)
        axes[1][0].set_ylim(2.3e-6, 2.3e1)
        for panel in axes[1]:
            panel.set_xlabel("t")
        for panel in (panel for row in axes for panel in row):
            panel.axvline(content["size"], color="0.6", linewidth=0.8)
            panel.set_xlim(0, len(content["curves"][0]["norm"]) - 1)
        axes[0][0].legend(loc="lower left")
        return figure


class FisherMemoryOptions(Options):
    """What may be set; the defaults are the paper's."""

    alpha: Strengths = Field((0.95, 1.0, 1.05), description="On the first subdiagonal")
    beta: Strengths = Field((0.0, 0.005), description="On all lower ones")
    d: Diagonals = Field((0.0, 0.2), description="On the diagonal")
    size: int = Field(100, ge=2, le=400, description="Units N; the input enters the first")
    steps: int = Field(150, ge=1, le=2000, description="Steps t of the curve")


class FisherMemory(Analysis):
    """Fisher memory curves J(t) of a noisy linear network with a triangular matrix.

    Source: Kerg et al., NeurIPS 2019, figure 1c.
    """

    of = "matrices"
    Options = FisherMemoryOptions

    def run(self, options: FisherMemoryOptions, subject: None, place: Place) -> Findings:
        u = torch.zeros(options.size, dtype=torch.float64)
        u[0] = 1
        curves: list[dict[str, Any]] = []
        for d, alpha, beta in _settings(options):
            Theta = feed_forward(alpha, beta, d, options.size)
            J = memory_curve(Theta, u, options.steps)
            if not bool(torch.isfinite(J).all()):
                raise ValueError(f"with alpha={alpha}, beta={beta}, d={d} the curve overflows")
            known = {"alpha": alpha, "beta": beta, "d": d, "total": J.sum().item()}
            curves.append({**known, "J": J.tolist()})
        rows = (
            (c["alpha"], c["beta"], c["d"], t, rounded(value))
            for c in curves
            for t, value in enumerate(c["J"])
        )
        content = {"size": options.size, "curves": curves}
        return Findings(content, ("alpha", "beta", "d", "t", "J"), rows)

    def plot(self, content: dict[str, Any]) -> Figure:
        diagonals = sorted({c["d"] for c in content["curves"]})
        figure, (axes,) = figures.panels(1, len(diagonals), 4.6, 3.6, sharey=True)
        betas = sorted({c["beta"] for c in content["curves"]})
        for panel, d in zip(axes, diagonals, strict=True):
            shown = [c for c in content["curves"] if c["d"] == d]
            alphas = list(dict.fromkeys(c["alpha"] for c in shown))
            for c in shown:
                t = [t for t, value in enumerate(c["J"]) if value > 0]
                panel.semilogy(
                    t,
                    [c["J"][k] for k in t],
                    color=figures.COLOURS[alphas.index(c["alpha"]) % len(figures.COLOURS)],
                    linestyle=("-", "--", ":", "-.")[betas.index(c["beta"]) % 4],
                    label=f"α = {c['alpha']:g}, β = {c['beta']:g}",
                )
            panel.axvline(content["size"], color="0.6", linewidth=0.8)
            panel.set(title=f"Fisher memory, d = {d:g}", xlabel="t", ylim=(5e-3, 1.1))
            panel.set_xlim(0, len(shown[0]["J"]) - 1)
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


def _label(curve: dict[str, Any]) -> str:
    return f"α = {curve['alpha']:g}" + (f", d = {curve['d']:g}" if curve["d"] else "")


def _band(panel: Any, mean: list[float], sd: list[float], colour: str, label: str) -> None:
    """Draw a line within its band, as far as it is above zero."""
    t = [t for t, value in enumerate(mean) if value > 0]
    middle = [mean[k] for k in t]
    panel.plot(t, middle, color=colour, label=label)
    low = [max(mean[k] - sd[k], mean[k] / 1000) for k in t]
    panel.fill_between(t, low, [mean[k] + sd[k] for k in t], color=colour, alpha=0.18, linewidth=0)


def _is_finite(numbers: list[float]) -> bool:
    return all(value - value == 0 for value in numbers)

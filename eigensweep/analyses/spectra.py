"""Eigenvalues and singular values of the recurrent matrix over training."""

from __future__ import annotations

from contextlib import suppress
from math import hypot
from typing import TYPE_CHECKING

import torch
from pydantic import Field

from eigensweep.analyses.base import (
    AnalysisMethod,
    Content,
    Findings,
    Folders,
    Options,
    TrialOptions,
    TrialSubject,
    six_digits,
)
from eigensweep.analyses.weights import (
    NotFiniteError,
    load_network,
    load_snapshot,
    seed_of,
)
from eigensweep.models import MODELS
from eigensweep.results import figures
from eigensweep.search_spaces.trial import Strict, TrialConfig
from eigensweep.store import spectrum_files
from eigensweep.store.checkpoints import Store
from eigensweep.training.evaluation import find_spectra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEAST_SPAN = 0.1
"""Smallest height of an axis of moduli: rounding errors of an orthogonal matrix stay a line."""
MOST_POINTS = 60
"""About so many evaluations are shown; of more, some at equal distances."""


class SpectraOptions(Options):
    """The options of a picture of spectra."""

    replicate: int = Field(0, ge=0, le=999, description="Number of the replicate, from 0")


class MatrixSpectra(Strict):
    """The spectra of one n x n matrix; the outer lists follow `SpectraContent.steps`."""

    eigenvalues: list[list[tuple[float, float]]]
    """Real and imaginary part of each eigenvalue, the largest modulus first."""
    singular_values: list[list[float]]
    """The largest first."""


class SpectraContent(Content):
    """The spectra of the recurrent matrix at several steps of training."""

    over_training: bool
    """Whether they are of evaluations; if not, of the untrained, the best and the last weights."""
    note: str | None
    """What is missing, and how to get it; None if nothing is."""
    steps: list[int]
    """Optimizer steps."""
    matrices: dict[str, MatrixSpectra]
    """`whole` is W; if the state has several parts, each part's own block follows."""


class Spectra(AnalysisMethod[SpectraOptions, TrialSubject, SpectraContent]):
    """Eigenvalues and singular values of the recurrent matrix over training.

    A trial trained with `training.spectra` has kept them at every evaluation. For any other trial
    only those of the untrained, the best and the last weights are shown. If the state has several
    parts, each part's own block of the matrix is shown, too.

    Source: for W of nnRNN Kerg et al., NeurIPS 2019; for the short block Helfrich & Ye, AAAI 2020.
    """

    of = "trial"
    Options = SpectraOptions

    def check(self, options: SpectraOptions, subject: TrialSubject) -> None:
        seed_of(TrialOptions(replicate=options.replicate), subject)
        config = subject.trial_config.resolve()
        if not _has_one_matrix(config):
            raise ValueError(
                f"{config.model.name} has no single square matrix from one state to the next, "
                "so there is no spectrum to show; a gated model has one matrix for each gate"
            )

    def run(
        self, options: SpectraOptions, subject: TrialSubject, folders: Folders
    ) -> Findings[SpectraContent]:
        seed = seed_of(TrialOptions(replicate=options.replicate), subject)
        kept = spectrum_files.read(Store(folders.storage), subject.store_key(seed))
        try:
            last = load_snapshot(subject, seed, folders).step
        except ValueError:
            if not kept:
                raise
            last = subject.step  # its checkpoints were removed, and its spectra were not
        last = min(last, subject.trial_config.resolve().training.steps or last)
        points = [(step, content) for step, content in kept if step <= last]
        over_training, note = bool(points), None
        if not over_training:
            points = self._ends(options, subject, folders)
            note = (
                "the trial kept no spectra, so only the untrained, the best and the last weights "
                "are shown; train with training.spectra=true to see all evaluations"
            )
        elif points[0][0] > 0:
            note = (
                f"there are none before step {points[0][0]:,}: the trial goes on from another one, "
                "which kept none"
            )
        thinned = points[:: max(1, -(-len(points) // MOST_POINTS))]
        points = thinned if thinned[-1] is points[-1] else [*thinned, points[-1]]
        content = SpectraContent(
            over_training=over_training,
            note=note,
            steps=[step for step, _ in points],
            matrices={
                name: MatrixSpectra(
                    eigenvalues=[
                        [(six_digits(a), six_digits(b)) for a, b in spectra[name]["eigenvalues"]]
                        for _, spectra in points
                    ],
                    singular_values=[
                        [six_digits(s) for s in spectra[name]["singular_values"]]
                        for _, spectra in points
                    ],
                )
                for name in points[0][1]
            },
        )
        rows = (
            (name, step, number, *eigenvalue, six_digits(hypot(*eigenvalue)), singular)
            for name, matrix in content.matrices.items()
            for step, eigenvalues, singular_values in zip(
                content.steps, matrix.eigenvalues, matrix.singular_values, strict=True
            )
            for number, (eigenvalue, singular) in enumerate(
                zip(eigenvalues, singular_values, strict=True)
            )
        )
        columns = ("matrix", "step", "place", "real", "imaginary", "modulus", "singular_value")
        return Findings(content, columns, rows)

    def _ends(
        self, options: SpectraOptions, subject: TrialSubject, folders: Folders
    ) -> list[tuple[int, spectrum_files.SpectraJson]]:
        """Return the spectra of the untrained, the best and the last weights, with their steps."""
        found: dict[int, spectrum_files.SpectraJson] = {}
        for weights in ("initial", "best", "last"):
            if weights == "best" and subject.value is None:
                continue
            chosen = TrialOptions(weights=weights, replicate=options.replicate)
            with suppress(NotFiniteError):  # the last weights of a diverged trial
                network = load_network(chosen, subject, folders)
                found[network.step] = find_spectra(network.model)
        return sorted(found.items())

    def plot(self, content: SpectraContent) -> Figure:
        steps, matrices = content.steps, content.matrices
        figure, axes = figures.panels(len(matrices), 3, 4.0, 3.4)
        colours = figures.shades(len(steps))
        for row, (name, matrix) in zip(axes, matrices.items(), strict=True):
            plane, moduli, singular = row
            what = "W" if name == "whole" else f"W, {name} block"
            _draw_unit_circle(plane)
            for values, colour in zip(matrix.eigenvalues, colours, strict=True):
                real, imaginary = zip(*values, strict=True)
                plane.scatter(real, imaginary, s=9, color=colour, alpha=0.7, linewidth=0)
            plane.set(title=f"eigenvalues of {what}", xlabel="real", ylabel="imaginary")
            plane.set_aspect("equal", adjustable="datalim")
            radii = [[hypot(*z) for z in values] for values in matrix.eigenvalues]
            for panel, numbers, title in (
                (moduli, radii, "moduli of the eigenvalues"),
                (singular, matrix.singular_values, "singular values"),
            ):
                marker = "o" if len(steps) < 5 else None
                panel.axhline(1.0, color="0.6", linewidth=0.8, linestyle="--")
                panel.plot(
                    steps, numbers, color=figures.COLOURS[0], alpha=0.45, linewidth=0.8,
                    marker=marker, markersize=3,
                )  # fmt: skip
                panel.set(title=title, xlabel="optimizer steps")
                low, high = panel.get_ylim()
                if high - low < LEAST_SPAN:
                    panel.set_ylim(low - LEAST_SPAN / 2, high + LEAST_SPAN / 2)
        key = f"dark to light: step {steps[0]:,} to {steps[-1]:,}"
        axes[0][0].text(0.02, 0.02, key, transform=axes[0][0].transAxes, fontsize=7, color="0.3")
        if content.note:
            figure.supxlabel(content.note, fontsize=7, color="0.3")
        return figure


def _draw_unit_circle(panel: Axes) -> None:
    from matplotlib.patches import Circle

    panel.add_patch(Circle((0, 0), 1.0, fill=False, color="0.6", linewidth=0.8))


def _has_one_matrix(config: TrialConfig) -> bool:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model = MODELS[config.model.name](config.model, config.task.shapes)
        return model.recurrent_matrix().shape == (model.hidden_size,) * 2

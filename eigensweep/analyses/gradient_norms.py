"""Heat maps of ‖∂h_τ / ∂x_t‖ of a trained network."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field
from torch import Tensor

from eigensweep.analyses.base import (
    AnalysisMethod,
    Content,
    Findings,
    Folders,
    TrialOptions,
    TrialSubject,
    six_digits,
)
from eigensweep.analyses.weights import load_network, seed_of
from eigensweep.models.analysis.gradient_norms import decay_bound, gradient_norms
from eigensweep.models.base import Model
from eigensweep.models.network import RecurrentModel
from eigensweep.results import figures
from eigensweep.search_spaces.labels import say_count
from eigensweep.search_spaces.trial import Strict, TrialConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_WORK = 2e13
"""Most multiplications of a request: about an hour on one core."""
LONGEST = 1000
"""Most steps of a map: a million entries for each part of the state."""
SLOPE_AT_MOST_ONE = ("relu", "modrelu", "tanh", "leaky_relu", "identity")
"""Activations that Theorem 3.1 covers."""


class GradientNormsOptions(TrialOptions):
    """The options of a map of gradient norms."""

    norm: Literal["spectral", "frobenius"] = Field(
        "spectral", description="Norm of the Jacobian of each sequence"
    )
    sequences: int = Field(
        50,
        ge=1,
        le=10_000,
        description="Most sequences of the batch that are used; their norms are averaged",
    )
    sequence: int | None = Field(
        None,
        ge=0,
        description="Only this sequence of the batch, from 0; default: their mean",
    )
    length: int | None = Field(
        None, ge=2, le=LONGEST, description="Use only so many first steps; default: all"
    )


class TheoremCheck(Strict):
    """Theorem 3.1 for one part of the state: ‖∂h_τ / ∂x_t‖₂ <= ‖W‖₂^(τ - t) ‖U‖₂."""

    recurrent_norm: float
    """‖W‖₂ of the part's own block."""
    input_norm: float
    """‖U‖₂ of the part's rows."""
    holds: bool
    """Whether every norm of the map is within the bound."""


class GradientNormsContent(Content):
    """The numbers of the maps; each dict has one entry for each part of the state."""

    step: int
    """Optimizer steps before these weights."""
    length: int
    """Time steps τ of the maps."""
    sequences: int
    """Sequences that the norms are averaged over."""
    norm: Literal["spectral", "frobenius"]
    norms: dict[str, list[list[float]]]
    """(τ, τ): row τ, column t; zero above the diagonal."""
    by_delay: dict[str, list[float]]
    """(τ,): the mean norm at each delay τ - t."""
    theorem_3_1: dict[str, TheoremCheck]
    """Only parts that no other part feeds; empty if the theorem does not cover the model."""


class GradientNorms(AnalysisMethod[GradientNormsOptions, TrialSubject, GradientNormsContent]):
    """How strongly each state depends on each input, for each part of the state: heat maps.

    The input is the batch that training would use next. After five whole epochs, as in the paper,
    that is the first batch of the sixth.

    Source: Helfrich & Ye, AAAI 2020, section 6.1, figures 4 and 5.
    """

    of = "trial"
    Options = GradientNormsOptions

    def check(self, options: GradientNormsOptions, subject: TrialSubject) -> None:
        seed_of(options, subject)
        config = subject.trial_config.resolve()
        length = _length(options, config)
        if length > LONGEST:
            raise ValueError(
                f"a map of {length} x {length} steps is too large; set 'length' to at most "
                f"{LONGEST}"
            )
        batch = min(options.sequences, config.task.batch_size)
        if options.sequence is not None:
            if options.sequence >= config.task.batch_size:
                raise ValueError(
                    f"'sequence' is {options.sequence}; the batch has "
                    f"{config.task.batch_size} sequences, counted from 0"
                )
            batch = 1
        n, m = config.model.hidden_size or 1, config.task.shapes.input_size
        work = float(length) ** 2 * m * batch * n**2
        if work > MOST_WORK:
            raise ValueError(
                f"this needs about {work:.0e} multiplications, more than {MOST_WORK:.0e}: set "
                f"'sequences' below {batch} or 'length' below {length}"
            )

    def run(
        self, options: GradientNormsOptions, subject: TrialSubject, folders: Folders
    ) -> Findings[GradientNormsContent]:
        network = load_network(options, subject, folders)
        if options.sequence is None:
            x = network.next_input(options.sequences, options.length)
        else:
            x = network.next_sequence(options.sequence, options.length)
        every = gradient_norms(network.model, x, options.norm)
        maps = {name: norms.mean(-1) for name, norms in every.items()}
        content = GradientNormsContent(
            step=network.step,
            length=len(x),
            sequences=x.shape[1],
            norm=options.norm,
            norms={name: _rows(norms) for name, norms in maps.items()},
            by_delay={name: _by_delay(norms) for name, norms in maps.items()},
            theorem_3_1=_theorem(network.model, every) if options.norm == "spectral" else {},
        )
        rows = (
            (name, tau, t, six_digits(norms[tau, t].item()))
            for name, norms in maps.items()
            for tau in range(len(x))
            for t in range(tau + 1)
        )
        return Findings(content, ("part", "tau", "t", "norm"), rows)

    def plot(self, content: GradientNormsContent) -> Figure:
        names = list(content.norms)
        figure, (axes,) = figures.panels(1, len(names) + 1, 4.4, 3.8)
        for name, panel in zip(names, axes, strict=False):
            norms = torch.tensor(content.norms[name])
            hidden = torch.ones_like(norms).triu(1).bool()
            panel.grid(False)
            image = panel.imshow(
                norms.masked_fill(hidden, float("nan")).numpy(),
                cmap="viridis",
                vmin=0,
                interpolation="nearest",
                aspect="equal",
            )
            panel.set(
                title=f"{_words(name)}: ‖∂h_τ / ∂x_t‖", xlabel="t (input)", ylabel="τ (state)"
            )
            figure.colorbar(image, ax=panel, shrink=0.85)
        for colour, name in zip(figures.colours(len(names)), names, strict=True):
            axes[-1].plot(content.by_delay[name], color=colour, label=_words(name))
        if figures.is_wide([*chain.from_iterable(content.by_delay.values())]):
            axes[-1].set_yscale("log")
        axes[-1].set(
            title=f"mean over t, after {say_count(content.step, 'step')}",
            xlabel="τ - t",
            ylabel="norm",
        )
        axes[-1].legend()
        return figure


def _length(options: GradientNormsOptions, config: TrialConfig) -> int:
    whole = config.task.sequence_length
    return whole if options.length is None else min(options.length, whole)


def _rows(norms: Tensor) -> list[list[float]]:
    return [[six_digits(value) for value in row] for row in norms.tolist()]


def _by_delay(norms: Tensor) -> list[float]:
    """Return the mean norm at each delay τ - t."""
    return [six_digits(torch.diagonal(norms, -k).mean().item()) for k in range(len(norms))]


def _theorem(model: Model, every: dict[str, Tensor]) -> dict[str, TheoremCheck]:
    """Return for each part that no other part feeds whether the theorem's bound holds."""
    if (
        not isinstance(model, RecurrentModel)
        or type(model).states is not RecurrentModel.states
        or model.activation not in SLOPE_AT_MOST_ONE
    ):
        return {}
    checks = {}
    with torch.no_grad():
        W, U = model.recurrent_matrix(), model.input_matrix()
        for name, block in model.state_blocks().items():
            fed = W[block].clone()
            fed[:, block] = 0
            if bool(fed.any()):
                continue
            norms, inner = every[name], W[block, block]
            bound = decay_bound(inner, U[block], len(norms)).unsqueeze(-1)
            checks[name] = TheoremCheck(
                recurrent_norm=six_digits(torch.linalg.matrix_norm(inner, 2).item()),
                input_norm=six_digits(torch.linalg.matrix_norm(U[block], 2).item()),
                holds=bool((norms <= bound * (1 + 1e-9)).all()),
            )
    return checks


def _words(name: str) -> str:
    return {"state": "state", "long": "long state", "short": "short state"}.get(name, name)

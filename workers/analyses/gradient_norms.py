"""The heat maps of ‖∂h_τ / ∂x_t‖ of a trained network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from eigensweep.models.analysis.gradient_norms import decay_bound, gradient_norms
from eigensweep.models.base import Model
from eigensweep.models.network import RecurrentModel
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.workers.analyses import figures
from eigensweep.workers.analyses.base import (
    Analysis,
    Findings,
    Place,
    TrialOptions,
    TrialSubject,
    rounded,
)
from eigensweep.workers.analyses.weights import seed_of, trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_WORK = 2e13
"""Multiplications: about an hour on one core."""
LONGEST = 1000
"""Steps of a map; a million entries for each part of the state."""
SLOPE_AT_MOST_ONE = ("relu", "modrelu", "tanh", "leaky_relu", "identity")


class GradientNormsOptions(TrialOptions):
    """What may be set."""

    norm: Literal["spectral", "frobenius"] = Field(
        "spectral", description="Norm of the Jacobian of each sequence"
    )
    sequences: int = Field(
        50, ge=1, le=10_000, description="Sequences of the batch, at most; their norms are averaged"
    )
    sequence: int | None = Field(
        None, ge=0, description="Only this sequence of the batch, from 0; default: the mean"
    )
    length: int | None = Field(
        None, ge=2, le=LONGEST, description="First steps of the sequence; default: all"
    )


class GradientNorms(Analysis):
    """How strongly each state depends on each input, for each part of the state: heat maps.

    The input is the batch that training would meet next: after five whole epochs that is the
    first of the sixth, as in the paper.

    Source: Helfrich & Ye, AAAI 2020, section 6.1, figures 4 and 5.
    """

    of = "trial"
    Options = GradientNormsOptions

    def check(self, options: GradientNormsOptions, subject: TrialSubject) -> None:
        seed_of(options, subject)
        config = TrialConfig.from_dict(subject.config).resolved()
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

    def run(self, options: GradientNormsOptions, subject: TrialSubject, place: Place) -> Findings:
        found = trained(options, subject, place)
        one = options.sequence
        x = found.next_input(options.sequences if one is None else one + 1, options.length)
        if one is not None:
            x = x[:, one : one + 1]
        every = gradient_norms(found.model, x, options.norm)
        maps = {name: norms.mean(-1) for name, norms in every.items()}
        content: dict[str, Any] = {
            "step": found.step,
            "length": len(x),
            "sequences": x.shape[1],
            "norm": options.norm,
            "norms": {name: _rows(norms) for name, norms in maps.items()},
            "by_delay": {name: _by_delay(norms) for name, norms in maps.items()},
            "theorem_3_1": _theorem(found.model, every) if options.norm == "spectral" else {},
        }
        rows = (
            (name, tau, t, rounded(norms[tau, t].item()))
            for name, norms in maps.items()
            for tau in range(len(x))
            for t in range(tau + 1)
        )
        return Findings(content, ("part", "tau", "t", "norm"), rows)

    def plot(self, content: dict[str, Any]) -> Figure:
        names = list(content["norms"])
        figure, (axes,) = figures.panels(1, len(names) + 1, 4.4, 3.8)
        for name, panel in zip(names, axes, strict=False):
            norms = torch.tensor(content["norms"][name])
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
        for colour, name in zip(figures.COLOURS, names, strict=False):
            axes[-1].semilogy(content["by_delay"][name], color=colour, label=_words(name))
        axes[-1].set(
            title=f"mean over t, after {content['step']:,} steps", xlabel="τ - t", ylabel="norm"
        )
        axes[-1].legend()
        return figure


def _length(options: GradientNormsOptions, config: TrialConfig) -> int:
    whole = config.task.sequence_length
    return whole if options.length is None else min(options.length, whole)


def _rows(norms: Tensor) -> list[list[float]]:
    return [[rounded(value) for value in row] for row in norms.tolist()]


def _by_delay(norms: Tensor) -> list[float]:
    """Return the mean norm at each delay τ - t."""
    return [rounded(torch.diagonal(norms, -k).mean().item()) for k in range(len(norms))]


def _theorem(model: Model, every: dict[str, Tensor]) -> dict[str, Any]:
    """Return for each part that no other part feeds whether the theorem's bound was kept."""
    if (
        not isinstance(model, RecurrentModel)
        or type(model).states is not RecurrentModel.states
        or model.activation not in SLOPE_AT_MOST_ONE
    ):
        return {}
    told = {}
    with torch.no_grad():
        W, U = model.recurrent_matrix(), model.input_matrix()
        for name, block in model.state_blocks().items():
            fed = W[block].clone()
            fed[:, block] = 0
            if bool(fed.any()):
                continue
            norms, inner = every[name], W[block, block]
            bound = decay_bound(inner, U[block], len(norms)).unsqueeze(-1)
            told[name] = {
                "recurrent_norm": rounded(torch.linalg.matrix_norm(inner, 2).item()),
                "input_norm": rounded(torch.linalg.matrix_norm(U[block], 2).item()),
                "holds": bool((norms <= bound * (1 + 1e-9)).all()),
            }
    return told


def _words(name: str) -> str:
    return {"state": "state", "long": "long state", "short": "short state"}.get(name, name)

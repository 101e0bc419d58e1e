"""The hidden units of a trained network over the steps of one sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from eigensweep.models.analysis.hidden_traces import hidden_trace, mean_between, movement
from eigensweep.results import figures
from eigensweep.search_spaces.labels import say_count
from eigensweep.tasks.base import Shapes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONGEST = 5000
"""Most time steps of a sequence."""
MOST_LINES = 8
"""So many units are drawn as lines: those that move most."""


class HiddenStatesOptions(TrialOptions):
    """The options of a picture of hidden states."""

    sequence: int = Field(0, ge=0, description="Number of the sequence in the batch, from 0")
    length: int | None = Field(
        None, ge=2, le=LONGEST, description="Use only so many first steps; default: all"
    )


class HiddenStatesContent(Content):
    """The states at each time step t, and how far they move."""

    step: int
    """Optimizer steps before these weights."""
    marks: list[int]
    """The marked time steps of the sequence."""
    states: list[list[float]]
    """(τ, n): h_t, for a complex unit its real part."""
    movement: list[float]
    """(τ,): ‖h_t - h_{t-1}‖₂."""
    movement_between_marks: list[float]
    """Mean movement before the first mark, between marks, and after the last one."""


class HiddenStates(AnalysisMethod[HiddenStatesOptions, TrialSubject, HiddenStatesContent]):
    """Each unit of the hidden state over the steps of one sequence, with the marked steps.

    The sequence is from the batch that training would use next. The marked steps are those of the
    two values to add (adding), or that of the marker (copying, variable copying and denoise).

    Source: Henaff, Szlam & LeCun, ICML 2016, figure 5.
    """

    of = "trial"
    Options = HiddenStatesOptions

    def check(self, options: HiddenStatesOptions, subject: TrialSubject) -> None:
        seed_of(options, subject)
        task = subject.trial_config.task
        if options.sequence >= task.batch_size:
            raise ValueError(
                f"'sequence' is {options.sequence}; the batch has {task.batch_size} "
                "sequences, counted from 0"
            )
        if task.sequence_length > LONGEST and options.length is None:
            raise ValueError(
                f"a sequence has {task.sequence_length} steps; set 'length' to at most {LONGEST}"
            )

    def run(
        self, options: HiddenStatesOptions, subject: TrialSubject, folders: Folders
    ) -> Findings[HiddenStatesContent]:
        network = load_network(options, subject, folders)
        x = network.next_sequence(options.sequence, options.length)[:, 0]
        x = x.double() if x.is_floating_point() else x
        h = hidden_trace(network.model, x)
        marks = marked_steps(x, network.task.config.shapes)
        moves = movement(h)
        content = HiddenStatesContent(
            step=network.step,
            marks=marks,
            states=[[six_digits(value) for value in row] for row in h.tolist()],
            movement=[six_digits(value) for value in moves.tolist()],
            movement_between_marks=[six_digits(value) for value in mean_between(moves, marks)],
        )
        columns = ("t", "marked", *(f"h{unit}" for unit in range(h.shape[1])))
        rows = ((t, int(t in marks), *values) for t, values in enumerate(content.states))
        return Findings(content, columns, rows)

    def plot(self, content: HiddenStatesContent) -> Figure:
        h = torch.tensor(content.states)
        figure, ((image,), (lines,)) = figures.panels(2, 1, 8.0, 2.7, sharex=True)
        limit = float(h.abs().max()) or 1.0
        image.grid(False)
        drawn = image.imshow(
            h.T.numpy(),
            cmap="RdBu_r",
            vmin=-limit,
            vmax=limit,
            aspect="auto",
            interpolation="nearest",
        )
        image.set(title=f"hidden states after {say_count(content.step, 'step')}", ylabel="unit")
        figure.colorbar(drawn, ax=[image, lines], shrink=0.6, label="h_t")
        travelled = torch.diff(h, dim=0).abs().sum(0)
        chosen = travelled.argsort(descending=True)[:MOST_LINES].tolist()
        for unit, colour in zip(chosen, figures.shades(len(chosen)), strict=True):
            lines.plot(h[:, unit].numpy(), color=colour, linewidth=0.9, label=f"unit {unit}")
        lines.set(title="the units that move most", xlabel="t", ylabel="h_t")
        lines.legend(ncols=4, fontsize=7, loc="upper left", frameon=True, framealpha=0.8)
        for panel in (image, lines):
            for mark in content.marks:
                panel.axvline(mark, color="black", linestyle="--", linewidth=1.0)
        return figure


def marked_steps(x: Tensor, shapes: Shapes) -> list[int]:
    """Return the marked time steps of a sequence x, (τ,) or (τ, m); none if its task marks nothing.

    In a sequence of values a step is marked by a 1 in a second feature of zeros and ones. In a
    sequence of symbols the marker is the only symbol that is never a target.
    """
    if shapes.input_kind == "values":
        if shapes.input_size != 2 or not bool(((x[:, 1] == 0) | (x[:, 1] == 1)).all()):
            return []
        return x[:, 1].nonzero().flatten().tolist()
    if shapes.input_size != shapes.output_size + 1:
        return []
    return (x == shapes.input_size - 1).nonzero().flatten().tolist()

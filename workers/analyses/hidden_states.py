"""What the units of a trained network do while one sequence passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from pydantic import Field
from torch import Tensor

from eigensweep.models.analysis.hidden_traces import between, hidden_trace, movement
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.tasks.base import Shapes
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

LONGEST = 5000
MOST_LINES = 8
"""Units drawn as lines: those that move most."""


class HiddenStatesOptions(TrialOptions):
    """What may be set."""

    sequence: int = Field(0, ge=0, description="Which sequence of the batch, from 0")
    length: int | None = Field(
        None, ge=2, le=LONGEST, description="First steps of the sequence; default: all"
    )


class HiddenStates(Analysis):
    """What each unit of the hidden state does while one sequence passes, with its marked steps.

    The sequence is from the batch that training would meet next. On adding the marked steps are
    those of the two values that count; on copying and its kin that of the marker.

    Source: Henaff, Szlam & LeCun, ICML 2016, figure 5.
    """

    of = "trial"
    Options = HiddenStatesOptions

    def check(self, options: HiddenStatesOptions, subject: TrialSubject) -> None:
        seed_of(options, subject)
        task = TrialConfig.from_dict(subject.config).task
        if options.sequence >= task.batch_size:
            raise ValueError(
                f"'sequence' is {options.sequence}; the batch has {task.batch_size} "
                "sequences, counted from 0"
            )
        if task.sequence_length > LONGEST and options.length is None:
            raise ValueError(
                f"a sequence has {task.sequence_length} steps; set 'length' to at most {LONGEST}"
            )

    def run(self, options: HiddenStatesOptions, subject: TrialSubject, place: Place) -> Findings:
        found = trained(options, subject, place)
        x = found.next_input(options.sequence + 1, options.length)[:, options.sequence]
        x = x.double() if x.is_floating_point() else x
        h = hidden_trace(found.model, x)
        marks = marked_steps(x, found.task.config.shapes)
        moves = movement(h)
        content: dict[str, Any] = {
            "step": found.step,
            "marks": marks,
            "states": [[rounded(value) for value in row] for row in h.tolist()],
            "movement": [rounded(value) for value in moves.tolist()],
            "movement_between_marks": [rounded(value) for value in between(moves, marks)],
        }
        columns = ("t", "marked", *(f"h{unit}" for unit in range(h.shape[1])))
        rows = ((t, int(t in marks), *values) for t, values in enumerate(content["states"]))
        return Findings(content, columns, rows)

    def plot(self, content: dict[str, Any]) -> Figure:
        h = torch.tensor(content["states"])
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
        image.set(title=f"hidden states after {content['step']:,} steps", ylabel="unit")
        figure.colorbar(drawn, ax=[image, lines], shrink=0.6, label="h_t")
        travelled = torch.diff(h, dim=0).abs().sum(0)
        chosen = travelled.argsort(descending=True)[:MOST_LINES].tolist()
        for unit, colour in zip(chosen, figures.shades(len(chosen)), strict=True):
            lines.plot(h[:, unit].numpy(), color=colour, linewidth=0.9, label=f"unit {unit}")
        lines.set(title="the units that move most", xlabel="t", ylabel="h_t")
        lines.legend(ncols=4, fontsize=7, loc="upper left", frameon=True, framealpha=0.8)
        for panel in (image, lines):
            for mark in content["marks"]:
                panel.axvline(mark, color="black", linestyle="--", linewidth=1.0)
        return figure


def marked_steps(x: Tensor, shapes: Shapes) -> list[int]:
    """Return the steps that a sequence marks for its reader; none where a task has no such thing.

    Among values a second feature of zeros and ones marks; among symbols one that no target ever is.
    """
    if shapes.input_kind == "values":
        if shapes.input_size != 2 or not bool(((x[:, 1] == 0) | (x[:, 1] == 1)).all()):
            return []
        return x[:, 1].nonzero().flatten().tolist()
    if shapes.input_size != shapes.output_size + 1:
        return []
    return (x == shapes.input_size - 1).nonzero().flatten().tolist()

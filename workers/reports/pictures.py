"""The picture of a report: the curves of each experiment, the baseline, the paper's points."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, get_type_hints

from pydantic import JsonValue

from eigensweep.workers.analyses import ANALYSES
from eigensweep.workers.reports.report import Curves, ReportContent
from eigensweep.workers.shared import figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 2
LINE_LENGTH = 80
"""Characters that find room below a panel."""


def save(content: ReportContent, *paths: Path) -> None:
    """Draw the curves of a report and write them to each path, in the format of its suffix."""
    figures.save(_draw, content, *paths)


def draw_analysis(content: Mapping[str, JsonValue], path: Path) -> None:
    """Draw the picture of an analysis from what its `result.json` holds."""
    analysis = ANALYSES[str(content["analysis"])]
    kind = get_type_hints(type(analysis).plot, localns={"Figure": object})["content"]
    numbers = {name: value for name, value in content.items() if name in kind.model_fields}
    figures.save(analysis.plot, kind.model_validate_json(json.dumps(numbers)), path)


def _draw(content: ReportContent) -> Figure:
    shown = [curves for curves in content.curves if curves.lines]
    if not shown:
        figure, ((panel,),) = figures.panels(1, 1, 6.0, 1.6)
        panel.axis("off")
        panel.text(0, 0.5, "No curve was trained for this figure.")
        return figure
    columns = min(COLUMNS, len(shown))
    figure, rows = figures.panels(-(-len(shown) // columns), columns, 6.0 if columns == 1 else 5.0)
    panels = [panel for row in rows for panel in row]
    for panel, curves in zip(panels, shown, strict=False):
        _draw_curves(panel, curves)
    for panel in panels[len(shown) :]:
        panel.axis("off")
    return figure


def _draw_curves(panel: Axes, curves: Curves) -> None:
    colours = dict(
        zip([line.arm for line in curves.lines], figures.colours(len(curves.lines)), strict=True)
    )
    lines = [
        figures.Line(each.arm, each.step, each.mean, each.low, each.high)
        if each.seeds > 1
        else figures.Line(each.arm, each.step, each.mean)
        for each in curves.lines
    ]
    figures.draw_lines(panel, lines, curves.baseline)
    for number, point in enumerate(curves.paper):
        panel.plot(
            point.step,
            point.value,
            marker="x",
            markersize=7,
            linestyle="none",
            color=colours.get(point.arm, "0.4"),
            label="paper, read off" if number == 0 else None,
        )
    unit = f", {curves.unit}" if curves.unit else ""
    if curves.left_out is not None:
        panel.set_xlabel("\n".join([panel.get_xlabel(), *wrap(curves.left_out, LINE_LENGTH)]))
    panel.set_title(curves.title.replace("$", r"\$"))
    panel.set_ylabel(f"{curves.metric}{unit}")
    panel.legend(fontsize=7)

"""The picture of a report: the curves of each experiment, the baseline, the paper's points."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import JsonValue

from eigensweep.analyses import ANALYSES
from eigensweep.reports.report import (
    ArmFound,
    ExperimentCurves,
    NumberFound,
    ReadOff,
    ReportContent,
)
from eigensweep.reports.verdicts import show
from eigensweep.results import figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 2
LINE_LENGTH = 80
"""Characters that find room below a panel."""
ROOM_ABOVE = 10.0
"""How far above start and baseline an axis goes: spikes beyond that would hide the rest."""


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
    if content.picture == "values":
        return _draw_values(content)
    if content.picture == "sizes":
        return _draw_sizes(content)
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


def _draw_curves(panel: Axes, curves: ExperimentCurves) -> None:
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
    words = [] if curves.left_out is None else [curves.left_out]
    if (cut := _limit(panel, curves)) is not None:
        words.append(f"The axis ends at {show(cut)}; values go to {show(_largest(curves))}.")
    _draw_points(panel, curves.paper, colours)
    unit = f", {curves.unit}" if curves.unit else ""
    if words:
        panel.set_xlabel("\n".join([panel.get_xlabel(), *wrap(" ".join(words), LINE_LENGTH)]))
    panel.set_title(curves.title.replace("$", r"\$"))
    panel.set_ylabel(f"{curves.metric}{unit}")
    panel.legend(fontsize=7)


def _largest(curves: ExperimentCurves) -> float:
    return max(value for line in curves.lines for value in (*line.mean, *line.high))


def _limit(panel: Axes, curves: ExperimentCurves) -> float | None:
    """End the axis above start and baseline; return where, if that cuts a spike off."""
    starts = [line.mean[0] for line in curves.lines]
    top = ROOM_ABOVE * max([*starts, curves.baseline or 0.0])
    if top <= 0 or _largest(curves) <= top:
        return None
    panel.set_ylim(top=top)
    return top


def _draw_points(panel: Axes, points: Sequence[ReadOff], colours: Mapping[str, Any]) -> None:
    """Draw the paper's points; an arrow at the edge stands for a point outside the axis.

    They stretch neither axis, so later steps than those of our curves have no place.
    """
    across, low, high = panel.get_xlim(), *panel.get_ylim()
    points = [point for point in points if across[0] <= point.step <= across[1]]
    inside = [point for point in points if low <= point.value <= high]
    below = [point for point in points if point.value < low]
    above = [point for point in points if point.value > high]
    for label, shown, marker, at in (
        ("paper, read off", inside, "x", None),
        ("paper, read off: lower", below, "v", low),
        ("paper, read off: higher", above, "^", high),
    ):
        for number, point in enumerate(shown):
            panel.plot(
                point.step,
                point.value if at is None else at,
                marker=marker,
                markersize=7,
                linestyle="none",
                clip_on=False,
                color=colours.get(point.arm, "0.4"),
                label=label if number == 0 else None,
            )
    panel.set_xlim(across)
    panel.set_ylim(low, high)


def _draw_values(content: ReportContent) -> Figure:
    """Draw the measured numbers of each arm with their intervals, beside the paper's."""
    labels = list(dict.fromkeys(number.experiment for number in content.numbers))
    figure, (panels,) = figures.panels(1, max(1, len(labels)), 4.6, 2.8)
    for panel, label in zip(panels, labels, strict=False):
        numbers = [each for each in content.numbers if each.experiment == label]
        for row, each in enumerate(numbers):
            _draw_number(panel, each, row, is_first=row == 0, across=False)
        panel.set_yticks(range(len(numbers)), [each.arm for each in numbers])
        panel.set_ylim(len(numbers) - 0.5, -0.5)
        panel.set_xlim(left=0)
        panel.set_xlabel(numbers[0].metric.replace("_", " "))
        panel.set_title(label.replace("_", " "))
        panel.legend(fontsize=7)
    return figure


def _draw_sizes(content: ReportContent) -> Figure:
    """Draw the numbers over the count of parameters, a panel for each group of experiments."""
    sizes = {(arm.experiment, arm.arm): arm for arm in content.arms}
    groups: dict[str, list[tuple[float, NumberFound]]] = {}
    for each in content.numbers:
        name, _, words = each.experiment.rpartition("_")
        size = _count(sizes.get((each.experiment, each.arm)), words)
        if size is not None:
            groups.setdefault(name or each.experiment, []).append((size, each))
    figure, (panels,) = figures.panels(1, max(1, len(groups)), 4.6, 3.2)
    for panel, (name, shown) in zip(panels, groups.items(), strict=False):
        for number, (size, each) in enumerate(sorted(shown, key=lambda pair: pair[0])):
            _draw_number(panel, each, size, is_first=number == 0, across=True)
        panel.set_xscale("log")
        panel.set_xlabel("parameters")
        panel.set_ylabel(shown[0][1].metric)
        panel.set_title(name.replace("_", " "))
        panel.legend(fontsize=7)
    return figure


def _count(arm: ArmFound | None, words: str) -> float | None:
    """Return the parameters of an arm; where it was not trained, those in its name."""
    if arm is not None and arm.parameters is not None:
        return float(arm.parameters)
    return 1000.0 * float(words[:-1]) if words[:-1].isdigit() and words.endswith("k") else None


def _draw_number(
    panel: Axes, number: NumberFound, place: float, *, is_first: bool, across: bool
) -> None:
    """Draw a measured number with its interval, and the paper's with its spread.

    They lie at a `place` on the axis of arms or sizes, which goes `across` or down.
    """
    ours, theirs = figures.COLOURS[0], figures.COLOURS[1]
    found = number.measured
    if found is not None:
        low, high = (found.mean if end is None else end for end in (found.low, found.high))
        error = [[found.mean - low], [high - found.mean]]
        label = "ours, 95 % interval" if is_first else None
        _bar(panel, found.mean, place, error, across, fmt="o", color=ours, label=label)
    spread = None if number.spread is None else [[number.spread], [number.spread]]
    label = "paper, with its ±" if is_first and spread else "paper" if is_first else None
    _bar(panel, number.paper, place, spread, across, fmt="x", color=theirs, label=label)


def _bar(panel: Axes, value: float, place: float, error: object, across: bool, **look: Any) -> None:
    x, y = (place, value) if across else (value, place)
    errors: dict[str, Any] = {"yerr" if across else "xerr": error}
    panel.errorbar(x, y, capsize=3, **errors, **look)

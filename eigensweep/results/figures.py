"""The look of the pictures. Matplotlib is imported when one is drawn, and `pyplot` never."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ContentT = TypeVar("ContentT")

STYLE: Final[Any] = {
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.9",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "svg.hashsalt": "eigensweep",  # the same numbers give the same file
}

COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Colour-blind readers can tell them apart, too. Source: Okabe & Ito."""


WIDE = 20.0
"""Values whose largest is so many times the smallest above 0 have a logarithmic axis."""


@dataclass(frozen=True)
class Line:
    """A learning curve to draw."""

    label: str
    steps: Sequence[float]
    values: Sequence[float]
    low: Sequence[float | None] = ()
    """Lower edge of a band around it; empty for none. None is a step without one."""
    high: Sequence[float | None] = ()
    """Upper edge of the same."""


def panels(
    rows: int, columns: int, width: float = 4.2, height: float = 3.4, **options: Any
) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure of `rows` by `columns` panels; `width` and `height` of each in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, [list(row) for row in axes]


def colours(count: int) -> Sequence[Any]:
    """Return `count` different colours, for things that have no order.

    >>> len(set(colours(7))), len(set(colours(30)))
    (7, 30)
    """
    from matplotlib import colormaps

    if count <= len(COLOURS):
        return COLOURS[:count]
    return [colormaps["turbo"](k / (count - 1)) for k in range(count)]


def shades(count: int) -> Sequence[Any]:
    """Return `count` colours from dark to light, for things that have an order."""
    from matplotlib import colormaps

    return [colormaps["viridis"](0.9 * k / max(1, count - 1)) for k in range(count)]


def is_wide(values: Sequence[float]) -> bool:
    """Return whether a logarithmic axis shows numbers better: none is negative, they span much.

    >>> is_wide([8.13, 8.47]), is_wide([0.0, 1e-3, 1.0]), is_wide([0.0]), is_wide([-1.0, 1e-3, 1.0])
    (False, True, False, False)
    """
    above = [value for value in values if value > 0]
    return bool(above) and min(values) >= 0 and max(above) > WIDE * min(above)


def draw_lines(
    panel: Axes, lines: Sequence[Line], baseline: float | None, *, log: bool | None = None
) -> None:
    """Draw learning curves, each in a colour of its own, and the baseline.

    `log` says whether the axis of values is logarithmic; None: if none is negative, and they span
    much. Such an axis has no place for 0, so zeros stand at its lower edge, and a note says so.
    """
    shown = [*chain.from_iterable(line.values for line in lines)]
    shown += [] if baseline is None else [baseline]
    above = [value for value in shown if value > 0]
    if log is None:
        log = is_wide(shown)
    floor = min(above) / 3 if log and above else float("-inf")

    def lift(values: Sequence[float | None], otherwise: Sequence[float]) -> list[float]:
        known = zip(values, otherwise, strict=True)
        return [max(floor, mean if value is None else value) for value, mean in known]

    for line, colour in zip(lines, colours(len(lines)), strict=True):
        means = lift(line.values, line.values)
        marker = "o" if len(means) == 1 else None  # one point has no line
        label = line.label.replace("$", r"\$")  # what stands between two is a formula else
        panel.plot(line.steps, means, color=colour, label=label, marker=marker)
        if line.low:
            low, high = lift(line.low, line.values), lift(line.high, line.values)
            panel.fill_between(line.steps, low, high, color=colour, alpha=0.15, linewidth=0)
    if baseline is not None:
        label = "memoryless baseline"
        at = max(floor, baseline)
        panel.axhline(at, color="0.4", linestyle="--", linewidth=0.9, label=label)
    if log and above:
        panel.set_yscale("log")
        if min(shown) <= 0:
            are = "exactly 0" if min(shown) == 0 else "0 and below"
            words = f"values of {are} stand at the lower edge"
            panel.annotate(words, (0.01, 0.01), xycoords="axes fraction", fontsize=7, color="0.4")
    panel.set_xlabel("optimizer steps")


def draw_curves(
    lines: Sequence[Line], named: str, baseline: float | None, *, log: bool | None = None
) -> Figure:
    """Return a figure of one panel with learning curves of a metric; `named` is its axis' name."""
    with style():
        figure, ((panel,),) = panels(1, 1, 6.0, 3.2)
        draw_lines(panel, lines, baseline, log=log)
        panel.set_ylabel(named)
        panel.legend(fontsize=7)
    return figure


def style() -> AbstractContextManager[None]:
    """Return a context in which pictures get the project's look."""
    import matplotlib

    return matplotlib.rc_context(STYLE)


def save(draw: Callable[[ContentT], Figure], content: ContentT, *paths: Path) -> None:
    """Draw a picture and write it to each path, in the format of the path's suffix."""
    with style():
        write(draw(content), *paths)


def write(figure: Figure, *paths: Path) -> None:
    """Write a figure to each path, in the format of the path's suffix.

    Raises:
        ValueError: if there is no such format; the message lists those that exist.
    """
    dateless = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with style():
        for path in paths:
            figure.savefig(path, dpi=130, metadata=dateless.get(path.suffix))
            figure.set_layout_engine("none")  # keep the layout of the first file for the others

"""The look of the pictures. Matplotlib is imported when one is drawn, and `pyplot` never."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def save(draw: Callable[[ContentT], Figure], content: ContentT, *paths: Path) -> None:
    """Draw a picture and write it to each path, in the format of the path's suffix."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure = draw(content)
        for path in paths:
            dateless = {"Date": None} if path.suffix == ".svg" else None
            figure.savefig(path, dpi=130, metadata=dateless)
            figure.set_layout_engine("none")  # keep the layout of the first file for the others

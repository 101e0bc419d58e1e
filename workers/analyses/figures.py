"""How the pictures look. Matplotlib is imported when one is drawn, and `pyplot` never."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
"""Told apart by colour-blind readers too. Source: Okabe & Ito."""


def panels(
    rows: int, columns: int, width: float = 4.2, height: float = 3.4, **options: Any
) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure of `rows` by `columns` panels, each of so many inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, [list(row) for row in axes]


def shades(count: int) -> Sequence[Any]:
    """Return so many colours in order, dark to light, for what has an order itself."""
    from matplotlib import colormaps

    return [colormaps["viridis"](0.9 * k / max(1, count - 1)) for k in range(count)]


def save(draw: Callable[[dict[str, Any]], Figure], content: dict[str, Any], *paths: Path) -> None:
    """Draw a picture and write it to each path, in the format that its name ends with."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure = draw(content)
        for path in paths:
            dateless = {"Date": None} if path.suffix == ".svg" else None
            figure.savefig(path, dpi=130, metadata=dateless)
            figure.set_layout_engine("none")  # it stays as laid out for the first

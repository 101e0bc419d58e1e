"""The plots: trials an hour and memory against lanes, and occupied lanes over time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.report import say

BLUE, ORANGE, GREY = "#2c5f8a", "#c25b1e", "#888888"


def draw(section: str, parts: Mapping[str, Any], folder: Path, title: str) -> None:
    """Draw what a section found, if it is to be drawn; say so if matplotlib is missing."""
    draws = {"lanes": draw_lanes, "occupancy": draw_occupancy}
    if section not in draws or not parts:
        return
    try:
        paths = draws[section](parts, folder / section, title)
    except ImportError as error:
        say(f"not drawn: {error}")
        return
    for path in paths:
        say(f"drawn: {path}")


def draw_lanes(parts: Mapping[str, Any], path: Path, title: str) -> list[Path]:
    """Draw trials an hour, time of a step and memory against lanes; return the files."""
    pyplot = _pyplot()
    (part,) = parts.values()
    rows = part["rows"]
    panels = {"trials": "trials an hour", "ms": "ms a step of all lanes", "memory": "memory, MB"}
    keys = [key for key in panels if all(key in row for row in rows)]
    figure, axes = pyplot.subplots(1, len(keys), figsize=(4 * len(keys), 3.6), squeeze=False)
    lanes = [row["lanes"] for row in rows]
    for ax, key in zip(axes[0], keys, strict=True):
        ax.plot(lanes, [row[key] for row in rows], marker="o", color=BLUE)
        ax.set(xscale="log", yscale="log", xlabel="lanes", title=panels[key])
        ax.set_xticks(lanes, [str(number) for number in lanes])
        ax.tick_params(axis="x", which="minor", labelbottom=False)
        ax.grid(alpha=0.3)
    figure.suptitle(f"{part['title']}\n{title}", fontsize="small")
    return _save(figure, path)


def draw_occupancy(parts: Mapping[str, Any], path: Path, title: str) -> list[Path]:
    """Draw occupied lanes over time, a panel for each way to fill them; return the files."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(
        len(parts), 1, figsize=(8, 2.4 * len(parts)), sharex=True, squeeze=False
    )
    for ax, (how, part), colour in zip(axes[:, 0], parts.items(), (BLUE, ORANGE), strict=False):
        times, occupied = [0.0], [0]
        for start, seconds, lanes in part["spans"]:
            times += [times[-1], start, start, start + seconds]
            occupied += [0, 0, lanes, lanes]
        ax.fill_between([*times, times[-1]], [*occupied, 0], color=colour, alpha=0.8, linewidth=0)
        ax.axvline(part["pending_until"], color=GREY, linestyle="--", linewidth=1)
        ax.set_ylim(0, part["lanes"] * 1.05)
        ax.set_ylabel("occupied lanes")
        ax.set_title(
            f"{how}: {part['trials']} trials in {part['seconds']:.0f} s; lanes idle "
            f"{part['idle']:.1f} % of the time until the last trial came (dashed)",
            fontsize="small",
        )
    axes[-1, 0].set_xlabel("seconds")
    figure.suptitle(title, fontsize="small")
    return _save(figure, path)


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(figure: Any, path: Path) -> list[Path]:
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    paths = [path.with_suffix(".png"), path.with_suffix(".svg")]
    for each in paths:
        figure.savefig(each, dpi=150)
    _pyplot().close(figure)
    return paths

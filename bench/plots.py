"""Draw the time of a training step against sequence length and hidden size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.workloads import Workload, copying, small

LENGTHS = (270, 520, 1020, 2020)
SIZES = (32, 64, 128, 256, 512)
FIXED = {"hidden_size": 138, "length": 520}
BATCH = 32

STYLES = {"ours_ms": "-", "loop_ms": "--", "lstm_ms": ":"}
LABELS = {"ours_ms": "{}", "loop_ms": "{}, plain loop", "lstm_ms": "nn.LSTM, parameters of {}"}
COLOURS = ("#2c5f8a", "#c25b1e", "#3d7a3d", "#7a4b8c")


def sweeps(quick: bool) -> dict[str, list[Workload]]:
    """Return the workloads along each axis, the other one fixed."""
    if quick:
        points = [copying(f"T={t + 20}", 16, 4, t) for t in (5, 10)]
        return {"length": points, "hidden_size": [small(w) for w in points[:1]] + points[:1]}
    along_T = [copying(f"T={t}", FIXED["hidden_size"], BATCH, t - 20) for t in LENGTHS]
    along_n = [copying(f"n={n}", n, BATCH, FIXED["length"] - 20) for n in SIZES]
    return {"length": along_T, "hidden_size": along_n}


def draw(measured: dict[str, Sequence[dict[str, Any]]], path: Path) -> list[Path]:
    """Draw milliseconds along each axis, and return the pictures' paths: PNG and SVG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True)
    for ax, (along, results) in zip(axes, measured.items(), strict=True):
        fixed = "hidden_size" if along == "length" else "length"
        letter = {"length": "T", "hidden_size": "n"}
        models = [row["model"] for row in results[0]["rows"]]
        for number, model in enumerate(models):
            for key, style in STYLES.items():
                points = [
                    (result[along], row[key])
                    for result in results
                    for row in result["rows"]
                    if row["model"] == model and row.get(key) is not None
                ]
                label = LABELS[key].format(model)
                colour = COLOURS[number % len(COLOURS)]
                ax.plot(
                    *zip(*sorted(points), strict=True), style, marker=".", color=colour, label=label
                )
        ax.set(xscale="log", yscale="log", xlabel=letter[along])
        ax.set_title(f"{letter[fixed]} = {results[0][fixed]}, B = {results[0]['batch']}")
        ax.set_xticks([result[along] for result in results], minor=False)
        ax.set_xticklabels([str(result[along]) for result in results])
        ax.tick_params(axis="x", which="minor", labelbottom=False)
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("ms of one training step, 1 thread")
    axes[1].legend(fontsize="small")
    figure.tight_layout()
    paths = []
    path.parent.mkdir(parents=True, exist_ok=True)
    for ending in (".png", ".svg"):
        paths.append(path.with_suffix(ending))
        figure.savefig(paths[-1], dpi=150)
    pyplot.close(figure)
    return paths

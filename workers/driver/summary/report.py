"""The report of an experiment that is over, and its plots.

It is made when the training has ended and goes to the experiment's own run in MLflow. The plots
follow after the run is closed: they take longer than everything else at the end.
"""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from optuna.distributions import distribution_to_json

from eigensweep.protocol.ledger import TrialEntry
from eigensweep.protocol.states import ExperimentEnd
from eigensweep.results.arms_report import format_lineages, format_report, make_report
from eigensweep.results.ranking import RANKED
from eigensweep.search_spaces.labels import shorten_paths
from eigensweep.search_spaces.space import Scalar
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.workers.driver.search.study import DIRECTIONS, make_distribution

if TYPE_CHECKING:
    from eigensweep.workers.driver.summary.plots import PlotOrder

logger = logging.getLogger(__name__)

PLOTS = "eigensweep.workers.driver.summary.plots"
"""The program that draws the plots. A driver does not import it: matplotlib starts slowly."""

DRAWING_SECONDS = 300.0
"""How long that program may take."""


@dataclass(frozen=True)
class WrittenReport:
    """A written report: its texts, and its plots, which take seconds to draw."""

    texts: Mapping[str, str] = field(default_factory=dict)
    """By the name of the file."""
    folder: Path | None = None
    order: str | None = None
    """What the plots show, as JSON; None if there is nothing to draw."""

    def draw(self) -> list[Path]:
        """Draw the plots in a process of their own; return their files.

        If that process fails, there are no plots.
        """
        if self.folder is None or self.order is None:
            return []
        command = [sys.executable, "-m", PLOTS, str(self.folder)]
        try:
            done = subprocess.run(
                command, input=self.order, text=True, capture_output=True, timeout=DRAWING_SECONDS
            )
            if done.returncode:
                logger.warning("no plots: %s", done.stderr[-2000:])
        except (OSError, subprocess.TimeoutExpired) as error:
            logger.warning("no plots: %s", error)
        return sorted(self.folder.glob("*.png"))


def write_report(
    folder: Path, spec: ExperimentSpec, entries: Iterable[TrialEntry], state: ExperimentEnd
) -> WrittenReport:
    """Write `report.json` and `report.md` into a folder; the plots are not drawn yet.

    No experiment waits for a report: if the disk refuses it, there is none.
    """
    try:
        return _write(folder, spec, entries, state)
    except OSError as error:
        logger.warning("no report: %s", error)
        return WrittenReport()


def _write(
    folder: Path, spec: ExperimentSpec, entries: Iterable[TrialEntry], state: ExperimentEnd
) -> WrittenReport:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    drawn = _Drawn(spec)
    population: list[TrialEntry] = []

    def look_on() -> Iterator[TrialEntry]:
        for e in entries:
            if e.lineage or spec.scheduler.name == "pbt":
                population.append(e)
            if e.state in RANKED and e.result and e.result.value is not None and not e.lineage:
                drawn.add(e.arm, e.params, e.result.value)
            yield e

    report = make_report(spec, look_on(), state)
    texts = {"report.json": json.dumps(report, indent=2), "report.md": format_report(report)}
    if any(trial.lineage for trial in population):
        texts["lineage.md"] = format_lineages(population)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    order = json.dumps(drawn.order) if drawn.count > 1 else None
    return WrittenReport(texts, folder, order)


class _Drawn:
    """Collects what the plots show."""

    def __init__(self, spec: ExperimentSpec) -> None:
        metric, space = spec.objective_metric, spec.space()
        self.count = 0
        self._labels = {arm: shorten_paths(space.axes(arm)) for arm in space.arms}
        self.order: PlotOrder = {
            "metric": metric.name,
            "direction": DIRECTIONS[metric.better],
            "arms": {
                arm: {
                    "distributions": {
                        labels[path]: distribution_to_json(make_distribution(axis))
                        for path, axis in space.axes(arm).items()
                    },
                    "params": [],
                    "values": [],
                }
                for arm, labels in self._labels.items()
            },
        }

    def add(self, arm: str, params: Mapping[str, Scalar], value: float) -> None:
        self.count += 1
        labels, drawn = self._labels[arm], self.order["arms"][arm]
        drawn["params"].append({labels[path]: setting for path, setting in params.items()})
        drawn["values"].append(value)

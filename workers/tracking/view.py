"""How MLflow's page of runs shows one experiment: which runs, which columns, which charts.

The page reads this from a tag of MLflow's experiment that the address names (`viewStateShareKey`).
Source: MLflow 3.17, its web pages, `useSharedExperimentViewState` and `RunsChartsCardConfig`. What
another version does not know it leaves out, and then it shows its own choice.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence

from eigensweep.results.ranking import OBJECTIVE
from eigensweep.workers.tracking.mlflow_runs import LONGEST_TAG
from eigensweep.workers.tracking.subject import TrackedExperiment

FIRST_METRICS = (OBJECTIVE, "baseline_ratio", "n", f"{OBJECTIVE}/low", f"{OBJECTIVE}/high")
"""The first columns after what the search varies."""

CLOSED = ("best", "test", "valid", "train", "constraint", OBJECTIVE, "Model metrics")
"""Sections of charts that MLflow makes by itself; they stay closed until they are wanted."""

MOST_RUNS = 100
"""Runs that a chart compares."""

MOST_ARMS = 6
"""Arms that have a chart of their own."""


def make_view(subject: TrackedExperiment) -> str:
    """Return the state of the page as MLflow stores it."""
    columns = [f"params.`{path}`" for path in subject.all_axes]
    columns += [f"metrics.`{name}`" for name in FIRST_METRICS]
    trials = f"tags.`eigensweep.experiment` = '{subject.id}' AND tags.`eigensweep.kind` = 'trial'"
    state = {
        "searchFilter": trials,
        "orderByKey": f"metrics.`{OBJECTIVE}`",
        "orderByAsc": subject.better == "lower",
        "selectedColumns": columns,
        "columnOrder": columns,
        "isAccordionReordered": True,
        "compareRunSections": [_section("sweep", subject.name, columns=2)]
        + [_section(f"{name}-charts", name, display=False) for name in CLOSED],
        "compareRunCharts": _charts(subject),
    }
    text = json.dumps(state, separators=(",", ":"))
    if len(text) <= LONGEST_TAG:
        return text
    return "deflate;" + base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _charts(subject: TrackedExperiment) -> list[dict[str, object]]:
    curves = f"valid/{subject.metric}"
    charts = [
        _chart("LINE", curves, metricKey=curves, selectedMetricKeys=[curves])
        | {"scaleType": "log" if subject.better == "lower" else "linear", "lineSmoothness": 0},
        _chart("BAR", "baseline_ratio", metricKey="baseline_ratio") | {"runsCountToCompare": 20},
    ]
    shared = [p for p in subject.all_axes if all(p in own for own in subject.axes.values())]
    if shared:
        charts.append(_parallel("all arms" if len(subject.axes) > 1 else "settings", shared))
    for arm, paths in list(subject.axes.items())[:MOST_ARMS]:
        if set(paths) - set(shared):
            charts.append(_parallel(arm, paths))
    return charts


def _parallel(name: str, paths: Sequence[str]) -> dict[str, object]:
    chosen = {"selectedParams": list(paths), "selectedMetrics": [OBJECTIVE]}
    return _chart("PARALLEL", name, **chosen, showAllRuns=True)


def _chart(kind: str, name: str, **fields: object) -> dict[str, object]:
    known = {"deleted": False, "isGenerated": False, "metricSectionId": "sweep"}
    own = {"uuid": f"{kind}-{name}", "type": kind, "displayName": name}
    return {**known, **own, "runsCountToCompare": MOST_RUNS, **fields}


def _section(uuid: str, name: str, *, display: bool = True, columns: int = 3) -> dict[str, object]:
    shape = {"display": display, "columns": columns, "isReordered": True}
    return {"uuid": uuid, "name": name, "deleted": False, "isGenerated": False, **shape}

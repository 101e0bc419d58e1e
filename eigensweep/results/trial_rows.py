"""Trials as rows of a table and as a frame: the same in Python and in an exported file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from eigensweep.results.ranking import OBJECTIVE, RANKED

if TYPE_CHECKING:
    from pandas import DataFrame  # type: ignore[import-untyped]

Row = dict[str, Any]

FIRST = ("rank", "trial", "arm", "state")
"""Columns of a frame before the parameters that vary."""
NUMBERS = ("value", "sd", "low", "high", "test", "test_sd", "test_low", "test_high")
"""Columns that are numbers also where all of them are missing, as are these and all scores:"""
MORE_NUMBERS = ("baseline", "ratio", "seconds")
COUNTS = ("rank", "n", "parameters", "parameters_stored", "best_step", "step", "steps")
"""Columns of whole numbers, some of which may be missing."""
SPREAD = ("sd", "low", "high")
"""What a frame says of each score, as `NAME/sd`, `NAME/low` and `NAME/high`."""
LINEAGE = "lineage"
"""A column that is there only where population-based training has replaced a trial."""


def make_row(place: int, trial: Mapping[str, Any], experiment: Mapping[str, Any]) -> Row:
    """Return a trial as a row; `place` is its place in the ranking, from 1.

    `trial` and `experiment` are the API's answers, of which `experiment` needs `baseline` and
    `metric` only.
    """
    value, parameters = trial.get("value"), trial.get("parameters")
    free = parameters if isinstance(parameters, int) else (parameters or {}).get("free")
    baseline = experiment.get("baseline") or trial.get("baseline")
    statistics = trial.get("statistics") or {}
    valid = statistics.get("value") or {}
    # One that trains on for more seeds, or longer, counts with its result so far.
    is_ranked = trial["state"] in RANKED or bool(trial.get("reopened_for") and valid)
    test = statistics.get(f"test/{(experiment.get('metric') or {}).get('name')}") or {}
    return {
        "rank": place if value is not None and is_ranked else None,
        "trial": trial["number"],
        "arm": trial["arm"],
        "state": trial["state"],
        "settings": dict(trial.get("params") or {}),
        "n": valid.get("n"),
        "value": value,
        "sd": valid.get("sd"),
        "interval": _find_ends(valid),
        "test": test.get("mean"),
        "test_sd": test.get("sd"),
        "test_interval": _find_ends(test),
        "baseline": baseline,
        "ratio": None if value is None or not baseline else value / baseline,
        "parameters": free,
        "seconds": trial.get("seconds"),
        "changes": len(trial.get("lineage") or ()),
        LINEAGE: _describe_lineage(trial.get("lineage") or ()),
        "parameters_stored": parameters["stored"] if isinstance(parameters, Mapping) else None,
        "best_step": trial.get("best_step"),
        "step": trial.get("step"),
        "steps": trial.get("steps"),
        "scores": _collect_scores(trial, statistics),
        "hash": trial.get("hash"),
        "mlflow": (trial.get("links") or {}).get("mlflow"),
    }


def make_frame(parts: Iterable[Iterable[Row]]) -> DataFrame:
    """Return the rows of all parts as one DataFrame, of which a part is in memory at a time.

    It has a column for each parameter that varies, by its path, and for each score: `valid/NAME`
    and `test/NAME`, with its spread. An interval is two columns, such as `low` and `high`. A whole
    number stays one where some trials lack that parameter.
    """
    import pandas as pd

    paths: dict[str, None] = {}
    scores: dict[str, None] = {}
    fractions = set[str]()
    frames = []
    for part in parts:
        rows = list(part)
        for row in rows:
            paths |= dict.fromkeys(row["settings"])
            fractions |= {path for path, v in row["settings"].items() if type(v) is not int}
            scores |= dict.fromkeys(row["scores"])
        frames.append(_set_types(pd.DataFrame(map(_flatten, rows)), scores))
    heads = list(_flatten(make_row(0, {"number": 0, "arm": "", "state": ""}, {})))
    middle = [head for head in heads if head not in (*FIRST, "hash", "mlflow")]
    columns = [*FIRST, *paths, *middle, *scores, "hash", "mlflow"]
    frame = pd.concat([pd.DataFrame(columns=columns) if not frames else frames[0], *frames[1:]])
    frame = _set_types(frame.reindex(columns=columns).reset_index(drop=True), scores)
    gaps = [path for path in paths if path not in fractions and frame[path].hasnans]
    frame = frame.astype(dict.fromkeys(gaps, "Int64"))
    return frame if frame[LINEAGE].any() else frame.drop(columns=LINEAGE)


def write_parquet(frame: DataFrame) -> bytes:
    """Return a frame as Parquet, where a column has one type: values of several become text."""
    from pandas.api.types import is_object_dtype  # type: ignore[import-untyped]

    mixed = [
        name
        for name in frame.columns
        if is_object_dtype(frame[name])
        and len({float if type(v) is int else type(v) for v in frame[name].dropna()}) > 1
    ]
    texts = {name: frame[name].map(str, na_action="ignore") for name in mixed}
    content: bytes = frame.assign(**texts).to_parquet(index=False)
    return content


def _set_types(frame: DataFrame, scores: Iterable[str]) -> DataFrame:
    types = dict.fromkeys((*NUMBERS, *MORE_NUMBERS, *scores), "float64")
    types |= dict.fromkeys(COUNTS, "Int64")
    return frame.astype({name: kind for name, kind in types.items() if name in frame})


def _flatten(row: Row) -> Row:
    """Return a row of plain values: settings, scores and the ends of intervals as columns."""
    flat: Row = {}
    for column, value in row.items():
        if column.endswith("interval"):
            low, high = value or (None, None)
            name = column.removesuffix("interval")
            flat |= {f"{name}low": low, f"{name}high": high}
        elif column not in ("settings", "scores"):
            flat[column] = value
    return flat | row["settings"] | row["scores"]


def _collect_scores(trial: Mapping[str, Any], statistics: Mapping[str, Any]) -> Row:
    """Return each score by its name, followed by its spread where that is known."""
    scores: Row = {}
    for split, given in (("valid", trial.get("metrics")), ("test", trial.get("test"))):
        for metric, value in (given or {}).items():
            if metric == OBJECTIVE:  # the best value of a trial that trains
                continue
            name = metric if metric.startswith("valid/") else f"{split}/{metric}"
            scores[name] = value
            found = statistics.get(name)
            scores |= {f"{name}/{part}": found[part] for part in SPREAD} if found else {}
    return scores


def _find_ends(statistics: Mapping[str, Any]) -> tuple[float, float] | None:
    low, high = statistics.get("low"), statistics.get("high")
    return None if low is None or high is None else (low, high)


def _describe_lineage(lineage: Iterable[Mapping[str, Any]]) -> str:
    """Return a trial's lineage as one text, such as `step 500 from trial 3: optimizer.lr=0.02`."""
    return "; ".join(
        f"step {taken['step']} from trial {taken['source']}: "
        + " ".join(f"{path}={value}" for path, value in taken["params"].items())
        for taken in lineage
    )

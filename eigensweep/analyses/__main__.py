"""One analysis in its own process: `python -m eigensweep.analyses FOLDER < order.json`.

The order is an `AnalysisOrder` as JSON. Numbers and pictures are written into the folder, then
`outcome.json`, an `Outcome`. If `result.json` is already there, the files are only sent to MLflow
once more.
"""

from __future__ import annotations

import csv
import json
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from eigensweep.analyses import ANALYSES
from eigensweep.analyses.base import Findings, Folders
from eigensweep.analyses.delivery import NotDeliveredError, deliver
from eigensweep.analyses.messages import (
    FILES,
    PNG,
    RESULT,
    SVG,
    TABLE,
    AnalysisOrder,
    Outcome,
    leave_outcome,
)
from eigensweep.common.parents import end_with_parent
from eigensweep.results.figures import save
from eigensweep.store.places.durable_files import (
    DamagedError,
    StorageError,
    disk_failure,
    write_whole,
)

NOT_FINITE = (
    "with these weights the analysis gets numbers that are not finite; ask for other weights "
    "('initial', 'best' or 'last'), or for a smaller 'length'"
)


def main(folder: Path, text: str) -> None:
    """Read an order, make the analysis, deliver its files to MLflow, and write the outcome."""
    order = AnalysisOrder.model_validate_json(text)
    try:
        if not (folder / RESULT).exists():
            _analyse(order, folder)
        outcome = _deliver(order, folder)
    except StorageError as error:
        outcome = Outcome(error=str(error), is_temporary=not isinstance(error, DamagedError))
    except (ValueError, OSError) as error:
        outcome = Outcome(error=str(error), is_temporary=disk_failure(error) is not None)
    except Exception:  # a bug is kept with its traceback
        outcome = Outcome(error=traceback.format_exc())
    leave_outcome(folder, outcome)


def _analyse(order: AnalysisOrder, folder: Path) -> None:
    analysis = ANALYSES[order.name]
    options = analysis.Options.model_validate(order.options)
    folders = Folders(order.storage, Path(order.data_root) if order.data_root else None)
    try:
        findings = analysis.run(options, order.subject, folders)
    except ValidationError as error:
        if any(each["type"] == "finite_number" for each in error.errors()):
            raise ValueError(NOT_FINITE) from error
        raise
    _write_table(folder / TABLE, findings)
    save(analysis.plot, findings.content, folder / PNG, folder / SVG)
    content = {
        "analysis": order.name,
        "id": order.id,
        "result_version": analysis.result_version,
        "options": options.model_dump(mode="json"),
        **_describe_subject(order),
        **findings.content.model_dump(mode="json"),
    }
    write_whole(folder / RESULT, json.dumps(content, allow_nan=False).encode())


def _describe_subject(order: AnalysisOrder) -> dict[str, str | int]:
    if order.trial is not None:
        trial = order.trial
        return {"experiment": trial.experiment, "trial": trial.number, "arm": trial.arm}
    return {} if order.experiment is None else {"experiment": order.experiment.experiment}


def _write_table(path: Path, findings: Findings[Any]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(findings.columns)
        writer.writerows(findings.rows)


def _deliver(order: AnalysisOrder, folder: Path) -> Outcome:
    try:
        run_id = deliver(order, [folder / name for name in FILES])
    except NotDeliveredError as problem:
        return Outcome(mlflow_problem=str(problem))
    return Outcome(mlflow_run=run_id)


if __name__ == "__main__":
    end_with_parent()
    with suppress(OSError):
        os.nice(10)  # trials come first
    main(Path(sys.argv[1]), sys.stdin.read())

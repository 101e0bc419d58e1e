"""One analysis in its own process: `python -m eigensweep.workers.analyses FOLDER < order.json`.

The order is an `Order` as JSON. Numbers and pictures are written into the folder, then
`outcome.json`, an `Outcome`. Where `result.json` stands already, only MLflow is told again.
"""

from __future__ import annotations

import csv
import json
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from eigensweep.search_spaces.trial import Strict
from eigensweep.workers.analyses import ANALYSES
from eigensweep.workers.analyses.base import ExperimentSubject, Findings, Place, TrialSubject
from eigensweep.workers.analyses.delivery import NotDeliveredError, deliver
from eigensweep.workers.analyses.figures import save
from eigensweep.workers.shared.durable_files import StorageError, write_whole

RESULT, TABLE, PNG, SVG = "result.json", "table.csv", "figure.png", "figure.svg"
FILES: Final = (RESULT, TABLE, PNG, SVG)
"""What an analysis leaves; the result is written last."""
OUTCOME: Final = "outcome.json"


class Order(Strict):
    """What is to be done, and where things are."""

    id: str
    name: str
    options: dict[str, Any]
    trial: TrialSubject | None = None
    experiment: ExperimentSubject | None = None
    storage: str
    data_root: str | None = None
    mlflow_uri: str | None = None


class Outcome(Strict):
    """How it went."""

    error: str | None = None
    """In words where the request cannot be met, with the traceback where it is a bug."""
    mlflow_run: str | None = None
    mlflow_problem: str | None = None
    """Why MLflow has not got it."""


def main(folder: Path, text: str) -> None:
    """Carry an order out."""
    order = Order.model_validate_json(text)
    try:
        if not (folder / RESULT).exists():
            _analyse(order, folder)
        outcome = _delivered(order, folder)
    except (ValueError, OSError, StorageError) as error:
        outcome = Outcome(error=str(error))
    except Exception:  # a bug is kept with its traceback
        outcome = Outcome(error=traceback.format_exc())
    write_whole(folder / OUTCOME, outcome.model_dump_json().encode())


def _analyse(order: Order, folder: Path) -> None:
    analysis = ANALYSES[order.name]
    options = analysis.Options.model_validate(order.options)
    subject = order.trial or order.experiment
    place = Place(Path(order.storage), Path(order.data_root) if order.data_root else None)
    findings = analysis.run(options, subject, place)
    _write_table(folder / TABLE, findings)
    content = {
        "analysis": order.name,
        "id": order.id,
        "result_version": analysis.result_version,
        "options": options.model_dump(mode="json"),
        **_about(order),
        **findings.content,
    }
    text = json.dumps(content, allow_nan=False)
    save(analysis.plot, json.loads(text), folder / PNG, folder / SVG)
    write_whole(folder / RESULT, text.encode())


def _about(order: Order) -> dict[str, Any]:
    if order.trial is not None:
        about = order.trial
        return {"experiment": about.experiment, "trial": about.number, "arm": about.arm}
    return {} if order.experiment is None else {"experiment": order.experiment.experiment}


def _write_table(path: Path, findings: Findings) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(findings.columns)
        writer.writerows(findings.rows)


def _delivered(order: Order, folder: Path) -> Outcome:
    subject = order.trial or order.experiment
    try:
        run_id = deliver(
            order.mlflow_uri,
            order.id,
            order.name,
            order.options,
            None if subject is None else subject.run_id,
            subject is None,
            [folder / name for name in FILES],
        )
    except NotDeliveredError as problem:
        return Outcome(mlflow_problem=str(problem))
    return Outcome(mlflow_run=run_id)


if __name__ == "__main__":
    with suppress(OSError):
        os.nice(10)  # trials come first
    main(Path(sys.argv[1]), sys.stdin.read())

"""Analyses and reproductions of a home whose service kept their states in files.

A service reads them once, when it leads, and removes the files then. Runs in the service's process.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from eigensweep.service.record import database
from eigensweep.service.record.analyses import AnalysisRecord
from eigensweep.service.record.reproductions import ReproductionRecord
from eigensweep.service.record.rows import RowSession
from eigensweep.service.record.tables import JobRow

logger = logging.getLogger(__name__)


def take_over(url: str, home: Path) -> None:
    """Make jobs of the states in a home folder, but for those that the record has already.

    Raises:
        SQLAlchemyError: if the database does not answer.
    """
    read = {"analyses": _read_analysis, "reproductions": _read_reproduction}
    for folder, make in read.items():
        for path in home.glob(f"{folder}/*/state.json"):
            try:
                job = make(path.parent, json.loads(path.read_bytes()))
            except (OSError, ValueError, TypeError, KeyError) as error:
                logger.warning("a state is not taken over path=%s: %s", path, error)
                continue
            database.write(url, partial(_add_if_new, job))
            with suppress(OSError):  # then it is looked at again by the next service
                path.unlink()
                path.with_name("request.json").unlink(missing_ok=True)


def _add_if_new(job: JobRow, rows: RowSession) -> None:
    if rows.get(JobRow, (job.kind, job.key)) is None:
        rows.add(job)


def _read_analysis(folder: Path, state: dict[str, Any]) -> JobRow:
    subject: dict[str, Any] = {}
    try:
        whole = json.loads((folder / "request.json").read_bytes())
        subject = {kind: whole[kind] for kind in ("trial", "experiment")}
    except FileNotFoundError as error:
        if state["state"] in AnalysisRecord.open:
            state |= {"state": "failed", "error": f"FileNotFoundError: {error}"}
    return AnalysisRecord(**state, subject=subject).to_job()


def _read_reproduction(folder: Path, state: dict[str, Any]) -> JobRow:
    return ReproductionRecord(**state).to_job()

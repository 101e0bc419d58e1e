"""Analyses and reproductions of a home whose service kept their states in files.

A service reads them once, when it leads, and removes the files then. Runs in the service's process.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from functools import partial
from pathlib import Path

from eigensweep.service.record.requests.analyses import AnalysisRecord
from eigensweep.service.record.requests.reproductions import ReproductionRecord
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.rows import RowSession
from eigensweep.service.record.sql.tables import JobRow

logger = logging.getLogger(__name__)


def take_over(url: str, home: Path) -> None:
    """Make jobs of the states in a home folder, but for those that the record has already.

    Raises:
        SQLAlchemyError: if the database does not answer.
    """
    kinds = {"analyses": AnalysisRecord, "reproductions": ReproductionRecord}
    for folder, kind in kinds.items():
        for path in home.glob(f"{folder}/*/state.json"):
            try:
                state = json.loads(path.read_bytes())
                if kind is AnalysisRecord:
                    state |= _find_subject(path.with_name("request.json"), state["state"])
                job = kind(**state).to_job()
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


def _find_subject(request: Path, state: str) -> dict[str, object]:
    """Return the subject of an analysis in this state, or why it fails for the lack of one."""
    try:
        whole = json.loads(request.read_bytes())
    except FileNotFoundError as error:
        words = f"FileNotFoundError: {error}"
        failed = {"state": "failed", "error": words} if state in AnalysisRecord.open else {}
        return {"subject": {}, **failed}
    return {"subject": {kind: whole[kind] for kind in ("trial", "experiment")}}
